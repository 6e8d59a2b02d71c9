"""What Python types compile to: a schema of the subset that accepts all that the type dumps."""

import dataclasses
import enum
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from planaria.protocol.schema_types import compile_schema
from planaria.protocol.schemas import (
    check_schema,
    derive_schema,
    validate_value,
)
from planaria.protocol.values import ValueType


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A thing on sale."""

    name: str = Field(min_length=1, pattern="^[a-z]+$", description="what it is called")
    price: Decimal = Field(default=Decimal("0"), ge=0)
    color: Color = Color.RED
    size: Annotated[int, Field(gt=0, le=10)] = 1


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    friend: Cat | None = None


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    pet: Cat | Dog = Field(discriminator="kind")
    when: datetime
    day: date | None = None
    items: list[Item] = []
    tags: set[str] = set()
    pair: tuple[int, str] = (1, "a")
    tail: tuple[int, str] | None = None
    scores: dict[int, float] = {}
    blob: bytes = Field(default=b"", max_length=4)
    wait: timedelta = timedelta(0)
    part: Fraction = Fraction(0)
    anything: Any = None


class Node(BaseModel):
    name: str
    children: list["Node"] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: str = ""


def test_model_compiles_into_the_subset() -> None:
    assert {
        "title": "Item",
        "description": "A thing on sale.",
        "type": "object",
        "properties": {
            "name": {
                "title": "Name",
                "description": "what it is called",
                "type": "string",
                "minLength": 1,
            },
            "price": {
                "title": "Price",
                "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
            },
            "color": {"title": "Color", "type": "string", "enum": ["red", "blue"]},
            "size": {"title": "Size", "type": "integer", "maximum": 10},
        },
        "required": ["name"],
    } == normalize(derive_schema(Item))


def normalize(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: normalize(item) for key, item in schema.items()}
    if isinstance(schema, list):
        return [normalize(item) for item in schema]
    return int(schema) if isinstance(schema, float) else schema


VALUES: list[tuple[Any, Any]] = [
    (Item, Item(name="a")),
    (
        Closed,
        Closed(
            pet=Dog(kind="dog", friend=Cat(kind="cat")),
            when=datetime(2026, 1, 1),
            items=[Item(name="b")],
            tags={"x"},
            tail=(2, "b"),
            scores={1: 0.5},
            blob=b"abcd",
            part=Fraction(1, 3),
            anything=[{"a": 1}],
        ),
    ),
    (Point, Point(1)),
    (list[Pair], [Pair(1, "x")]),
    (dict[Color, tuple[int, ...]], {Color.RED: (1, 2)}),
    (tuple[int, str], (1, "a")),
    (frozenset[int], frozenset({1, 2})),
    (Annotated[bytes, Field(max_length=4)], b"\xff\xfe\xfd\xfc"),
    (Cat | Dog | None, None),
    (Decimal, Decimal("1.10")),
    (Literal["a", 1, None], None),
    (dict[Annotated[str, Field(pattern="^a")], int], {"ab": 1}),
    (tuple[int, str] | list[float], [0.5]),
    (Any, {"a": 1}),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=[str(pair[0]) for pair in VALUES])
def test_what_a_type_dumps_fits_its_derived_schema(annotation: Any, value: Any) -> None:
    kind = ValueType(annotation)

    assert [] == check_schema(kind.schema(), "$")
    assert [] == validate_value(kind.schema(), kind.dump(value))


@pytest.mark.parametrize("annotation", [None, Any, object])
def test_plain_annotations_allow_everything(annotation: Any) -> None:
    assert {} == derive_schema(annotation)


def test_derived_schema_still_refuses_what_it_can_say() -> None:
    schema = derive_schema(Closed)
    value = {"pet": {"kind": "cow"}, "items": [{"name": ""}], "extra": 1}

    assert ["$.when", "$.pet", "$.items[0].name", "$.extra"] == [
        finding.path for finding in validate_value(schema, value)
    ]


@pytest.mark.parametrize("annotation", [Node, list[Node], dict[str, Node | None]])
def test_recursive_type_is_refused_by_name(annotation: Any) -> None:
    with pytest.raises(ValueError, match="'Node'.* recursive"):
        derive_schema(annotation)

    tree = Node(name="a", children=[Node(name="b")])
    assert tree == ValueType(Node).load(ValueType(Node).dump(tree))


def test_types_that_grow_when_written_out_are_refused() -> None:
    raw: dict[str, Any] = {"$defs": {}, "$ref": "#/$defs/t0"}
    for n in range(30):
        inner = {"$ref": f"#/$defs/t{n + 1}"}
        raw["$defs"][f"t{n}"] = {"properties": {"a": inner, "b": inner}}
    raw["$defs"]["t30"] = {}

    with pytest.raises(ValueError, match="too large"):
        compile_schema(raw, "Wide")


def test_references_of_foreign_schemas_are_written_out() -> None:
    raw = {
        "definitions": {"a/b": {"type": "string", "format": "uri"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/definitions/a~1b", "description": "where"}},
    }

    assert {
        "type": "object",
        "properties": {"x": {"type": "string", "description": "where"}},
    } == compile_schema(raw, "remote")
    for ref in ("#", "#/nowhere", "https://example.com/schema", 3):
        with pytest.raises(ValueError):
            compile_schema({"items": {"$ref": ref}}, "remote")


def test_alternatives_that_differ_in_a_lost_part_may_both_fit() -> None:
    def tag(value: Any) -> str:
        return "long" if len(value) > 3 else "short"

    annotation = Annotated[
        Annotated[str, Tag("long")] | Annotated[str, Field(pattern="^a"), Tag("short")],
        Discriminator(tag),
    ]

    assert [] == validate_value(derive_schema(annotation), "abc")


def test_malformed_schema_of_a_user_is_named() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(json_schema_extra={"required": True})

    with pytest.raises(ValueError, match="json_schema_extra"):
        derive_schema(Odd)


def test_part_without_schema_is_left_open() -> None:
    class Hooked(BaseModel):
        hook: Callable[[], int] | None = None
        name: str

    schema = derive_schema(Hooked)

    assert [] == validate_value(schema, {"hook": 1, "name": "a"})
    assert ["$.name"] == [finding.path for finding in validate_value(schema, {})]
