"""Model requests of a run with a budget: reserved before they are made, and when made again."""

import asyncio
from pathlib import Path
from typing import Any

from pydantic_ai.settings import ModelSettings

from .memory_supervisor import (
    MemorySupervisor,
    MemoryTool,
    Process,
    SessionLog,
    carry,
    make_definition,
    make_delivery,
)
from .scripted_model import ScriptedModel, call, say

STEP = {
    "id": "s",
    "uses": "ai.generate",
    "with": {"model": "fast", "prompt": "go " * 300, "tools": ["look"]},
}
TURNS = ([call("look", "a")], say("done"))


def generate(
    tmp_path: Path, log: SessionLog | None = None, **more: Any
) -> tuple[SessionLog, ScriptedModel]:
    model = ScriptedModel(*TURNS)
    about: dict[str, Any] = {"budget": {"maxModelCalls": 5}, **more}
    log = log or SessionLog(make_delivery(STEP, **about))
    definition = make_definition(MemoryTool("look", lambda: 1), models={"fast": model})
    carry(STEP, definition, tmp_path, log=log)
    return log, model


def reserves(log: SessionLog, kind: str = "harness.model.called") -> list[Any]:
    return [e.payload.get("reserve") for e in log.own_events() if e.type == kind]


def test_intent_says_what_the_request_may_use(tmp_path: Path) -> None:
    log, _ = generate(tmp_path)

    first, second = reserves(log)
    assert ("function", 4_096) == (first["provider"], first["outputTokens"])
    assert first["model"].startswith("function:")
    assert 300 < first["inputTokens"] < second["inputTokens"] < 2_000


def test_limit_of_the_settings_is_the_reserve(tmp_path: Path) -> None:
    model = ScriptedModel(*TURNS)
    model._settings = ModelSettings(max_tokens=100)
    log = SessionLog(make_delivery(STEP, budget={"maxTokens": 10}))
    definition = make_definition(MemoryTool("look", lambda: 1), models={"fast": model})
    carry(STEP, definition, tmp_path, log=log)

    assert [100, 100] == [reserve["outputTokens"] for reserve in reserves(log)]


def test_without_a_budget_nothing_is_reserved(tmp_path: Path) -> None:
    log, _ = generate(tmp_path, budget=None)

    assert [None, None] == reserves(log)


def test_request_goes_out_after_its_reserve_is_on_disk(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    log = SessionLog(make_delivery(STEP, budget={"maxTokens": 10}))

    def turn(_: Any) -> Any:
        seen.append(log.kinds())
        return say("done")

    definition = make_definition(
        MemoryTool("look", lambda: 1), models={"fast": ScriptedModel(turn)}
    )
    carry(STEP, definition, tmp_path, log=log)

    assert [["model.called"]] == seen


def test_refused_reserve_asks_no_model(tmp_path: Path) -> None:
    model = ScriptedModel(*TURNS)

    async def run() -> int:
        supervisor = MemorySupervisor()
        definition = make_definition(MemoryTool("look", lambda: 1), models={"fast": model})
        process = Process(supervisor, tmp_path, definition)
        log = SessionLog(make_delivery(STEP, budget={"maxTokens": 10}))
        supervisor.is_holding = True
        supervisor.deliver(log)
        async with asyncio.timeout(5):
            while not supervisor.held:
                await asyncio.sleep(0.001)
        supervisor.refuse(log, "budget_exceeded")
        async with asyncio.timeout(5):
            await asyncio.shield(process.worker.ended)
        return await process.stop()

    assert 3 == asyncio.run(run())
    assert [] == model.requests


def test_repeated_request_is_reported_before_it_is_made_again(tmp_path: Path) -> None:
    whole, _ = generate(tmp_path)
    for reported in range(whole.reported):
        log = whole.cut(reported)
        was_open = any(log.own_events()) and log.kinds()[-1] == "model.called"
        seen = reserves(log)
        log, model = generate(tmp_path, log)

        assert log.end is not None and whole.end is not None
        assert whole.end.payload == log.end.payload
        again = reserves(log, "harness.model.repeated")
        assert (seen[-1:] if was_open else []) == again, reported
        assert reserves(whole) == reserves(log)
