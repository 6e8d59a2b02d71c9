"""Sessions whose process died in a tool, and the outside world that is asked what came of it.

Each is carried once and loses all that came after the call's intent, as with a killed process.
"""

import asyncio
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from pydantic_ai import Agent

from planaria import AgentWorker
from planaria.calls import current_call
from planaria.protocol.events import Event, encode_event
from planaria.protocol.values import ValueType

from .memory_supervisor import (
    RUN_ID,
    MemorySupervisor,
    MemoryTool,
    Process,
    ProcessExit,
    SessionLog,
    call_step,
    code_step,
    make_definition,
    make_delivery,
)
from .scripted_model import ScriptedModel, call, say

DAY = date(2024, 5, 6)
OTHER_DAY = date(2025, 1, 1)
CALLERS = ["step", "code", "agent", "own agent"]


class Outside:
    """The world that mails go to: what was sent, under which key, and what it says of a key."""

    def __init__(self, answer: Any = None, *, is_async: bool = False) -> None:
        self.answer = answer
        self.sent: list[tuple[str, str]] = []  # call id and key
        self.asked: list[str] = []
        self._is_async = is_async

    def tool(self, effect: str) -> MemoryTool:
        def send(to: str) -> date:
            context = current_call()
            self.sent.append((context.call_id, context.idempotency_key))
            return DAY

        lookup = None
        if effect == "managed":
            lookup = self.look_up_later if self._is_async else self.look_up
        return MemoryTool("send", send, effect, reattach=lookup, returns=ValueType(date))

    def look_up(self, key: str) -> Any:
        self.asked.append(key)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    async def look_up_later(self, key: str) -> Any:
        await asyncio.sleep(0)
        return self.look_up(key)


def step_of(caller: str) -> dict[str, Any]:
    if caller == "step":
        return call_step("send", {"to": "a"})
    if caller == "code":
        return code_step('send(to="a")', "send")
    asked = {"model": caller.split()[0], "prompt": "go", "tools": ["send"]}
    if caller == "own agent":
        del asked["tools"]
    return {"id": "s", "uses": "ai.generate", "with": asked}


def definition_of(outside: Outside, effect: str) -> Any:
    def model() -> ScriptedModel:
        return ScriptedModel(
            [call("send", "x", to="a")], lambda messages: say(messages[-1].parts[-1].content)
        )

    tool = outside.tool(effect)
    agent = Agent(model())
    agent.tool_plain(tool.function)
    lookups = {} if tool.reattach is None else {"send": tool.reattach}
    own = AgentWorker(agent, effects={"send": effect}, reattach=lookups)
    return make_definition(tool, models={"agent": model(), "own": own})


def carry(
    log: SessionLog,
    definition: Any,
    directory: Path,
    on_recorded: Callable[[MemorySupervisor, str, dict[str, Any]], None] | None = None,
) -> SessionLog:
    """Lets a process carry a session; it is stopped when an effect is found to be unknown."""

    async def run() -> None:
        supervisor = MemorySupervisor()

        def hear(log: SessionLog, kind: str, payload: dict[str, Any]) -> None:
            if payload.get("answer") == "unknown":
                supervisor.stop("shutdown")
            if on_recorded is not None:
                on_recorded(supervisor, kind, payload)

        supervisor.on_recorded = hear
        process = Process(supervisor, directory, definition)
        try:
            await process.carry(log)
        except ProcessExit as ended:
            assert 0 == ended.args[0]
        await process.stop()
        assert [] == supervisor.refusals

    asyncio.run(run())
    return log


def dispatch(
    caller: str, directory: Path, effect: str = "managed", **more: Any
) -> tuple[SessionLog, tuple[str, str]]:
    """Returns the log of a session whose process died in the tool, and the call's id and key."""
    outside = Outside()
    whole = SessionLog(make_delivery(step_of(caller), **more))
    carry(whole, definition_of(outside, effect), directory)
    assert whole.end is not None, whole.kinds()
    return whole.cut(whole.kinds().index("tool_call.started") + 1), outside.sent[0]


def resume(
    log: SessionLog, outside: Outside, directory: Path, effect: str = "managed", **more: Any
) -> SessionLog:
    return carry(log, definition_of(outside, effect), directory, **more)


def after(log: SessionLog) -> list[str]:
    """Returns the kinds of what the last process reported of calls and of its end."""
    kinds = log.kinds()
    place = len(kinds) - 1 - kinds[::-1].index("session.resumed")
    return [k for k in kinds[place + 1 :] if k.startswith(("tool_call", "execute_step"))]


def output_of(log: SessionLog) -> Any:
    assert log.end is not None, log.kinds()
    return log.end.payload["output"]


def answers_of(log: SessionLog) -> list[dict[str, Any]]:
    return [e.payload for e in log.own_events() if e.type.endswith("reattached")]


def lose(log: SessionLog, call_id: str) -> None:
    """Lets the supervisor mark a call, as it does when its process has died."""
    add(log, "harness.tool_call.unknown", callId=call_id, since=1, evidence="its process died")


def resolve(log: SessionLog, call_id: str, resolution: str, **more: Any) -> None:
    """Lets a person say what became of a call."""
    about = {"callId": call_id, "sessionId": "hs_1", "resolution": resolution, "by": "ada"}
    add(log, "EffectResolved", **about, **more)


def add(log: SessionLog, kind: str, **payload: Any) -> None:
    sequence = log.events()[-1].sequence + 1
    log.bodies.append(encode_event(Event(RUN_ID, sequence, kind, 1, 1, 1, "hs_1", None, payload)))
