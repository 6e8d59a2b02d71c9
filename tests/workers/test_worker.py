"""The worker: agents in sessions, and how a session is cancelled, put away or refused."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from planaria.protocol.payloads import read_field

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


def error_of(log: SessionLog) -> dict[str, Any]:
    assert log.end is not None and log.end.type == "harness.execute_step.failed", log.kinds()
    error: dict[str, Any] = log.end.payload["error"]
    return error


def output_of(log: SessionLog) -> Any:
    assert log.end is not None and log.end.type == "harness.execute_step.succeeded", log.end
    return read_field(log.end.payload, "output")


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
