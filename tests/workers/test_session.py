"""Sessions of tool.call, code.run and ai.generate steps, carried against the supervisor's twin."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

from planaria.blobstore import BlobStore
from planaria.calls import current_call
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.protocol.payloads import Ref, read_field
from planaria.protocol.values import ValueType

from .memory_supervisor import (
    MemorySupervisor,
    MemoryTool,
    Process,
    ProcessExit,
    SessionLog,
    call_step,
    carry,
    code_step,
    make_definition,
    make_delivery,
)
from .scripted_model import ScriptedModel, call, say


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


def tools_of(did: list[Any]) -> Any:
    def look(name: str) -> str:
        did.append(name)
        return name.upper()

    return make_definition(
        MemoryTool("look", look),
        models={
            "fast": ScriptedModel([call("look", "a", name="x")], say("done")),
            "own": Agent(ScriptedModel([call("look", "a", name="y")], say("mine"))),
        },
    )


def generate_step(model: str, **asked: Any) -> dict[str, Any]:
    asked = {"model": model, "prompt": "Say {{ input }}", "tools": ["look"], **asked}
    return {"id": "s", "uses": "ai.generate", "with": asked}


@pytest.mark.parametrize(("slot", "output"), [("fast", "done"), ("own", "mine")])
def test_agent_runs_in_a_session(slot: str, output: str, tmp_path: Path) -> None:
    did: list[Any] = []
    log = carry(generate_step(slot), tools_of(did), tmp_path, input="hello")

    assert output == output_of(log)
    assert 1 == len(did)
    responded = [e.payload for e in log.own_events() if e.type == "harness.model.responded"]
    assert [1, 2] == [payload["turn"] for payload in responded]
    assert all(type(n) is int for payload in responded for n in payload["usage"].values())


@pytest.mark.parametrize(
    ("slot", "text"),
    [
        ("none", "no model slot 'none'; there are: fast, key, number, own, package"),
        ("number", "holds a int"),
        ("key", "OPENAI_API_KEY"),
        ("package", "package"),
    ],
)
def test_model_that_is_not_set_up_is_named(
    slot: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    definition = tools_of([])
    definition.models.update(number=3, key="openai:gpt-5", package="nobody:model")
    error = error_of(carry(generate_step(slot), definition, tmp_path))

    assert ("runtime_config_error", False) == (error["causeCode"], error["retriable"])
    assert slot in error["message"]
    if slot not in ("key", "package"):  # their texts are pydantic-ai's, and say what is missing
        assert text in error["message"]


def test_output_that_never_fits_is_a_schema_error(tmp_path: Path) -> None:
    model = ScriptedModel(*[say("no")] * 5)
    step = generate_step("fast", tools=[])
    step["output"] = {"mode": "choice", "values": ["a", "b"]}
    step["onFailure"] = {"repair": {"maxAttempts": 1}}
    log = carry(step, make_definition(models={"fast": model}), tmp_path)

    assert "step_schema_error" == error_of(log)["causeCode"]


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("effect", ["read", "once"])
def test_cancelled_session_records_what_its_effects_did(effect: str, tmp_path: Path) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await release.wait()
        return "sent"

    async def run() -> list[str]:
        supervisor = MemorySupervisor()
        tool = MemoryTool("work", work, effect=effect)
        process = Process(supervisor, tmp_path, make_definition(tool))
        log = SessionLog(make_delivery(code_step("work()\nwork()", "work")))
        carrying = asyncio.ensure_future(process.carry(log))
        await begun.wait()
        supervisor.stop("cancel")
        if effect == "once":
            await asyncio.sleep(0)
            release.set()
        await carrying
        assert "cancelled" == error_of(log)["causeCode"]
        assert 0 == await process.stop()
        return log.kinds()

    ended = ["tool_call.succeeded"] if effect == "once" else []
    assert ["tool_call.started", *ended, "execute_step.failed"] == asyncio.run(run())


def test_cancelled_session_gives_up_an_effect_that_takes_too_long(tmp_path: Path) -> None:
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    async def run() -> list[str]:
        supervisor = MemorySupervisor()
        definition = make_definition(MemoryTool("hang", hang, effect="once"))
        process = Process(supervisor, tmp_path, definition, effects_wait_seconds=0.01)
        log = SessionLog(make_delivery(call_step("hang")))
        carrying = asyncio.ensure_future(process.carry(log))
        await wait_for(lambda: log.kinds() == ["tool_call.started"])
        supervisor.stop("cancel")
        await carrying
        assert 0 == await process.stop()
        return log.kinds()

    assert ["tool_call.started", "execute_step.failed"] == asyncio.run(run())


def test_put_away_session_finishes_its_call_and_starts_no_other(tmp_path: Path) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await release.wait()

    async def run() -> list[str]:
        supervisor = MemorySupervisor()
        definition = make_definition(MemoryTool("work", work, effect="once"))
        process = Process(supervisor, tmp_path, definition)
        log = SessionLog(make_delivery(code_step("work()\nwork()", "work")))
        carrying = asyncio.ensure_future(process.carry(log))
        await begun.wait()
        supervisor.stop("shutdown")
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(ProcessExit) as ended:
            await carrying
        assert 0 == ended.value.args[0]
        await process.stop()
        return log.kinds()

    assert ["tool_call.started", "tool_call.succeeded"] == asyncio.run(run())


def test_refused_process_does_nothing_more(tmp_path: Path) -> None:
    done: list[int] = []

    async def run() -> int:
        supervisor = MemorySupervisor()
        tool = MemoryTool("work", lambda: done.append(1), effect="once")
        process = Process(supervisor, tmp_path, make_definition(tool))
        log = SessionLog(make_delivery(call_step("work")))
        supervisor.is_holding = True
        carrying = asyncio.ensure_future(process.carry(log))
        await wait_for(lambda: bool(supervisor.held))
        supervisor.refuse(log, "stale_incarnation")
        with pytest.raises(ProcessExit) as ended:
            await carrying
        await process.stop()
        return int(ended.value.args[0])

    assert 3 == asyncio.run(run())
    assert [] == done


def test_process_gets_the_environment_and_folder_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANARIA_TEST_KEY", "old")
    monkeypatch.chdir("/")
    tell = MemoryTool("tell", lambda: [os.environ["PLANARIA_TEST_KEY"], os.getcwd()])
    delivery = make_delivery(call_step("tell"))
    delivery["environment"] = {"PLANARIA_TEST_KEY": "new"}
    delivery["source"] = {"kind": "memory", "cwd": str(tmp_path)}
    log = carry(call_step("tell"), make_definition(tell), tmp_path, log=SessionLog(delivery))

    assert ["new", str(tmp_path)] == output_of(log)
