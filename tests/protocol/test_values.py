"""Values come back equal or are refused with their path: every row of cases/values.json."""

import dataclasses
import enum
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, Field, SecretStr

from planaria.protocol import round_trips, values
from planaria.protocol.codec import canonical_bytes, unpack
from planaria.protocol.errors import ValueRefusedError
from planaria.protocol.limits import CONTAINER_ITEMS_MAX, VALUE_DEPTH_MAX
from planaria.protocol.values import ValueType, check_json

CASES = json.loads((Path(__file__).parent / "cases" / "values.json").read_text())


class Color(enum.Enum):
    RED = "red"
    DEEP = "navy"


class Level(enum.IntEnum):
    LOW = 1


class Item(BaseModel):
    name: str
    price: Decimal = Decimal("0")
    tags: set[str] = set()


@dataclasses.dataclass
class Point:
    x: int
    at: datetime | None = None


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def contain_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


MISSING = object()
BERLIN_GAP = datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
ITEM = Item(name="a", price=Decimal("1.10"), tags={"x", "y"})

# The text of a row -> its value, the path that refuses it undeclared (None: exact), and the
# annotation that lets it through (MISSING: none does).
ROWS: dict[str, tuple[Callable[[], Any], str | None, Any]] = {
    "{'a': 1, 'b': [True, None, 'é', '日本', '😀']}": (
        lambda: {"a": 1, "b": [True, None, "é", "日本", "😀"]},
        None,
        dict[str, Any],
    ),
    "2**53 + 1": (lambda: 2**53 + 1, None, int),
    "2**70": (lambda: 2**70, "$", MISSING),
    "-0.0": (lambda: -0.0, None, float),
    "float('nan')": (lambda: float("nan"), "$", MISSING),
    "float('inf')": (lambda: float("inf"), "$", MISSING),
    "{1: 'a', '1': 'b'}": (lambda: {1: "a", "1": "b"}, "$", MISSING),
    "{'x': {3: 4}}": (lambda: {"x": {3: 4}}, "$.x", dict[str, dict[int, int]]),
    "b'\\xff\\x00'": (lambda: b"\xff\x00", "$", bytes),
    "'\\ud800'": (lambda: "\ud800", "$", MISSING),
    "'a\\x00b'": (lambda: "a\x00b", None, str),
    "datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo('Europe/Berlin'))": (
        lambda: BERLIN_GAP,
        "$",
        datetime,
    ),
    "Decimal('1.10')": (lambda: Decimal("1.10"), "$", Decimal),
    "Enum member": (lambda: Color.DEEP, "$", Color),
    "pydantic model": (lambda: ITEM, "$", Item),
    "dataclass": (lambda: Point(1, BERLIN_GAP), "$", Point),
    "(1, 2)": (lambda: (1, 2), "$", tuple[int, int]),
    "{1, 2}": (lambda: {1, 2}, "$", set[int]),
    "range(3)": (lambda: range(3), "$", MISSING),
    "Fraction(1, 3)": (lambda: Fraction(1, 3), "$", Fraction),
    "lambda: 1": (lambda: lambda: 1, "$", Callable[[], int]),
    "a list nested 200000 deep": (lambda: nest(200_000), "$" + "[0]" * 64, MISSING),
    "a dict that contains itself": (contain_itself, "$" + ".self" * 64, MISSING),
    "'x' * 5_000_000": (lambda: "x" * 5_000_000, None, str),
    "None": (lambda: None, None, type(None)),
}
NEVER = {"lambda: 1"}  # declared or not


def store(value: Any) -> Any:
    """What the log and the wire do to a JSON value."""
    return unpack(canonical_bytes(value), bytes_max=1 << 23)


def refusal(action: Callable[[], Any]) -> ValueRefusedError:
    with pytest.raises(ValueRefusedError) as caught:
        action()
    return caught.value


def assert_same(expected: Any, got: Any) -> None:
    assert type(expected) is type(got)
    if isinstance(expected, datetime):
        assert got.utcoffset() == expected.utcoffset()
        assert got.astimezone(UTC) == expected.astimezone(UTC)
    elif isinstance(expected, Point):
        assert_same(expected.at, got.at)
    else:
        assert expected == got
        assert str(expected) == str(got) or isinstance(expected, set | BaseModel)


def test_every_row_of_the_cases_has_a_value() -> None:
    assert [case["python"] for case in CASES] == list(ROWS)


@pytest.mark.parametrize("name", list(ROWS))
def test_undeclared_value_is_exact_or_refused_with_its_path(name: str) -> None:
    make, path, _ = ROWS[name]
    value = make()

    for kind in (ValueType(), ValueType(Any), ValueType(None), ValueType(object)):
        if path is None:
            assert_same(value, kind.load(store(kind.dump(value))))
        else:
            assert path == refusal(lambda: kind.dump(value)).path  # noqa: B023


@pytest.mark.parametrize("name", list(ROWS))
def test_declared_value_comes_back_with_its_type(name: str) -> None:
    make, path, annotation = ROWS[name]
    value = make()
    kind = ValueType(Any if annotation is MISSING else annotation)

    if annotation is MISSING or name in NEVER:
        assert path == refusal(lambda: kind.dump(value)).path
    else:
        assert_same(value, kind.load(store(kind.dump(value))))


@pytest.mark.parametrize("annotation", [list[Any], dict[str, Any], list[list[Any]] | set[int]])
@pytest.mark.parametrize("make", [lambda: nest(200_000), contain_itself], ids=["deep", "cyclic"])
def test_deep_and_cyclic_values_are_refused_under_any_annotation(
    annotation: Any, make: Callable[[], Any]
) -> None:
    refused = refusal(lambda: ValueType(annotation).dump(make()))

    assert "nested deeper than 64" in refused.reason


def test_shared_lists_that_double_at_every_level_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "VALUE_CONTAINERS_MAX", 10_000)
    monkeypatch.setattr(round_trips, "VALUE_CONTAINERS_MAX", 10_000)
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]

    assert "more than 10,000 lists" in refusal(lambda: check_json(value)).reason
    typed = ValueType(list[Any] | set[int])
    assert "more than 10,000 parts" in refusal(lambda: typed.dump((value,))).reason
    assert "$[1]" == refusal(lambda: check_json([value, b""])).path


def test_depth_is_allowed_at_the_limit_and_refused_one_beyond() -> None:
    check_json(nest(VALUE_DEPTH_MAX))
    check_json({"a": 1}, depth_max=1)

    assert refusal(lambda: check_json(nest(VALUE_DEPTH_MAX + 1))).path == "$" + "[0]" * 64
    assert refusal(lambda: check_json({"a": [1]}, depth_max=1)).path == "$.a"


def test_entries_are_allowed_at_the_limit_and_refused_one_beyond() -> None:
    check_json([0] * CONTAINER_ITEMS_MAX)

    refused = refusal(lambda: check_json({"a": [0] * (CONTAINER_ITEMS_MAX + 1)}))
    assert "$.a" == refused.path


def test_integers_are_allowed_in_the_range_of_msgpack() -> None:
    check_json([-(2**63), 2**64 - 1])

    assert refusal(lambda: check_json([0, -(2**63) - 1])).path == "$[1]"
    assert refusal(lambda: check_json({"n": 2**64})).path == "$.n"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b c": float("nan")}]}, '$.a[1]["b c"]'),
        ({"a": {"\ud800": 1}}, "$.a"),
        ({"\ud800x": (1,)}, "$"),
        ([[], {}, "\udfff"], "$[2]"),
        ({"k": Level.LOW}, "$.k"),
        ([True, {"x": b""}], "$[1].x"),
        ({"é": float("inf")}, '$["\\u00e9"]'),
    ],
)
def test_the_path_of_the_first_bad_value_is_named(value: Any, path: str) -> None:
    assert path == refusal(lambda: check_json(value)).path


def test_a_refusal_is_below_the_path_that_the_caller_gives() -> None:
    assert refusal(lambda: check_json([{1}], path="$.args")).path == "$.args[0]"
    assert refusal(lambda: ValueType(list[int]).dump(["1"], path="$.x")).path == "$.x[0]"
    assert refusal(lambda: ValueType(list[int]).load(["q"], path="$.x")).path == "$.x[0]"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"a": SecretStr("s3cret-word")}),
        (Any, ["s3cret-word\ud800"]),
        (Any, {"b": b"s3cret-word"}),
        (Item, {"name": "s3cret-word"}),
        (list[int], ["s3cret-word"]),
        (SecretStr, SecretStr("s3cret-word")),
        (dict[str, Color], {"a": "s3cret-word"}),
        (list[Item], [Item(name="s3cret-word\ud800")]),
        (
            Annotated[
                Annotated[Point, "p"] | Item,
                Field(description="s"),
            ],
            {"nope": "s3cret-word"},
        ),
    ],
)
def test_the_text_of_a_refusal_never_holds_the_value(annotation: Any, value: Any) -> None:
    refused = refusal(lambda: ValueType(annotation).dump(value))

    assert "s3cret" not in str(refused)
    context: BaseException | None = refused
    while context is not None:
        assert "s3cret" not in str(context)
        context = context.__cause__ or context.__context__


@pytest.mark.slow
def test_plain_values_do_not_load_pydantic() -> None:
    script = (
        "import sys\n"
        "from planaria.protocol.values import ValueType, check_json\n"
        "import planaria.protocol.schemas\n"
        "ValueType(dict[str, list[str] | None]).dump({'a': ['b'], 'c': None})\n"
        "ValueType().dump([1])\n"
        "assert 'pydantic' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
