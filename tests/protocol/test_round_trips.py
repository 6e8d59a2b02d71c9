"""Typed values: ordinary types come back equal, the others are refused with their path."""

import dataclasses
import enum
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from typing_extensions import TypedDict

from planaria.protocol.codec import canonical_bytes, unpack
from planaria.protocol.errors import PlanariaError, ValueRefusedError
from planaria.protocol.values import ValueType, check_json


class Color(enum.Enum):
    RED = "red"
    DEEP = "navy"


class Shade(enum.Enum):
    NAVY = ("blue", 3)


class Level(enum.IntEnum):
    LOW = 1


class Item(BaseModel):
    name: str
    price: Decimal = Decimal("0")
    tags: set[str] = set()


class Special(Item):
    rebate: int = 0


class Order(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    order_id: int = Field(alias="orderId")
    color: Color
    placed: datetime
    day: date
    window: tuple[time, time]
    items: list[Item]
    grace: timedelta = timedelta(seconds=1.5)
    note: str | None = None
    payload: Item | int | list[str] = 0


@dataclasses.dataclass
class Point:
    x: int
    at: datetime | None = None


class Pair(NamedTuple):
    left: int
    right: str


class Entry(TypedDict):
    key: str
    when: date


ITEM = Item(name="a", price=Decimal("1.10"), tags={"x", "y"})


def store(value: Any) -> Any:
    """What the log and the wire do to a JSON value."""
    return unpack(canonical_bytes(value), bytes_max=1 << 23)


def refusal(action: Callable[[], Any]) -> ValueRefusedError:
    with pytest.raises(ValueRefusedError) as caught:
        action()
    return caught.value


def make_order() -> Order:
    return Order(
        order_id=7,
        color=Color.DEEP,
        placed=datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Asia/Kolkata")),
        day=date(2026, 7, 1),
        window=(time(9, 30), time(17, 0, 0, 5)),
        items=[ITEM, Item(name="b")],
        payload=["a"],
    )


TYPED = [
    (Order, make_order()),
    (list[Order], [make_order()]),
    (Item | None, None),
    (Item | Point, Point(3)),
    (dict[int, str], {1: "a", 2: "b"}),
    (dict[Color, list[Pair]], {Color.RED: [Pair(1, "x")]}),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, str, Decimal], (1, "1", Decimal("1E+2"))),
    (frozenset[tuple[int, str]], frozenset({(1, "a"), (2, "b")})),
    (set[frozenset[str]], {frozenset({"a", "b"}), frozenset()}),
    (UUID, UUID(int=5)),
    (Entry, {"key": "k", "when": date(2026, 1, 1)}),
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
    (datetime, datetime(2026, 1, 1, 12, 0, 0, 123456)),
    (timedelta, timedelta(days=-3, microseconds=1)),
    (list[bytes], [b"", b"\x00\xff", b"abc"]),
    (Path, Path("a") / "b"),
    (Literal["a", 1, None], 1),
    (Annotated[int, Field(gt=3)], 4),
    (int | str | Decimal, "1"),
    (str | float | None, -0.0),
    (Level, Level.LOW),
    (dict[str, set[str]], {"s": {"q", "w", "e"}}),
]


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=[str(pair[0]) for pair in TYPED])
def test_ordinary_types_come_back_equal(annotation: Any, value: Any) -> None:
    kind = ValueType(annotation)

    dumped = kind.dump(value)
    loaded = kind.load(store(dumped))

    check_json(dumped)
    assert type(value) is type(loaded)
    assert kind.dump(loaded) == dumped
    if not isinstance(value, datetime):
        assert value == loaded


class Sealed(BaseModel):
    model_config = ConfigDict(extra="allow")

    shown: int
    hidden: int = Field(default=0, exclude=True)
    raw: bytes = b""
    _cache: int = PrivateAttr(default=0)


def make_sealed_with_private() -> Sealed:
    sealed = Sealed(shown=1)
    sealed._cache = 5
    return sealed


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (list[Item], [ITEM, Special(name="x")], "$[1]"),
        (Item, {"name": "x"}, "$"),
        (Item, Item.model_construct(name=3), "$.name"),
        (list[int], [1, True], "$[1]"),
        (list[int], (1, 2), "$"),
        (list[str], ["a", Color.RED], "$[1]"),
        (dict[str, Any], {"a": {"when": date(2026, 1, 1)}}, "$.a.when"),
        (dict[str, Any] | Item, {"a": [(1,)]}, "$.a[0]"),
        (dict[int | str, str], {1: "a", "1": "b"}, "$"),
        (Decimal | str, Decimal("1"), "$"),
        (float, 2**53 + 1, "$"),
        (list[float], [1.0, float("nan")], "$[1]"),
        (Sealed, Sealed(shown=1, hidden=3), "$.hidden"),
        (Sealed, Sealed(shown=1, extra=(1, 2)), "$.extra"),
        (Sealed, make_sealed_with_private(), "$"),
        (list[Sealed], [Sealed(shown=1, raw=b"\xff")], "$[0].raw"),
        (Any, OrderedDict(a=1), "$"),
        (OrderedDict[str, int], OrderedDict(b=1, a=2), "$"),
        (set[int], {True}, "$"),
        (Point, Point("x"), "$.x"),  # type: ignore[arg-type]
        (str, "a\ud800", "$"),
        (tuple[int, int], (1, 2, 3), "$"),
        (Literal["a", 1], True, "$"),
        (int, 2**70, "$"),
        (dict[str, Shade], {"a": Shade.NAVY}, "$.a"),
    ],
)
def test_what_would_come_back_different_is_refused(annotation: Any, value: Any, path: str) -> None:
    assert path == refusal(lambda: ValueType(annotation).dump(value)).path


def test_int_is_accepted_where_float_is_declared() -> None:
    kind = ValueType(dict[str, float])

    loaded = kind.load(kind.dump({"a": 3}))

    assert {"a": 3.0} == loaded and type(loaded["a"]) is float


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Order, {"orderId": 1}, "$.color"),
        (list[Item], [{"name": "a"}, {"name": 3}], "$[1].name"),
        (dict[int, str], {"a": "x"}, "$.a"),
        (list[Item | int], [{"name": []}], "$[0].name"),
        (set[int], [1, "x"], "$[1]"),
        (Point, {"x": 1, "at": "yesterday"}, "$.at"),
        (str, 3, "$"),
        (list[str], ["a", 3], "$[1]"),
        (Any, {"a": (1,)}, "$.a"),
    ],
)
def test_load_names_the_path_of_the_first_wrong_thing(
    annotation: Any, value: Any, path: str
) -> None:
    assert path == refusal(lambda: ValueType(annotation).load(value)).path


def test_load_accepts_names_and_aliases() -> None:
    dumped = ValueType(Order).dump(make_order())
    by_name = {("order_id" if key == "orderId" else key): item for key, item in dumped.items()}

    assert "orderId" in dumped
    assert make_order() == ValueType(Order).load(by_name)


def test_type_without_json_form_is_refused_when_it_is_declared() -> None:
    class Handle:
        pass

    assert "Handle" in str(refusal(lambda: ValueType(Handle)))
    assert "range" in str(refusal(lambda: ValueType(list[range])))


def test_every_refusal_is_one_of_ours() -> None:
    class Explosive(BaseModel):
        at: Any

        def __eq__(self, other: object) -> bool:
            raise TypeError("compared")

    refused = refusal(lambda: ValueType(Explosive).dump(Explosive(at=lambda: 1)))

    assert isinstance(refused, PlanariaError)
    assert "$.at" == refused.path


@pytest.mark.slow
def test_set_is_written_in_the_same_order_in_every_process() -> None:
    script = (
        "from planaria.protocol.values import ValueType\n"
        "words = {'alpha', 'beta', 'gamma', 'delta', 'epsilon'}\n"
        "print(ValueType(dict[str, set[str]]).dump({'w': words}))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=30,
        ).stdout
        for seed in ("1", "2")
    }

    assert 1 == len(outputs)
