"""Stored events: golden bytes, the way back, and payloads that are not of their type."""

from typing import Any

import msgpack
import pytest

from planaria.protocol.errors import IntegrityError, ProtocolError
from planaria.protocol.events import (
    PAYLOADS,
    ROLE_EVENTS,
    RUN_TERMINAL,
    VALUE_FIELDS,
    Event,
    check_payload,
    decode_event,
    encode_event,
)

AT = 1_700_000_000_000_000
# Logs on disk have these bytes: a change needs a new schema version beside the old one.
GOLDEN = [
    (
        Event("run_1", 1, "RunCancelled", AT, 0, 1, None, None, {"requestId": "r"}),
        "9a01a572756e5f3101ac52756e43616e63656c6c6564cf00060a24181e40000001c0c081a9726571756573744964"
        "a172",
    ),
    (
        Event(
            run_id="run_1",
            sequence=3,
            type="harness.tool_call.succeeded",
            at=AT,
            mono=12_345,
            epoch=2,
            session_id="hs_1",
            incarnation=1,
            payload={"callId": "call_1", "result": {"a": "ü", "b": [1, 2.5, None, True]}},
        ),
        "9a01a572756e5f3103bb6861726e6573732e746f6f6c5f63616c6c2e737563636565646564cf00060a24181e4000"
        "cd303902a468735f310182a663616c6c4964a663616c6c5f31a6726573756c7482a161a2c3bca1629401cb400400"
        "0000000000c0c3",
    ),
]


@pytest.mark.parametrize(("event", "golden"), GOLDEN)
def test_event_has_its_golden_bytes_and_comes_back(event: Event, golden: str) -> None:
    assert encode_event(event).hex() == golden
    assert decode_event(bytes.fromhex(golden)) == event


@pytest.mark.parametrize("length", range(len(GOLDEN[0][1]) // 2))
def test_truncated_event_is_an_integrity_error(length: int) -> None:
    with pytest.raises(IntegrityError, match="unreadable"):
        decode_event(bytes.fromhex(GOLDEN[0][1])[:length])


@pytest.mark.parametrize("fields", [5, {}, [], [1] * 9, [1] * 11, None])
def test_event_without_its_ten_fields_is_an_integrity_error(fields: Any) -> None:
    with pytest.raises(IntegrityError, match="ten fields"):
        decode_event(msgpack.packb(fields))


@pytest.mark.parametrize(("place", "value"), [(0, 2), (0, None), (3, "RunDreamt"), (3, 5)])
def test_newer_event_is_refused_with_advice(place: int, value: Any) -> None:
    fields = msgpack.unpackb(bytes.fromhex(GOLDEN[0][1]))
    fields[place] = value
    with pytest.raises(IntegrityError, match="newer planaria"):
        decode_event(msgpack.packb(fields))


@pytest.mark.parametrize("kind", sorted(PAYLOADS))
def test_payload_has_all_its_required_fields_and_no_unknown_one(kind: str) -> None:
    required, allowed = PAYLOADS[kind]
    full = {name: 1 for name in required}
    check_payload(kind, full)
    check_payload(kind, {name: 1 for name in allowed})
    check_payload(kind, {f"{n}Ref" if n in VALUE_FIELDS else n: 1 for n in required})
    with pytest.raises(ProtocolError, match=rf"{kind} has an unknown field 'zzz'"):
        check_payload(kind, {**full, "zzz": 1})
    for name in required:
        with pytest.raises(ProtocolError, match=f"{kind} lacks '{name}'"):
            check_payload(kind, {n: 1 for n in required if n != name})
    for wrong in (None, [], 5, "x"):
        with pytest.raises(ProtocolError, match="no map"):
            check_payload(kind, wrong)


def test_unknown_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown event type 'RunDreamt'"):
        check_payload("RunDreamt", {})


def test_worker_reports_nothing_that_decides_about_runs_steps_or_processes() -> None:
    layers = {kind.split(".")[0] for kind in ROLE_EVENTS["worker"]}

    assert layers == {"harness", "StepRepairAttempted", "ApprovalRequested"}
    assert not ROLE_EVENTS["worker"] & RUN_TERMINAL
    assert "harness.session.completed" not in ROLE_EVENTS["worker"]
    assert "harness.tool_call.unknown" not in ROLE_EVENTS["worker"]
    assert ROLE_EVENTS["worker"] < PAYLOADS.keys() and RUN_TERMINAL < PAYLOADS.keys()
