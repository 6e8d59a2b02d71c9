"""Sessions of tool.call and code.run steps, carried against the supervisor's twin."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from planaria.blobstore import BlobStore
from planaria.calls import current_call
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.protocol.payloads import Ref, read_field
from planaria.protocol.values import ValueType

from .memory_supervisor import (
    MemorySupervisor,
    MemoryTool,
    Process,
    SessionLog,
    call_step,
    carry,
    code_step,
    make_definition,
    make_delivery,
)


class Ticket(BaseModel):
    id: int
    due: datetime


VALUES = [
    (None, Any),
    (True, bool),
    (-0.0, float),
    (2**63, int),
    ("ein \x00 Text ✓", str),
    ([1, [2.5, None]], list),
    ({"b": 1, "a": {"ü": []}}, dict),
    (Ticket(id=1, due=datetime(2030, 1, 1, tzinfo=UTC)), Ticket),
    ((1, "x"), tuple[int, str]),
    (Decimal("1.10"), Decimal),
    (b"\x00\xff", bytes),
    ({1: {2, 3}}, dict[int, set[int]]),
]


def error_of(log: SessionLog) -> dict[str, Any]:
    assert log.end is not None and log.end.type == "harness.execute_step.failed", log.kinds()
    error: dict[str, Any] = log.end.payload["error"]
    return error


def output_of(log: SessionLog) -> Any:
    assert log.end is not None and log.end.type == "harness.execute_step.succeeded", log.end
    return read_field(log.end.payload, "output")


@pytest.mark.parametrize(("value", "annotation"), VALUES)
def test_every_kind_of_value_reaches_the_tool_and_the_log(
    value: Any, annotation: Any, tmp_path: Path
) -> None:
    kind = ValueType(annotation)
    got: list[Any] = []

    def echo(value: Any) -> Any:
        got.append(value)
        return value

    tool = MemoryTool("echo", echo, returns=kind, arguments={"value": kind})
    step = call_step("echo", {"value": "{{ input }}"})
    log = carry(step, make_definition(tool), tmp_path, input=kind.dump(value))

    assert [value] == got and type(value) is type(got[0])
    assert value == kind.load(output_of(log))
    assert ["tool_call.started", "tool_call.succeeded", "execute_step.succeeded"] == log.kinds()


def test_read_step_is_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.workers.link.LINGER_SECONDS", 60)

    async def run() -> list[list[Any]]:
        supervisor = MemorySupervisor()
        process = Process(supervisor, tmp_path, make_definition(MemoryTool("one", lambda: 1)))
        await process.carry(SessionLog(make_delivery(call_step("one"))))
        await process.stop()
        return supervisor.frames

    frames = asyncio.run(run())

    assert [1] == [len(frame) for frame in frames]
    assert 3 == len(frames[0][0].events)


def test_intent_of_an_effect_is_on_disk_before_it_happens(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    log = SessionLog(make_delivery(call_step("mail")))
    mail = MemoryTool("mail", lambda: seen.append(log.kinds()), effect="once")
    carry(call_step("mail"), make_definition(mail), tmp_path, log=log)

    assert [["tool_call.started"]] == seen


def test_process_carries_one_session_after_another(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        definition = make_definition(MemoryTool("double", lambda n: 2 * n))
        process = Process(MemorySupervisor(), tmp_path, definition)
        step = call_step("double", {"n": "{{ input }}"})
        outputs = []
        for n in range(3):
            log = SessionLog(make_delivery(step, input=n, session_id=f"hs_{n}"))
            outputs.append((await process.carry(log)).payload["output"])
        await process.stop()
        return outputs

    assert [0, 2, 4] == asyncio.run(run())


@dataclass
class Loud(Exception):
    """An exception whose text can't be made."""

    def __str__(self) -> str:
        raise ValueError


RAISED: list[tuple[BaseException, str]] = [
    (LookupError("no such ticket"), "no such ticket"),
    (TimeoutError("slow"), "slow"),
    (asyncio.CancelledError("by the tool"), "by the tool"),
    (SystemExit(3), "3"),
    (KeyboardInterrupt(), ""),
    (GeneratorExit(), ""),
    (StopIteration("over"), "over"),
    (RuntimeError("x" * 20_000), "x" * 100),
    (RuntimeError("a \ud800 surrogate"), "a ? surrogate"),
    (Loud(), "<its text can't be made: ValueError>"),
]


@pytest.mark.parametrize(("raised", "text"), RAISED, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_whatever_a_tool_raises_is_an_ordinary_failure(
    raised: BaseException, text: str, kind: str, tmp_path: Path
) -> None:
    def fail() -> None:
        raise raised

    async def fail_async() -> None:
        raise raised

    if kind == "async" and isinstance(raised, StopIteration):
        pytest.skip("Python itself turns it into a RuntimeError")
    tool = MemoryTool("fail", fail if kind == "sync" else fail_async)
    error = error_of(carry(call_step("fail"), make_definition(tool), tmp_path))

    assert (type(raised).__name__, "step_failed", True) == (
        error["name"],
        error["causeCode"],
        error["retriable"],
    )
    assert error["message"].startswith(text)


def test_result_that_cannot_be_recorded_is_a_failure_that_is_not_tried_again(
    tmp_path: Path,
) -> None:
    tool = MemoryTool("mail", lambda: {"at": object()}, effect="once")
    log = carry(call_step("mail"), make_definition(tool), tmp_path)

    assert ["tool_call.started", "tool_call.failed", "execute_step.failed"] == log.kinds()
    error = error_of(log)
    assert ("ValueRefusedError", False) == (error["name"], error["retriable"])
    assert "$.at" in error["message"]


def test_arguments_that_do_not_fit_start_nothing(tmp_path: Path) -> None:
    tool = MemoryTool("add", lambda n: n, arguments={"n": ValueType(int)})
    log = carry(call_step("add", {"n": "x"}), make_definition(tool), tmp_path)

    assert ["execute_step.failed"] == log.kinds()
    assert "$.n" in error_of(log)["message"]


@pytest.mark.parametrize(
    ("step", "cause", "text"),
    [
        (call_step("gone"), "runtime_config_error", "no tool 'gone'; there are: one"),
        (call_step("one", "{{ input / 0 }}"), "step_failed", "zero"),
        ({"id": "s", "uses": "dance", "with": {}}, "runtime_config_error", "dance"),
        (code_step("1 +"), "step_failed", "syntax"),
    ],
)
def test_step_that_cannot_run_says_why(
    step: dict[str, Any], cause: str, text: str, tmp_path: Path
) -> None:
    log = carry(step, make_definition(MemoryTool("one", lambda: 1)), tmp_path, input=1)
    error = error_of(log)

    assert cause == error["causeCode"]
    assert text in error["message"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tool_knows_its_call(kind: str, tmp_path: Path) -> None:
    def tell() -> Any:
        known = current_call()
        (known.scratch / "note").write_text("x")
        return [known.idempotency_key, known.step_path, known.attempt, str(known.scratch)]

    async def tell_async() -> Any:
        return tell()

    tool = MemoryTool("tell", tell if kind == "sync" else tell_async)
    log = carry(call_step("tell"), make_definition(tool), tmp_path, step_path="a[b].s", attempt=2)

    started = log.own_events()[0].payload
    scratch = tmp_path / "runs" / "run_1" / "harness" / "hs_1"
    assert [started["idempotencyKey"], "a[b].s", 2, str(scratch)] == output_of(log)
    assert (scratch / "note").exists()
    with pytest.raises(LookupError, match="outside of a tool call"):
        current_call()


def test_default_input_is_the_item_in_a_branch_also_when_null(tmp_path: Path) -> None:
    def run(**context: Any) -> Any:
        log = carry(code_step("input"), make_definition(), tmp_path, input="run", context=context)
        return output_of(log)

    assert "run" == run()
    assert "item" == run(inBranch=True, item={"v": "item"})
    assert run(inBranch=True) is None


def test_expressions_see_steps_and_values_from_the_blob_store(tmp_path: Path) -> None:
    ref = BlobStore(tmp_path / "artifacts" / "blobs").write(b"\xa3abc")
    steps = {
        "one": {"lastOutput": {"r": ref}},
        "many": {"allVisits": [{"v": 1}, {"v": 2}], "lastOutput": {"v": 2}},
    }
    template = {
        "text": "<{{ steps.one.output }}>",
        "visits": "{{ steps.many.allVisits }}",
        "last": "{{ steps.many.lastOutput }}",
        "id": "{{ workflow.runId }}",
    }
    step = code_step("input", input=template)
    log = carry(step, make_definition(), tmp_path, context={"steps": steps})

    assert {"text": "<abc>", "visits": [1, 2], "last": 2, "id": "run_1"} == output_of(log)


def test_large_result_goes_to_the_blob_store(tmp_path: Path) -> None:
    text = "x" * (INLINE_BYTES_MAX + 1)
    log = carry(call_step("big"), make_definition(MemoryTool("big", lambda: text)), tmp_path)

    output = output_of(log)
    assert isinstance(output, Ref)
    stored = BlobStore(tmp_path / "artifacts" / "blobs").read(output.fields)
    assert stored.endswith(text.encode())


def test_sensitive_step_leaves_no_value_in_the_log(tmp_path: Path) -> None:
    def fail(key: str) -> None:
        raise ValueError(f"bad {key}")

    secret = "the-secret"
    echo = MemoryTool("echo", lambda key: key)
    definition = make_definition(echo, MemoryTool("fail", fail))
    for name in ("echo", "fail"):
        step = call_step(name, {"key": "{{ input }}"})
        log = carry(step, definition, tmp_path, input=secret, sensitive=True)

        assert secret.encode() not in b"".join(log.bodies)
        assert isinstance(read_field(log.own_events()[0].payload, "args"), Ref)


def test_tool_that_changes_its_arguments_changes_no_record(tmp_path: Path) -> None:
    def spoil(items: list[int]) -> int:
        items.append(9)
        return len(items)

    definition = make_definition(MemoryTool("spoil", spoil))
    for _ in range(2):
        log = carry(call_step("spoil", {"items": [1]}), definition, tmp_path)
        assert {"items": [1]} == log.own_events()[0].payload["args"]
        assert 2 == output_of(log)


def test_inherited_result_is_taken_over_and_nothing_is_done(tmp_path: Path) -> None:
    sent: list[str] = []
    mail = MemoryTool("mail", lambda to: sent.append(to), effect="once")
    step = call_step("mail", {"to": "a"})
    first = carry(step, make_definition(mail), tmp_path)
    key = first.own_events()[0].payload["idempotencyKey"]
    again = carry(
        step,
        make_definition(mail),
        tmp_path,
        attempt=2,
        session_id="hs_2",
        inherited={key: {"v": {"id": 7}}},
    )

    assert ["a"] == sent
    assert {"id": 7} == output_of(again)
    assert first.kinds() == again.kinds()
    assert key == again.own_events()[0].payload["idempotencyKey"]


def test_code_calls_tools_and_catches_their_failures(tmp_path: Path) -> None:
    def look(n: int, scale: int = 1) -> int:
        if n < 0:
            raise ValueError("negative")
        return n * scale

    source = """
total = 0
for n in [1, 2, -1]:
    try:
        total += look(n, scale=10)
    except ValueError as error:
        total += 1000
try:
    look(1, 2, 3)
except TypeError:
    total += 10000
total
"""
    look_tool = MemoryTool("look", look)
    log = carry(code_step(source, "look"), make_definition(look_tool), tmp_path)

    assert 11030 == output_of(log)
    opened = [e.payload for e in log.own_events() if e.type.endswith("tool_call.started")]
    assert ["c0", "c1", "c2"] == [payload["position"] for payload in opened]
    assert [{"n": 1, "scale": 10}, "code"] == [opened[0]["args"], opened[0]["caller"]]


def test_input_of_a_called_step_is_recorded_beside_its_arguments(tmp_path: Path) -> None:
    step = call_step("same", {"value": "{{ input }}"}, input={"why": "{{ input }}"})
    number = ValueType(int)
    tool = MemoryTool("same", lambda value: value, returns=number, arguments={"value": number})
    log = carry(step, make_definition(tool), tmp_path, input=3)

    started = log.own_events()[0].payload
    assert ({"value": 3}, {"why": 3}) == (started["args"], started["input"])
