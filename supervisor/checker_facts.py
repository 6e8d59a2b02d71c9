"""What the checker reads: a row of the log, the fact that its bytes state, and a violation.

The checker shares no code with the writer and the fold, so that a mistake of theirs can't hide
itself: it decodes the stored bytes by itself, and only the pure functions that make ids, and the
limits, are taken from the protocol.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

ENVELOPE_FIELDS = 10
SCHEMA_VERSIONS = frozenset({1})
FAIL_CLOSED = frozenset({"once", "managed"})  # a lost one is unknown, and nobody may guess

Report = Callable[[str, str], None]  # (invariant, message) of the fact at hand


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table of events, as it is stored."""

    position: int
    run_id: str
    sequence: int
    session_id: str | None
    type: str
    body: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that doesn't hold, and the event that shows it (sequence 0: the whole run)."""

    invariant: str
    run_id: str
    sequence: int
    message: str

    def __str__(self) -> str:
        place = f"event {self.sequence} of run {self.run_id!r}"
        return f"{self.invariant} at {place}: {self.message}"


@dataclass(slots=True)
class Fact:
    """An event as the checker decodes it. `at` is UTC and `mono` the writer's clock, both in µs."""

    run_id: str
    sequence: int
    type: str
    at: int
    mono: int
    epoch: int
    session_id: str | None
    incarnation: int | None
    payload: dict[str, Any]
    body: bytes


def decode_row(row: Row) -> Fact | str:
    """Returns the fact that a row's bytes state, or what is wrong with them."""
    try:
        fields = msgpack.unpackb(row.body, strict_map_key=True)
    except Exception as error:
        # msgpack has no common class for what bytes can do to it; a checker must go on.
        return f"its bytes can't be read ({type(error).__name__})"
    if not isinstance(fields, list) or len(fields) != ENVELOPE_FIELDS:
        return "its bytes aren't an envelope of ten fields"
    version, run_id, sequence, kind, at, mono, epoch, session_id, incarnation, payload = fields
    if version not in SCHEMA_VERSIONS:
        return f"its schema version {version!r} is unknown"
    is_well_formed = (
        isinstance(run_id, str)
        and isinstance(kind, str)
        and all(type(number) is int and number >= 0 for number in (sequence, at, mono, epoch))
        and (session_id is None or isinstance(session_id, str))
        and (incarnation is None or (type(incarnation) is int and incarnation >= 1))
        and isinstance(payload, dict)
    )
    if not is_well_formed:
        return "a field of its envelope has a wrong type"
    return Fact(run_id, sequence, kind, at, mono, epoch, session_id, incarnation, payload, row.body)


def pack_value(value: Any) -> bytes:
    """Returns the msgpack bytes of a decoded value, in the order that its maps have."""
    packed = msgpack.packb(value)
    assert isinstance(packed, bytes), "msgpack packs into bytes when it has no stream of its own"
    return packed
