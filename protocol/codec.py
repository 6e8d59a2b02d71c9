"""Canonical msgpack, its hashes, and a decoder that hostile bytes can't hurt."""

import hashlib
import math
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
    """Refuses what is no JSON value (bytes, NaN, keys that aren't text) and deep nesting.

    Without recursion, for the value may be hostile.
    """
    # By sets of types, not item by item: this is done to every frame and every stored event.
    level = [value]
    for _ in range(depth_max):
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                if not _TEXT.issuperset(map(type, item)):
                    raise ProtocolError(message="a map key that is no text")
                item = item.values()
            elif kind is not list:
                _check_scalar(item)
                continue
            kinds = set(map(type, item))
            if not kinds <= _FLAT:
                deeper.extend(item)
            elif float in kinds:
                for scalar in item:
                    _check_scalar(scalar)
        if not deeper:
            return
        level = deeper
    raise ProtocolError(message=f"nested deeper than {depth_max} levels")


def _check_scalar(value: Json) -> None:
    kind = type(value)
    if kind not in _FLAT:
        raise ProtocolError(message=f"{kind.__name__} is no JSON value")
    if kind is float and not math.isfinite(value):
        raise ProtocolError(message=f"{value} is no JSON value")
