"""A managed call without an outcome is looked up: only a clear answer lets its session go on."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset, StdioTransport

from planaria import AgentWorker, NeverHappened, Succeeded, Unknown
from planaria.protocol.values import ValueType

from .lost_calls import (
    CALLERS,
    DAY,
    OTHER_DAY,
    Outside,
    after,
    answers_of,
    carry,
    definition_of,
    dispatch,
    output_of,
    resume,
    step_of,
)
from .memory_supervisor import (
    MemorySupervisor,
    MemoryTool,
    Process,
    ProcessExit,
    SessionLog,
    make_definition,
    make_delivery,
)
from .scripted_model import ScriptedModel, call, say


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("caller", CALLERS)
def test_found_result_is_recorded_and_nothing_performed(
    caller: str, is_async: bool, tmp_path: Path
) -> None:
    log, (call_id, key) = dispatch(caller, tmp_path)
    outside = Outside(Succeeded(OTHER_DAY), is_async=is_async)
    resume(log, outside, tmp_path)

    assert "2025-01-01" == output_of(log)
    assert [] == outside.sent
    assert [key] == outside.asked
    assert [{"callId": call_id, "answer": "succeeded"}] == answers_of(log)
    assert ["tool_call.reattached", "tool_call.succeeded", "execute_step.succeeded"] == after(log)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("caller", CALLERS)
def test_call_that_never_happened_is_performed_with_its_id_and_key(
    caller: str, is_async: bool, tmp_path: Path
) -> None:
    log, dispatched = dispatch(caller, tmp_path)
    outside = Outside(NeverHappened(), is_async=is_async)
    resume(log, outside, tmp_path)

    assert "2024-05-06" == output_of(log)
    assert [dispatched] == outside.sent
    assert [dispatched[1]] == outside.asked
    assert [{"callId": dispatched[0], "answer": "never_happened"}] == answers_of(log)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Unknown("the archive is closed"), "can't be looked up: the archive is closed"),
        (Unknown(), "can't be looked up; whether it has happened is unknown"),
        (OSError("no route"), "has a lookup that failed with OSError: no route"),
        (SystemExit(3), "has a lookup that failed with SystemExit: 3"),
        (StopIteration("x"), "has a lookup that failed with"),
        (asyncio.CancelledError("y"), "has a lookup that failed with CancelledError"),
        (None, "has a lookup that returned a NoneType: Succeeded, NeverHappened or Unknown was"),
        ("never_happened", "has a lookup that returned a str"),
        (NeverHappened, "has a lookup that returned a type"),
        (Succeeded("yesterday"), "has a lookup that failed with"),
        (Succeeded(object()), "has a lookup that failed with"),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],  # an address differs each time
)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("caller", CALLERS)
def test_anything_else_is_unknown_and_the_session_waits(
    caller: str,
    is_async: bool,
    answer: Any,
    reason: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    log, (call_id, key) = dispatch(caller, tmp_path)
    outside = Outside(answer, is_async=is_async)
    resume(log, outside, tmp_path)

    assert [] == outside.sent
    assert [{"callId": call_id, "answer": "unknown"}] == answers_of(log)
    assert ["tool_call.reattached"] == after(log)
    assert log.end is None
    printed = capfd.readouterr().err
    assert f"tool 'send' (idempotency key {key}) {reason}" in printed


def test_managed_tool_without_a_lookup_is_unknown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, (call_id, _) = dispatch("step", tmp_path)
    tool = MemoryTool("send", lambda to: DAY, "managed")
    carry(log, make_definition(tool), tmp_path)

    assert [{"callId": call_id, "answer": "unknown"}] == answers_of(log)
    assert "has no lookup" in capfd.readouterr().err


def test_lookup_of_a_sensitive_step_prints_no_values(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for answer in (OSError("pin 1234"), Unknown("pin 1234"), Succeeded("pin 1234")):
        log, _ = dispatch("step", tmp_path, sensitive=True)
        resume(log, Outside(answer), tmp_path)

    printed = capfd.readouterr().err
    assert 3 == printed.count("a person has to say")
    assert "OSError" in printed and "1234" not in printed


def test_lookup_may_be_a_callable_that_is_awaited_later(tmp_path: Path) -> None:
    class Archive:
        async def __call__(self, key: str) -> Any:
            return Succeeded(OTHER_DAY)

    log, _ = dispatch("step", tmp_path)
    tool = MemoryTool(
        "send", lambda to: DAY, "managed", reattach=Archive(), returns=ValueType(type(DAY))
    )
    carry(log, make_definition(tool), tmp_path)

    assert "2025-01-01" == output_of(log)


def test_first_dispatch_and_recorded_outcomes_are_not_looked_up(tmp_path: Path) -> None:
    outside = Outside(OSError("not asked"))
    log = SessionLog(make_delivery(step_of("code")))
    definition = definition_of(outside, "managed")
    carry(log, definition, tmp_path)
    log = log.cut(log.kinds().index("tool_call.succeeded") + 1)
    carry(log, definition, tmp_path)

    assert "2024-05-06" == output_of(log)
    assert [] == outside.asked
    assert 1 == len(outside.sent)


def test_tool_of_an_mcp_server_is_looked_up(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    server = [str(Path(__file__).with_name("mcp_echo_server.py")), str(notes)]

    def definition(reattach: Callable[[str], Any]) -> Any:
        model = ScriptedModel(
            [call("send", "x", text="a")], lambda messages: say(messages[-1].parts[-1].content)
        )
        transport = StdioTransport(sys.executable, server)
        agent = Agent(model, toolsets=[MCPToolset(transport, id="echo", init_timeout=40)])
        worker = AgentWorker(agent, effects={"send": "managed"}, reattach={"send": reattach})
        return make_definition(models={"own": worker})

    whole = SessionLog(make_delivery(step_of("own agent")))
    carry(whole, definition(lambda key: Unknown()), tmp_path)
    assert "sent a" == output_of(whole)
    log = whole.cut(whole.kinds().index("tool_call.started") + 1)
    carry(log, definition(lambda key: Succeeded("found")), tmp_path)

    assert "found" == output_of(log)
    assert 1 == notes.read_text().split().count("send")


# Stopping


class Waiting(Outside):
    """A lookup that takes until it is released."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer, is_async=True)
        self.begun, self.release = asyncio.Event(), asyncio.Event()

    async def look_up_later(self, key: str) -> Any:
        self.begun.set()
        await self.release.wait()
        return self.look_up(key)


def stop_while_asking(
    caller: str, answer: Any, reason: str, directory: Path
) -> tuple[SessionLog, Waiting]:
    log, _ = dispatch(caller, directory)

    async def run() -> Waiting:
        outside = Waiting(answer)
        supervisor = MemorySupervisor()
        process = Process(supervisor, directory, definition_of(outside, "managed"))
        carrying = asyncio.ensure_future(process.carry(log))
        await asyncio.wait_for(outside.begun.wait(), 5)
        supervisor.stop(reason)
        await asyncio.sleep(0)
        outside.release.set()
        if reason == "shutdown":
            with pytest.raises(ProcessExit):
                await carrying
        else:
            await carrying
        await process.stop()
        return outside

    return log, asyncio.run(run())


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("answer", [Succeeded(DAY), NeverHappened(), Unknown()], ids=repr)
def test_put_away_session_performs_nothing_more(answer: Any, caller: str, tmp_path: Path) -> None:
    log, outside = stop_while_asking(caller, answer, "shutdown", tmp_path)

    assert [] == after(log)
    assert [] == outside.sent


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("answer", [NeverHappened(), Unknown()], ids=repr)
def test_cancelled_session_gives_its_lookup_up(answer: Any, caller: str, tmp_path: Path) -> None:
    log, outside = stop_while_asking(caller, answer, "cancel", tmp_path)

    assert ["execute_step.failed"] == after(log)
    assert [] == outside.sent


@pytest.mark.parametrize("caller", CALLERS)
def test_cancelled_session_ends_also_while_a_person_is_waited_for(
    caller: str, tmp_path: Path
) -> None:
    log, _ = dispatch(caller, tmp_path)

    async def run() -> None:
        supervisor = MemorySupervisor()

        def hear(log: SessionLog, kind: str, payload: dict[str, Any]) -> None:
            if payload.get("answer") == "unknown":
                supervisor.stop("cancel")

        supervisor.on_recorded = hear
        process = Process(supervisor, tmp_path, definition_of(Outside(Unknown()), "managed"))
        await process.carry(log)
        await process.stop()

    asyncio.run(run())

    assert ["tool_call.reattached", "execute_step.failed"] == after(log)


def test_found_result_is_never_recorded_as_a_failure_of_a_cancelled_session(
    tmp_path: Path,
) -> None:
    ends = set()
    for turns in range(16):  # of the event loop between the answer's commit and the stop
        log, _ = dispatch("code", tmp_path)

        def stop(supervisor: MemorySupervisor, turns: int) -> None:
            if turns == 0:
                supervisor.stop("cancel")
            else:
                asyncio.get_running_loop().call_soon(stop, supervisor, turns - 1)

        def hear(
            supervisor: MemorySupervisor, kind: str, payload: dict[str, Any], turns: int = turns
        ) -> None:
            if "answer" in payload:
                stop(supervisor, turns)

        resume(log, Outside(Succeeded(DAY)), tmp_path, on_recorded=hear)
        ends.add(tuple(after(log)[1:]))

    given_up, kept = "execute_step.failed", "tool_call.succeeded"
    assert {(given_up,), (kept, given_up)} == ends - {(kept, "execute_step.succeeded")}
