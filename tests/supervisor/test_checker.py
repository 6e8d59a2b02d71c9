"""The checker: a clean log breaks nothing, and each invariant has a log that breaks only it.

Here are those of the log as a whole; test_checker_runs.py and test_checker_sessions.py have the
others.
"""

import ast
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack
import pytest
from log_builder import ERROR, assert_only, make_clean_log, opened

from planaria.protocol.events import PAYLOADS, VALUE_FIELDS
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.supervisor import checker as module
from planaria.supervisor.checker import Row, check_log
from planaria.supervisor.checker_payloads import FIELDS


def test_clean_log_breaks_nothing() -> None:
    log = make_clean_log()

    assert [] == log.check()
    assert [] == check_log(log.rows())


def test_run_that_is_still_open_breaks_nothing_at_any_event() -> None:
    log = make_clean_log()
    rows = log.rows()
    recorded = 3  # up to here the admission's batch would be torn

    for length in range(recorded, len(rows)):
        assert [] == log.check(rows[:length]), f"first {length} rows"


def test_checker_shares_no_code_with_writer_and_fold() -> None:
    allowed = {"planaria.protocol.limits", "planaria.protocol.ids"}
    folder = Path(module.__file__).parent
    for path in folder.glob("checker*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                name = node.module or ""
                if node.level:
                    assert name.startswith("checker"), f"{path.name} imports {name}"
                elif name.startswith("planaria"):
                    assert name in allowed, f"{path.name} imports {name}"


def test_checker_knows_the_fields_of_every_event_type() -> None:
    assert PAYLOADS.keys() == FIELDS.keys()
    for kind, (required, allowed) in PAYLOADS.items():
        fields = FIELDS[kind]
        assert required == {name for name, (_, is_required) in fields.items() if is_required}, kind
        assert allowed - {f"{n}Ref" for n in VALUE_FIELDS} == fields.keys(), kind
        values = {name for name, (form, _) in fields.items() if form == "v"}
        assert values == fields.keys() & VALUE_FIELDS, kind


# -- the log as a whole ---------------------------------------------------------------------


def test_missing_row_breaks_i1() -> None:
    log = make_clean_log()
    rows = [row for row in log.rows() if row.type != "harness.model.failed"]

    found = log.check(rows)

    assert {"I1"} == {
        v.invariant for v in found if v.sequence <= 30 and "stands after" in v.message
    }
    assert 2 == sum(v.invariant == "I1" for v in found)


def test_hole_in_the_positions_breaks_i1() -> None:
    log = opened()
    log.end_run()
    rows = log.rows()
    last = rows.pop()
    moved = Row(last.position + 1, *(getattr(last, n) for n in Row.__slots__[1:]))

    assert ["I1"] == [v.invariant for v in log.check([*rows, moved])]


def test_changed_bytes_break_i2() -> None:
    log = opened()
    log.end_run("RunFailed")
    rows = log.rows()
    body = rows[-1].body.replace(b"causeCode", b"causeKode")
    fields = {name: getattr(rows[-1], name) for name in Row.__slots__}
    rows[-1] = Row(**{**fields, "body": body})

    assert ["I2"] == [v.invariant for v in log.check(rows)]


def test_row_that_names_another_event_breaks_i2() -> None:
    log = opened()
    log.end_run()
    rows = log.rows()
    fields = {name: getattr(rows[-1], name) for name in Row.__slots__}
    rows[-1] = Row(**{**fields, "type": "RunFailed"})

    assert ["I2"] == [v.invariant for v in log.check(rows)]


def test_other_database_breaks_i2() -> None:
    found = check_log(opened().rows(), database_id="aa" * 16)

    assert {"I2"} == {v.invariant for v in found}


def test_admission_that_nobody_recorded_breaks_i2() -> None:
    log = opened()
    log.add("RunAdmitted", log.events[1].payload, run="run_b")

    assert_only("I2", log)
    assert [] == log.check(with_system=False)


def test_recorded_run_that_is_gone_breaks_i2() -> None:
    log = opened()
    recorded = {"admittedRunId": "run_b", "admissionHash": "sha256:00"}
    log.add("RunRecorded", recorded, run=SYSTEM_RUN_ID)

    assert_only("I2", log)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("CancellationRequested", {}),
        ("CancellationRequested", {"requestId": 7}),
        ("CancellationRequested", {"requestId": "r", "extra": 1}),
        ("SomethingNew", {}),
        ("RunCompleted", {"outputRef": {"ref": "sha256/../x", "sha256": "x", "size": 1}}),
        ("RunFailed", {"error": {"message": "no name"}}),
    ],
)
def test_payload_that_does_not_fit_breaks_i3(kind: str, payload: dict[str, Any]) -> None:
    log = opened()
    log.add(kind, payload)

    assert_only("I3", log)


def test_unreadable_bytes_break_i3() -> None:
    log = opened()
    log.add("RunCancelled", {"requestId": "r"})
    rows = log.rows()
    for body in (b"", b"\xc1", b"\x93\x01\x02", msgpack.packb([9] * 10), msgpack.packb({1: 2})):
        last = rows[-1]
        digest = sha256(rows[-2].hash + body).digest()
        broken = Row(last.position, last.run_id, last.sequence, None, last.type, body, digest)
        assert ["I3"] == [v.invariant for v in log.check([*rows[:-1], broken])], body


def test_skipped_epoch_breaks_i4() -> None:
    log = opened()
    log.epoch = 2
    log.up()

    assert_only("I4", log)


def test_event_of_another_epoch_breaks_i4() -> None:
    log = opened()
    log.epoch = 7
    log.end_run("RunFailed")

    assert_only("I4", log)


def test_event_after_the_supervisor_stopped_breaks_i4() -> None:
    log = opened()
    log.down()
    log.end_run("RunFailed")

    assert_only("I4", log)


def test_falling_clock_breaks_i5() -> None:
    log = opened()
    log.mono = 0
    log.end_run("RunFailed")

    assert_only("I5", log)


def test_clock_may_fall_between_epochs_and_the_wall_clock_anywhere() -> None:
    log = opened()
    log.mono = log.at = 0
    log.up()
    log.at = 0
    log.end_run("RunFailed")

    assert [] == log.check()


# -- blobs and limits -------------------------------------------------------------------------


def test_missing_and_altered_blobs_break_i31() -> None:
    log = opened()
    log.add("RunCompleted", {"outputRef": log.blob(b"\xa3abc")})
    path = list(log.blobs)[-1]
    assert [] == log.check()

    log.blobs[path] = b"\xa3abd"
    assert_only("I31", log)

    del log.blobs[path]
    assert_only("I31", log)


def test_value_over_the_inline_limit_breaks_i32() -> None:
    text = "x" * (INLINE_BYTES_MAX - 5)  # and 5 bytes of msgpack before it
    log = opened()
    log.add("RunCompleted", {"output": text})
    assert [] == log.check()

    log = opened()
    log.add("RunCompleted", {"output": text + "x"})
    assert_only("I32", log)


def test_long_error_text_breaks_i32() -> None:
    log = opened()
    log.add("RunFailed", {"error": {**ERROR, "message": "x" * 8_193}})

    assert_only("I32", log)


def test_planted_secret_breaks_i32() -> None:
    log = opened()
    log.add("RunCompleted", {"output": "my-secret-7"})

    assert_only("I32", log, canaries=[b"secret-7"])


def test_random_damage_never_stops_the_checker() -> None:
    rng = random.Random(20_241)
    clean = make_clean_log()
    rows = clean.rows()
    found = 0
    for _ in range(300):
        damaged = list(rows)
        index = rng.randrange(len(rows))
        row = damaged[index]
        body = bytearray(row.body)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        damaged[index] = Row(
            row.position, row.run_id, row.sequence, row.session_id, row.type, bytes(body), row.hash
        )
        found += bool(clean.check(damaged))
        del damaged[index]
        rng.shuffle(damaged[index : index + 3])
        assert clean.check(damaged) or index == len(rows) - 1

    assert 300 == found
