"""What a step says of a tool that got, or gave, something wrong: the tool's name, and where."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from planaria.protocol.errors import RecordedError
from planaria.tools import tool
from planaria.workers.agent_loop import run_agent

from .memory_journal import Log, MemoryJournal
from .memory_supervisor import call_step, carry, code_step, make_definition
from .scripted_model import ScriptedModel, call, say


@tool(effect="read")
def repeat(text: str) -> str:
    """Returns the text."""
    return text


@tool(effect="read")
def measure() -> int:
    """Returns no number."""
    return "many"  # type: ignore[return-value]


@tool(effect="read")
async def divide() -> float:
    """Returns what JSON doesn't have."""
    return float("nan")


TOOLS: list[Any] = [repeat, measure, divide]


def say_why(step: dict[str, Any], folder: Path) -> str:
    log = carry(step, make_definition(*TOOLS), folder)
    assert log.end is not None and log.end.type == "harness.execute_step.failed"
    return str(log.end.payload["error"]["message"])


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (call_step("repeat", {"text": 5}), "arguments of tool 'repeat' don't fit, at $.text: "),
        (call_step("repeat", {"words": "a"}), "arguments of tool 'repeat' don't fit, at $.words: "),
        (call_step("measure"), "result of tool 'measure' can't be recorded exactly, at $: "),
        (call_step("divide"), "result of tool 'divide' can't be recorded exactly, at $: NaN"),
        (code_step("repeat(text=5)", "repeat"), "arguments of tool 'repeat' don't fit, at $.text"),
        (code_step("measure()", "measure"), "result of tool 'measure' can't be recorded exactly"),
    ],
)
def test_tool_is_named(step: dict[str, Any], text: str, tmp_path: Path) -> None:
    assert text in say_why(step, tmp_path)


def test_code_may_catch_an_argument_that_does_not_fit(tmp_path: Path) -> None:
    source = "try:\n    repeat(text=5)\nexcept TypeError:\n    out = 'caught'\nout"
    log = carry(code_step(source, "repeat"), make_definition(*TOOLS), tmp_path)

    assert log.end is not None and log.end.payload["output"] == "caught"


def test_tool_of_an_agent_is_named() -> None:
    def locate() -> Any:
        return float("nan")

    model = ScriptedModel([call("locate", "a")], say("done"))
    with pytest.raises(RecordedError, match="result of tool 'locate' can't be recorded exactly"):
        _run(Agent(model, tools=[locate]))


def _run(agent: Agent[Any, Any]) -> None:
    async def session() -> None:
        journal = MemoryJournal(Log())
        try:
            await run_agent(agent, "go", journal=journal, session_id="hs_1", run_id="run_1")
        finally:
            await journal.finish()

    asyncio.run(session())


def test_limit_of_memory_says_how_much_and_what_to_do(tmp_path: Path) -> None:
    message = say_why(code_step("'a' * 10**9"), tmp_path)

    assert f"{64 << 20} bytes of memory, the most that a code step gets" in message
    assert "work on less at a time" in message
