"""Workflows that tests run in real processes; their fixtures copy this file to a project of its own.

Children load the copy: nothing here may import pytest or anything of the tests.
"""

import dataclasses
import enum
import os
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.mcp import MCPToolset, StdioTransport
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from planaria import AgentWorker, Workflow, call, current_call, generate, parallel, tool

# -- plain ----------------------------------------------------------------------------------


@tool(effect="read")
def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n


@tool(effect="read")
def fail(text: str) -> str:
    raise LookupError(text)


@tool(effect="once")
def wait_for(path: str) -> str:
    """Waits until a file is there; its deadline ends a test that went wrong."""
    deadline = time.monotonic() + 30
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.01)
    return current_call().run_id


plain = Workflow("plain", input=int, output=int, tools=[double], steps=[
    call("twice", double, args={"n": "{{ input }}"}),
])  # fmt: skip
failing = Workflow("failing", tools=[fail], steps=[call("bad", fail, args={"text": "no such row"})])
waiting = Workflow("waiting", input=str, output=str, tools=[wait_for], steps=[
    call("wait", wait_for, args={"path": "{{ input }}"}),
])  # fmt: skip



@tool(effect="read")
def measure(text: str) -> int:
    return len(text)


large = Workflow("large", input=str, output=int, tools=[measure], steps=[
    call("measure", measure, args={"text": "{{ input }}"}),
])  # fmt: skip

# -- typed ----------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "navy"


class Square(BaseModel):
    kind: Literal["square"] = "square"
    side: Decimal


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: float


@dataclasses.dataclass
class Mark:
    at: tuple[int, int]
    colours: set[Colour] = dataclasses.field(default_factory=set)


class Part(BaseModel):
    name: str
    shape: Annotated[Square | Circle, Field(discriminator="kind")]
    made: date
    colour: Colour = Colour.RED


class Order(BaseModel):
    parts: list[Part]
    placed: datetime
    patience: timedelta
    reference: int | str | None = None
    marks: dict[str, Mark] = {}


@tool(effect="read")
def look_through(order: Order) -> Order:
    """Gives an order back, and refuses one whose parts have lost their types."""
    part = order.parts[0]
    kinds = (type(part.shape), type(part.made), type(part.colour), type(order.patience))
    assert (Square, date, Colour, timedelta) == kinds, kinds
    return order


@tool(effect="read")
def list_shapes(order: Order) -> tuple[Square | Circle, ...]:
    return tuple(part.shape for part in order.parts)


typed = Workflow("typed", input=Order, output=Order, tools=[look_through], steps=[
    call("look", look_through, args={"order": "{{ input }}"}),
])  # fmt: skip
shapes = Workflow("shapes", input=Order, output=tuple[Square | Circle, ...],
    tools=[list_shapes], steps=[call("list", list_shapes, args={"order": "{{ input }}"})],
)  # fmt: skip

ORDER = Order(
    parts=[
        Part(name="é", shape=Square(side=Decimal("1.10")), made=date(2026, 2, 28)),
        Part(name="", shape=Circle(radius=-0.0), made=date(1, 1, 1), colour=Colour.BLUE),
    ],
    placed=datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
    patience=timedelta(milliseconds=1),
    reference="7",
    marks={"a.b": Mark((1, 2), {Colour.RED})},
)

# -- values ---------------------------------------------------------------------------------


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def contain_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@dataclasses.dataclass
class Point:
    x: int


def make_values() -> list[Any]:
    """Returns what the rows of values.json say, in their order."""
    from zoneinfo import ZoneInfo

    return [
        {"a": 1, "b": [True, None, "é", "日本", "😀"]},
        2**53 + 1,
        2**70,
        -0.0,
        float("nan"),
        float("inf"),
        {1: "a", "1": "b"},
        {"x": {3: 4}},
        b"\xff\x00",
        "\ud800",
        "a\x00b",
        datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        Decimal("1.10"),
        Colour.BLUE,
        Square(side=Decimal("1")),
        Point(1),
        (1, 2),
        {1, 2},
        range(3),
        Fraction(1, 3),
        lambda: 1,
        nest(200_000),
        contain_itself(),
        "x" * 5_000_000,
        None,
    ]


@tool(effect="read")
def nth_value(n: int):  # type: ignore[no-untyped-def]  # undeclared: plain JSON
    return make_values()[n]


@tool(effect="read")
def process_id() -> int:
    return os.getpid()


values = Workflow("values", input=list[int], tools=[nth_value, process_id], steps=[
    call("before", process_id),
    parallel("each", items="{{ input }}", failure_mode="all_settled", max_concurrency=1,
        steps=[call("value", nth_value, args={"n": "{{ item }}"})], needs=["before"]),
    call("after", process_id, needs=["each"]),
], output_step="each")  # fmt: skip

# -- agents ---------------------------------------------------------------------------------


class Answer(BaseModel):
    town: str
    degrees: Decimal
    asked_by: str


class Deps(BaseModel):
    user: str
    pid: int


def make_deps() -> Deps:
    """Made where the agent runs: the tool below finds its own process there."""
    return Deps(user="ada", pid=os.getpid())


def _script(messages: list[ModelMessage], info: AgentInfo) -> list[TextPart | ToolCallPart]:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn == 0:
        return [ToolCallPart("temperature", {"town": "Bern"}, tool_call_id="a")]
    [output] = info.output_tools
    degrees = messages[-1].parts[0].content  # type: ignore[union-attr]
    answer = {"town": "Bern", "degrees": degrees, "asked_by": "ada"}
    return [ToolCallPart(output.name, answer, tool_call_id="b")]


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=_script(messages, info))


async def stream(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    for index, part in enumerate(_script(messages, info)):
        assert isinstance(part, ToolCallPart)
        text = part.args_as_json_str()
        yield {index: DeltaToolCall(part.tool_name, text[:5], tool_call_id=part.tool_call_id)}
        yield {index: DeltaToolCall(None, text[5:])}


agent = Agent(
    FunctionModel(answer), name="weather", deps_type=Deps, output_type=Answer,
    instructions="Say how warm it is.",
)  # fmt: skip


@agent.tool
def temperature(context: RunContext[Deps], town: str) -> str:
    assert context.deps.pid == os.getpid() and context.deps.user == "ada"
    return "12.5"


agent_flow = Workflow("agents.tools", output=Answer,
    models={"weather": AgentWorker(agent, deps=make_deps, effects={"temperature": "read"})},
    steps=[generate("ask", model="weather", prompt="How warm is Bern?", output=Answer)],
)  # fmt: skip


async def _note_events(context: RunContext[Deps], events: Any) -> None:
    """Who hears the events of a run makes pydantic-ai ask for its responses as streams."""
    async for event in events:
        print(type(event).__name__, flush=True)


streaming_agent = Agent(
    FunctionModel(stream_function=stream), name="stream", deps_type=Deps,  # no other way to answer
    output_type=Answer, tools=[temperature], capabilities=[ProcessEventStream(_note_events)],
)  # fmt: skip
stream_flow = Workflow("agents.stream", output=Answer,
    models={"weather": AgentWorker(streaming_agent, deps=make_deps)},
    steps=[generate("ask", model="weather", prompt="How warm is Bern?", output=Answer)],
)  # fmt: skip


def ask_echo(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn < 2:
        name = ("echo", "send")[turn]
        return ModelResponse(parts=[ToolCallPart(name, {"text": "hi"}, tool_call_id=name)])
    return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])  # type: ignore[union-attr]


# Beside the copy of this file; the notes go to the folder that the run was admitted from.
_SERVER = [str(Path(__file__).with_name("mcp_echo_server.py")), "mcp-notes.txt"]
mcp_agent = Agent(
    FunctionModel(ask_echo), name="mcp",
    toolsets=[MCPToolset(StdioTransport(sys.executable, _SERVER), id="echo")],
)  # fmt: skip
mcp_flow = Workflow("agents.mcp", output=str, models={"mcp": mcp_agent}, steps=[
    generate("ask", model="mcp", prompt="Echo.", output=str),
])  # fmt: skip
