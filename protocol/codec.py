"""Canonical msgpack, its hashes, and a decoder that hostile bytes can't hurt."""

import hashlib
from typing import Any, cast

import msgpack
import rfc8785

from .errors import ProtocolError
from .limits import CONTAINER_ITEMS_MAX, FRAME_BYTES_MAX, VALUE_DEPTH_MAX

Json = Any  # None | bool | int | float | str | list[Json] | dict[str, Json]

ENVELOPE_DEPTH = 10  # levels of frame, message, event and payload around a value
_FLAT = frozenset({str, int, float, bool, type(None)})
_TEXT = frozenset({str})


def sort_keys(value: Json) -> Json:
    """Returns an equal value whose maps are in key order, so that equal values pack equally."""
    kind = type(value)
    if kind is dict:
        return {
            key: item if type(item := value[key]) in _FLAT else sort_keys(item)
            for key in sorted(value)
        }
    if kind is list or kind is tuple:
        return [item if type(item) in _FLAT else sort_keys(item) for item in value]
    return value


def pack(value: Json) -> bytes:
    """Returns msgpack bytes in the order that the maps have; for the wire."""
    return cast(bytes, msgpack.packb(value))


def canonical_bytes(value: Json) -> bytes:
    """Returns canonical msgpack (maps sorted by key): what event, input and argument hashes see."""
    return pack(sort_keys(value))


def hash_bytes(data: bytes) -> str:
    """Returns `sha256:<hex>`, the one form in which hashes are written."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def hash_value(value: Json) -> str:
    """Returns the hash of a JSON value over its canonical msgpack."""
    return hash_bytes(canonical_bytes(value))


def hash_jcs(value: Json) -> str:
    """Returns the hash over RFC 8785 canonical JSON; for LWIR, locks and manifests."""
    return hash_bytes(rfc8785.dumps(value))


def unpack(data: bytes, *, bytes_max: int = FRAME_BYTES_MAX) -> Json:
    """Returns the one JSON value in `data`.

    Raises:
        ProtocolError: too large, truncated, trailing bytes, nested too deep, or no JSON value.
    """
    if len(data) > bytes_max:
        raise ProtocolError(message=f"a frame of {len(data)} bytes; at most {bytes_max} are read")
    try:
        value = msgpack.unpackb(
            data,
            strict_map_key=True,
            max_array_len=CONTAINER_ITEMS_MAX,
            max_map_len=CONTAINER_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(message=f"not readable as msgpack: {type(error).__name__}") from error
    check_depth(value, VALUE_DEPTH_MAX + ENVELOPE_DEPTH)
    return value


def check_depth(value: Json, depth_max: int = VALUE_DEPTH_MAX) -> None:
    """Refuses bytes, extension types, non-text keys and deep nesting, without recursion."""
    # By sets of types, not item by item: this is done to every frame and every stored event.
    level = [value]
    for _ in range(depth_max):
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                if not _TEXT.issuperset(map(type, item)):
                    raise ProtocolError(message="a map key that is no text")
                if not _FLAT.issuperset(map(type, item.values())):
                    deeper.extend(item.values())
            elif kind is list:
                if not _FLAT.issuperset(map(type, item)):
                    deeper.extend(item)
            elif kind not in _FLAT:
                raise ProtocolError(message=f"{kind.__name__} is no JSON value")
        if not deeper:
            return
        level = deeper
    raise ProtocolError(message=f"nested deeper than {depth_max} levels")
