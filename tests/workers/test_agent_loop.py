"""The agent loop: values, effects, timeouts, model slots, and the agents of ai.generate steps."""

import asyncio
import datetime
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, FunctionToolset, RunContext, ToolReturn
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.usage import RunUsage

from planaria.protocol.errors import RecordedError, UsageError, ValueRefusedError
from planaria.protocol.findings import Finding
from planaria.protocol.values import ValueType
from planaria.workers.agent_codec import (
    TAG,
    RequestLog,
    decode_outcome,
    dump_result,
    encode_args,
    encode_outcome,
    label_calls,
    return_annotation,
)
from planaria.workers.agent_effects import ToolEffects
from planaria.workers.agent_loop import AgentOutcome, dump_output, run_agent
from planaria.workers.agent_step import StepOutputError, prompt_with_input, run_generate

sys.path.append(str(Path(__file__).parent))
from memory_journal import Log, MemoryJournal  # noqa: E402
from scripted_model import ScriptedModel, call, say  # noqa: E402


class Point(BaseModel):
    x: int
    at: datetime.datetime


NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


def run(agent: Agent[Any, Any], journal: MemoryJournal, **options: Any) -> AgentOutcome:
    async def session() -> AgentOutcome:
        try:
            return await run_agent(
                agent, "go", journal=journal, session_id="hs_1", run_id="run_1", **options
            )
        finally:
            await journal.finish()

    return asyncio.run(session())


def run_tool(function: Any, log: Log | None = None, **options: Any) -> tuple[Log, MemoryJournal]:
    """Runs an agent whose model calls the function once, without arguments."""
    model = ScriptedModel([call(function.__name__, "a")], say("done"))
    log = log or Log()
    journal = MemoryJournal(log)
    run(Agent(model, tools=[function]), journal, **options)
    return log, journal


# Values


def test_declared_result_is_recorded_in_its_json_form() -> None:
    def locate() -> Point:
        return Point(x=1, at=NOON)

    log, _ = run_tool(locate)

    assert {"x": 1, "at": "2024-05-01T12:00:00Z"} == log.result("t1.0")


def test_result_that_changes_silently_is_refused_with_its_path() -> None:
    def measure() -> Any:
        return {"values": [1.0, float("nan")]}

    log = Log()
    with pytest.raises(RecordedError, match=r"\$\.values\[1\]") as first:
        run_tool(measure, log)
    with pytest.raises(RecordedError) as second:
        run_tool(measure, log)

    assert "ValueRefusedError" == first.value.name
    assert str(first.value) == str(second.value)


@pytest.mark.parametrize("value", [{1, 2}, NOON, (1, 2), b"x", {1: 2}, object()])
def test_undeclared_result_has_to_be_plain_json(value: Any) -> None:
    def give() -> Any:
        return value

    with pytest.raises(RecordedError) as refused:
        run_tool(give)

    assert "ValueRefusedError" == refused.value.name


def test_content_for_the_model_passes_and_comes_back() -> None:
    def draw() -> Any:
        return ToolReturn([BinaryContent(b"\x00\x01", media_type="image/png")], content="look")

    log, _ = run_tool(draw)
    _, replay = run_tool(draw, log)

    assert TAG in log.result("t1.0")
    assert [] == replay.performed


def test_map_that_looks_like_a_file_stays_a_map() -> None:
    looks = {"kind": "image-url", "url": "https://example.org/a.png", "mine": 1}

    def fetch() -> dict[str, Any]:
        return looks

    model = ScriptedModel([call("fetch", "a")], say("done"))
    log = Log()
    for _ in range(2):
        outcome = run(Agent(model, tools=[fetch]), MemoryJournal(log))
        [returned] = [p for p in outcome.messages[2].parts if isinstance(p, ToolReturnPart)]
        assert looks == returned.content
    assert looks == log.result("t1.0")


def test_metadata_of_a_tool_return_is_checked_too() -> None:
    with pytest.raises(ValueRefusedError, match="metadata"):
        dump_result(ToolReturn("x", metadata={"nan": float("nan")}))


def test_annotation_is_found_behind_partials_and_coroutines() -> None:
    async def load() -> Point:
        raise NotImplementedError

    class Loader:
        def __call__(self) -> list[int]:
            raise NotImplementedError

    assert return_annotation(load) is Point
    assert return_annotation(Loader()) == list[int]
    assert return_annotation(lambda: 1) is Any


def test_plain_outcomes_are_recorded_plain_and_others_tagged() -> None:
    plain = {"kind": "tool_return", "result": {"a": 1}, "content_file_digests": []}
    scalar = {"kind": "tool_return", "result": 1}
    retry = {"kind": "model_retry", "message": "again"}
    odd = {"kind": "tool_return", "result": {TAG: 1}}

    assert {"a": 1} == encode_outcome(plain, None)
    assert 1 == encode_outcome(scalar, None)
    for payload in (plain, scalar, retry, odd):
        assert (payload, None) == decode_outcome(encode_outcome(payload, None))
    assert (plain, RunUsage(requests=2)) == decode_outcome(
        encode_outcome(plain, RunUsage(requests=2))
    )


def test_arguments_are_the_same_json_in_every_process() -> None:
    @dataclass
    class Query:
        words: set[str]
        at: datetime.datetime

    encoded = encode_args({"q": Query({"b", "a", "c"}, NOON), "n": 1})

    assert {"q": {"words": ["a", "b", "c"], "at": "2024-05-01T12:00:00Z"}, "n": 1} == encoded


def test_repeated_labels_are_renamed_by_index() -> None:
    parts = [{"part_kind": "tool-call", "tool_call_id": label} for label in ("x", "x", "", "y")]

    renamed = [part["tool_call_id"] for part in label_calls({"parts": parts})["parts"]]

    assert ["x", "x_1", "call_2", "y"] == renamed


def test_shortened_history_is_recorded_whole() -> None:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    messages: list[Any] = [ModelRequest([UserPromptPart(str(n))]) for n in range(4)]
    log = RequestLog()

    assert 3 == len(log.add(messages[:3]))
    assert [] == log.add(messages[:3])
    assert 3 == len(log.add(messages[1:4]))


@pytest.mark.parametrize(
    ("output", "declared", "expected"),
    [
        ("text", str, "text"),
        (Point(x=1, at=NOON), Point, {"x": 1, "at": "2024-05-01T12:00:00Z"}),
        ([Point(x=1, at=NOON)], list[Point], [{"x": 1, "at": "2024-05-01T12:00:00Z"}]),
        (Point(x=1, at=NOON), [str, Point], {"x": 1, "at": "2024-05-01T12:00:00Z"}),
        ({"a": [1]}, dict, {"a": [1]}),
        (None, int, None),
    ],
)
def test_output_is_dumped_by_its_declared_type(output: Any, declared: Any, expected: Any) -> None:
    assert expected == dump_output(output, declared)


# Effects


def test_effects_come_from_metadata_and_overrides() -> None:
    model = ScriptedModel([call("look", "a"), call("mail", "b"), call("other", "c")], say("done"))
    agent = Agent(model)

    @agent.tool_plain(metadata={"planaria": {"effect": "read"}})
    def look() -> int:
        return 1

    @agent.tool_plain(metadata={"planaria": {"effect": "read"}})
    def mail() -> int:
        return 2

    @agent.tool_plain
    def other() -> int:
        return 3

    journal = MemoryJournal()
    run(agent, journal, effects={"mail": "idempotent"})

    effects = [journal.log.records[place].details["effect"] for place in ("t1.0", "t1.1", "t1.2")]
    assert ["read", "idempotent", "once"] == effects
    assert 1 == len(journal.warnings)
    assert "'other'" in journal.warnings[0]
    assert "'look'" not in journal.warnings[0]


def test_unknown_effect_class_is_refused_with_an_explanation() -> None:
    with pytest.raises(UsageError, match="must never happen twice"):
        run(Agent(ScriptedModel(say("x"))), MemoryJournal(), effects={"mail": "twice"})


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"readOnlyHint": True, "idempotentHint": True}, "read"),
        ({"readOnlyHint": False, "idempotentHint": True}, "idempotent"),
        ({}, "once"),
        (None, "once"),
    ],
)
def test_mcp_annotations_are_mapped(annotations: Any, expected: str) -> None:
    from pydantic_ai.tools import ToolDefinition

    warnings: list[str] = []
    effects = ToolEffects({}, warnings.append)
    definition = ToolDefinition(name="t", metadata={"annotations": annotations})

    assert expected == effects.of("mcp", ["t"], definition)
    assert [] == warnings


@pytest.mark.parametrize("given_to", ["tool", "toolset"])
@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        ("once", "happened"),
        ("read", {TAG: {"kind": "model_retry", "message": "Timed out after 0.01 seconds."}}),
    ],
)
def test_timeout_is_stripped_unless_the_tool_only_reads(
    effect: str, expected: Any, given_to: str
) -> None:
    def slow() -> str:
        time.sleep(0.05)
        return "happened"

    toolset = FunctionToolset[Any](timeout=0.01 if given_to == "toolset" else None)
    toolset.add_function(slow, timeout=0.01 if given_to == "tool" else None)
    model = ScriptedModel([call("slow", "a")], say("done"))
    journal = MemoryJournal()
    run(Agent(model, toolsets=[toolset]), journal, effects={"slow": effect})

    assert expected == journal.log.result("t1.0")


def test_timeout_of_a_dynamic_tool_is_stripped() -> None:
    def slow() -> str:
        time.sleep(0.05)
        return "happened"

    model = ScriptedModel([call("slow", "a")], say("done"))
    agent = Agent(model)

    @agent.toolset(id="made")
    def make(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        made = FunctionToolset[Any]()
        made.add_function(slow, timeout=0.01)
        return made

    journal = MemoryJournal()
    run(agent, journal)

    assert "happened" == journal.log.result("t1.0")


def test_sync_tools_run_in_threads() -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    log, _ = run_tool(where)

    assert log.result("t1.0") is False


# Models


def test_slot_replaces_the_agents_model() -> None:
    own, slot = ScriptedModel(say("own")), ScriptedModel(say("slot"))

    outcome = run(Agent(own), MemoryJournal(), models={"writer": slot}, model_slot="writer")

    assert "slot" == outcome.output
    assert [] == own.requests


def test_agent_without_a_model_gets_the_slots() -> None:
    log = Log()
    models = {"writer": ScriptedModel(say("slot"))}
    for _ in range(2):
        outcome = run(Agent(), MemoryJournal(log), models=models, model_slot="writer")
        assert "slot" == outcome.output
    assert 1 == len(models["writer"].requests)


def test_unknown_slot_is_named() -> None:
    with pytest.raises(UsageError, match="'editor'; there are: writer"):
        run(
            Agent(),
            MemoryJournal(),
            models={"writer": ScriptedModel(say("x"))},
            model_slot="editor",
        )


# Steps


@dataclass(frozen=True)
class StepTool:
    name: str
    description: str
    function: Any
    effect: str
    reattach: Any = None


def generate(
    output: dict[str, Any] | None,
    *turns: Any,
    journal: MemoryJournal | None = None,
    tools: tuple[StepTool, ...] = (),
    **options: Any,
) -> tuple[AgentOutcome, ScriptedModel]:
    model = ScriptedModel(*turns)
    step: dict[str, Any] = {
        "id": "write",
        "uses": "ai.generate",
        "with": {"model": "writer", "prompt": "Write.", "instructions": "Be brief."},
        "onFailure": {"repair": {"maxAttempts": 2}},
    }
    if output is not None:
        step["output"] = output
    outcome = asyncio.run(
        run_generate(
            step,
            tools,
            input={"topic": "worms"},
            model=model,
            journal=journal or MemoryJournal(),
            session_id="hs_1",
            run_id="run_1",
            **options,
        )
    )
    return outcome, model


def final(**args: Any) -> list[ToolCallPart]:
    return [call("final_result", "f", **args)]


NUMBERS = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("output", "turn", "expected"),
    [
        (None, say("hello"), "hello"),
        ({"mode": "text"}, say("hello"), "hello"),
        ({"mode": "object", "schema": {"properties": {}}}, final(a=1), {"a": 1}),
        ({"mode": "array", "schema": NUMBERS}, final(items=[1, 2]), [1, 2]),
        ({"mode": "choice", "values": ["yes", "no"]}, final(choice="no"), "no"),
        ({"mode": "json"}, final(value=[None, {"a": 1.5}]), [None, {"a": 1.5}]),
    ],
)
def test_every_output_mode_gives_its_value(output: Any, turn: Any, expected: Any) -> None:
    outcome, _ = generate(output, turn)

    assert expected == outcome.output


def test_findings_go_back_to_the_same_attempt() -> None:
    heard: list[list[Finding]] = []
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
        "required": ["n", "s"],
    }
    outcome, model = generate(
        {"mode": "object", "schema": schema},
        final(n="many"),
        final(n=1),
        final(n=1, s="x"),
        on_repair=heard.append,
    )

    assert {"n": 1, "s": "x"} == outcome.output
    assert [2, 1] == [len(findings) for findings in heard]
    retry = str(model.requests[1][-1].parts[0])
    assert "$.n" in retry


def test_step_fails_when_no_repair_helped() -> None:
    log = Log()
    for _ in range(2):
        with pytest.raises(StepOutputError, match=r"\$\[0\]") as failed:
            generate(
                {"mode": "array", "schema": NUMBERS},
                *[final(items=["x"])] * 3,
                journal=MemoryJournal(log),
            )
        assert "step_schema_error" == failed.value.cause_code
        assert 2 == failed.value.repairs
    assert ["m1.0", "m2.0", "m3.0"] == list(log.records)


def test_declared_type_checks_what_the_schema_cannot_say() -> None:
    outcome, model = generate(
        {"mode": "object", "schema": {"type": "object"}},
        final(x=1, at="noon"),
        final(x=1, at="2024-05-01T12:00:00Z"),
        value_type=ValueType(Point),
    )

    assert {"x": 1, "at": "2024-05-01T12:00:00Z"} == outcome.output
    assert 2 == len(model.requests)


def test_tools_of_a_step_keep_their_effect_and_description() -> None:
    journal = MemoryJournal()
    tool = StepTool("search", "Searches the archive.", lambda words: f"found {words}", "read")
    outcome, model = generate(
        None, [call("search", "a", words="worm")], say("done"), journal=journal, tools=(tool,)
    )

    assert "done" == outcome.output
    assert "read" == journal.log.records["t1.0"].details["effect"]
    assert "Searches the archive." == model.infos[0].function_tools[0].description
    assert [] == journal.warnings


def test_prompt_is_followed_by_the_input() -> None:
    _, model = generate(None, say("x"))

    prompt = model.requests[0][0].parts[0]
    assert 'Write.\n\nInput:\n{\n "topic": "worms"\n}' == prompt.content
    assert "Be brief." == model.requests[0][0].instructions
    assert "Write." == prompt_with_input("Write.", None)


def test_tool_return_reaches_the_model_in_its_json_form() -> None:
    def locate() -> Point:
        return Point(x=1, at=NOON)

    model = ScriptedModel([call("locate", "a")], say("done"))
    outcome = run(Agent(model, tools=[locate]), MemoryJournal())

    [returned] = [p for p in outcome.messages[2].parts if isinstance(p, ToolReturnPart)]
    assert {"x": 1, "at": "2024-05-01T12:00:00Z"} == returned.content
