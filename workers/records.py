"""What a session has on record: its calls by id, rebuilt from the stored events."""

import gc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from planaria.protocol.codec import hash_bytes
from planaria.protocol.events import PAYLOADS, SCHEMA_VERSION, TASKS, decode_event

from .link import Link, Reports
from .session import Session

_OPENING = {
    "harness.tool_call.started": "tool_call",
    "harness.model.called": "model",
    "harness.operation.started": "operation",
}
SUCCESSES = {  # and the field that holds the value
    "harness.tool_call.succeeded": "result",
    "harness.model.responded": "response",
    "harness.operation.succeeded": "result",
}
_FAILURES = frozenset(
    {"harness.tool_call.failed", "harness.model.failed", "harness.operation.failed"}
)
_ENDING = frozenset(
    f"harness.{task}.{end}" for task in TASKS.values() for end in ("succeeded", "failed")
)
# By the session itself, and neither a call nor a note that is counted.
_UNCOUNTED = frozenset(
    {
        "harness.model.repeated",
        "harness.memory.written",
        "ApprovalRequested",
    }
)

# About a process and what it found, not what the session did: a model's failure before one is
# still the last word of the process that reported it.
_TAKING_OVER = frozenset({"harness.session.resumed", "harness.tool_call.reattached"})


@dataclass(slots=True)
class Record:
    """One call: its intent, and its outcome if there is one.

    `field` names where a success holds its value; it is None for a failure.
    """

    kind: str
    started: dict[str, Any]
    outcome: dict[str, Any] | None = None
    field: str | None = None


@dataclass(slots=True)
class History:
    """All that the session's earlier processes reported."""

    calls: dict[str, Record]  # by call id
    notes: Counter[str]  # texts of warnings, and types of other notes, each with its number
    is_ended: bool = False
    cleared: set[str] = field(default_factory=set)  # calls of which a person says: never happened


async def resume_session(session: Session, link: Link, reports: Reports) -> History:
    """Returns what earlier processes of the session recorded, and reports the take-over."""
    bodies = await link.read_history(session.id, session.incarnation, session.first_sequence - 1)
    given = _take_given(bodies, session.last_sequence)
    resumed = {
        "incarnation": session.incarnation,
        "manifestHash": session.manifest_hash,
        "replayedEvents": len(given),
        "digest": hash_bytes(b"".join(given)),
    }
    reports.append([("harness.session.resumed", resumed)])
    is_collecting = gc.isenabled()
    gc.disable()  # it would look through the growing history again and again: twice the time
    try:
        return read_history(bodies)
    finally:
        if is_collecting:
            gc.enable()


def read_history(bodies: Iterable[bytes]) -> History:
    """Returns what the stored events say.

    A model's failure counts only if something came after it: as the last word of a process it is
    no decision yet, and the request is made again.
    """
    history = History({}, Counter())
    trailing: str | None = None
    for body in bodies:
        # The supervisor has checked them: as JSON values they need no second look (a third of
        # the time). What isn't known is left to decode_event, which says why.
        version, _, _, kind, _, _, _, _, incarnation, payload = msgpack.unpackb(body)
        if version != SCHEMA_VERSION or kind not in PAYLOADS:
            decode_event(body)
        if incarnation is None:
            _take_settled(history, kind, payload)
            continue  # by the supervisor: nothing that the session did
        if kind in _TAKING_OVER:
            if kind == "harness.session.resumed":
                history.cleared.clear()  # that process may have performed them, and lost them again
            continue
        trailing = None
        if kind in _OPENING:
            history.calls[payload["callId"]] = Record(_OPENING[kind], payload)
        elif kind in SUCCESSES:
            record = history.calls[payload["callId"]]
            record.outcome, record.field = payload, SUCCESSES[kind]
        elif kind in _FAILURES:
            history.calls[payload["callId"]].outcome = payload
            if kind == "harness.model.failed":
                trailing = payload["callId"]
        elif kind in _ENDING:
            history.is_ended = True
        elif kind not in _UNCOUNTED:
            history.notes[payload.get("text", kind)] += 1
    if trailing is not None:
        del history.calls[trailing]
    return history


def _take_settled(history: History, kind: str, payload: dict[str, Any]) -> None:
    """Notes the outcome of a call that the supervisor carried out, or was told by a person."""
    if kind == "EffectResolved" and payload["resolution"] == "never_happened":
        history.cleared.add(payload["callId"])
    elif kind in SUCCESSES or kind in _FAILURES:
        record = history.calls.get(payload["callId"])
        if record is not None:
            record.outcome, record.field = payload, SUCCESSES.get(kind)


def _take_given(bodies: list[bytes], last_sequence: int | None) -> list[bytes]:
    """Returns what the delivery promised: outcomes by the supervisor may have come since."""
    count = len(bodies)
    while last_sequence is not None and count and _sequence_of(bodies[count - 1]) > last_sequence:
        count -= 1
    return bodies[:count]


def _sequence_of(body: bytes) -> int:
    return decode_event(body).sequence
