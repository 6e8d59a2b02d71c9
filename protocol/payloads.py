"""Large values of events: which go to the blob store, and how they come back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .blobs import blob_ref, verify_blob
from .codec import Json, canonical_bytes, sort_keys, unpack
from .events import VALUE_FIELDS
from .limits import BLOB_BYTES_MAX, INLINE_BYTES_MAX

_SHORT = frozenset({int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class Ref:
    """A value that stands in the blob store: `fields` is its reference {ref, sha256, size}."""

    fields: dict[str, Any]


def split_payload(
    payload: dict[str, Any], *, inline_bytes_max: int = INLINE_BYTES_MAX
) -> tuple[dict[str, Any], list[bytes]]:
    """Returns the payload with every large value field replaced by its blob form, and the blobs.

    What stays has its keys, and those of every map inside, in the order of the stored bytes:
    whoever works on with it sees what a fold of the log would give, and code or a prompt made from
    it is the same after a crash. `encode_event` relies on it and sorts nothing again.

    A limit of -1 puts every value field away, for steps marked sensitive.
    """
    blobs: list[bytes] = []
    split: dict[str, Any] = {}
    for name in sorted(payload):
        value = payload[name]
        if name in VALUE_FIELDS and (inline_bytes_max < 0 or not _is_small(value)):
            data = canonical_bytes(value)
            if len(data) > inline_bytes_max:
                blobs.append(data)
                split[f"{name}Ref"] = blob_ref(data)
                continue
        split[name] = sort_keys(value)
    return split, blobs


def read_field(payload: dict[str, Any], name: str) -> Json | Ref:
    """Returns a value field, or the reference that stands for it; None when neither is there."""
    if name in payload:
        return payload[name]
    ref = payload.get(f"{name}Ref")
    return Ref(ref) if ref is not None else None


def write_field(name: str, value: Json | Ref) -> dict[str, Any]:
    """Returns the payload entry for a value: inline as {name: value}, or {nameRef: reference}."""
    return {f"{name}Ref": value.fields} if isinstance(value, Ref) else {name: value}


def load_value(value: Json | Ref, read_blob: Callable[[dict[str, Any]], bytes]) -> Json:
    """Returns the value itself, read from the blob store and verified if it stands there."""
    if not isinstance(value, Ref):
        return value
    return unpack(verify_blob(read_blob(value.fields), value.fields), bytes_max=BLOB_BYTES_MAX)


def _is_small(value: Json) -> bool:
    """Says whether a value is surely below the limit, without packing it."""
    if isinstance(value, str):
        return len(value) < 1_000
    if isinstance(value, dict):
        return len(value) < 20 and all(
            type(v) in _SHORT or (isinstance(v, str) and len(v) < 1_000) for v in value.values()
        )
    return not isinstance(value, list) or not value
