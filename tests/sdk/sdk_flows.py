"""Workflows that tests run in real processes; fixtures copy this file to a project of its own.

Every process of a run loads the copy: nothing here imports pytest, or pydantic-ai (1.6 s).
"""

import dataclasses
import enum
import os
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field

from planaria import Workflow, call, current_call, parallel, tool

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
larger = Workflow("plain", input=int, output=int, tools=[double], steps=[
    call("twice", double, args={"n": "{{ input + 1 }}"}),
])  # fmt: skip
failing = Workflow("failing", tools=[fail], steps=[call("bad", fail, args={"text": "no such row"})])
waiting = Workflow("waiting", input=str, output=str, tools=[wait_for], steps=[
    call("wait", wait_for, args={"path": "{{ input }}"}),
])  # fmt: skip


@tool(effect="idempotent")
def key_in_thread(n: int) -> list[str]:
    return [current_call().idempotency_key, current_call().step_path]


@tool(effect="once")
async def key_in_loop(n: int) -> list[str]:
    return [current_call().idempotency_key, current_call().step_path]


keys = Workflow("keys", tools=[key_in_thread, key_in_loop], steps=[
    call("a", key_in_thread, args={"n": 1}),
    call("b", key_in_loop, args={"n": 1}),
    call("c", key_in_loop, args={"n": 2}, needs=["a", "b"]),
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


# What the rows of values.json say, in their order.
VALUES: list[Callable[[], Any]] = [
    lambda: {"a": 1, "b": [True, None, "é", "日本", "😀"]},
    lambda: 2**53 + 1,
    lambda: 2**70,
    lambda: -0.0,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: {1: "a", "1": "b"},
    lambda: {"x": {3: 4}},
    lambda: b"\xff\x00",
    lambda: "\ud800",
    lambda: "a\x00b",
    lambda: datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    lambda: Decimal("1.10"),
    lambda: Colour.BLUE,
    lambda: Square(side=Decimal("1")),
    lambda: Point(1),
    lambda: (1, 2),
    lambda: {1, 2},
    lambda: range(3),
    lambda: Fraction(1, 3),
    lambda: lambda: 1,
    lambda: nest(200_000),
    lambda: contain_itself(),
    lambda: "x" * 5_000_000,
    lambda: None,
]


@tool(effect="read")
def nth_value(n: int):  # type: ignore[no-untyped-def]  # undeclared: plain JSON
    return VALUES[n]()


@tool(effect="read")
def process_id() -> int:
    return os.getpid()


values = Workflow("values", input=list[int], tools=[nth_value, process_id], steps=[
    call("before", process_id),
    parallel("each", items="{{ input }}", failure_mode="all_settled", max_concurrency=4,
        steps=[call("value", nth_value, args={"n": "{{ item }}"})], needs=["before"]),
    call("after", process_id, needs=["each"]),
], output_step="each")  # fmt: skip
