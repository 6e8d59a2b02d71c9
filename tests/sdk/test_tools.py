"""A tool is a function that says what doing it twice would mean, with typed arguments."""

import datetime
import functools
import inspect
import pickle
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from planaria.lookups import Answer, NeverHappened, Succeeded
from planaria.protocol.effects import EXPLANATION
from planaria.protocol.errors import ValueRefusedError
from planaria.tools import Tool, make_tool, tool


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Address(BaseModel):
    street: str
    since: datetime.date


class Person(BaseModel):
    name: str
    level: Level
    homes: list[Address] = []
    contact: int | str | None = None
    spot: tuple[int, int] = (0, 0)


class Node(BaseModel):
    children: "list[Node]" = []


@tool(effect="read")
def greet(person: Person, times: int = 1, *, note: str | None = None) -> Person:
    """Greets somebody.

    As often as asked.
    """
    return person


def takes_all(*args: int) -> int: ...
def takes_options(**options: int) -> int: ...
def takes_by_place(a: int, /) -> int: ...
def takes_self(self: Any, a: int) -> int: ...
def yields(a: int) -> Any:
    yield a


async def yields_later(a: int) -> Any:
    yield a


def takes_unknown(a: "Missing") -> int: ...  # type: ignore[name-defined]  # noqa: F821
def takes_itself(a: Node) -> int: ...
def takes_object(a: pytest.MonkeyPatch) -> int: ...
def gives_object() -> pytest.MonkeyPatch: ...
def takes_huge(a: Annotated[int, Field(ge=-(2**63))]) -> int: ...
def größe() -> int: ...


class Holder:
    def method(self) -> int: ...


def test_decorated_function_is_still_called_as_itself() -> None:
    person = Person(name="Ada", level=Level.HIGH)

    assert greet(person, note="x") is person
    assert list(inspect.signature(greet).parameters) == ["person", "times", "note"]
    assert repr(greet) == "<tool greet (read)>"


def test_name_and_description_are_the_functions_or_as_given() -> None:
    @tool(effect="once", name="send_mail", description="Sends a mail.")
    def send() -> None:
        """Another text."""

    assert (greet.name, greet.description) == (
        "greet",
        "Greets somebody.\n\nAs often as asked.",
    )
    assert (send.name, send.description, send.effect) == ("send_mail", "Sends a mail.", "once")


def test_parameters_are_a_schema_of_the_subset() -> None:
    properties = greet.parameters["properties"]

    assert greet.parameters["required"] == ["person"]
    assert greet.parameters["additionalProperties"] is False
    assert properties["times"] == {"type": "integer"}
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert properties["person"]["properties"]["level"]["enum"] == ["low", "high"]
    assert "$ref" not in str(properties)


def test_arguments_are_loaded_with_their_declared_types() -> None:
    given = {
        "person": {
            "name": "Ada",
            "level": "high",
            "homes": [{"street": "A", "since": "2020-02-29"}],
            "contact": "x",
            "spot": [1, 2],
        },
        "note": None,
    }

    loaded = greet.load_arguments(given)

    home = Address(street="A", since=datetime.date(2020, 2, 29))
    expected = Person(name="Ada", level=Level.HIGH, homes=[home], contact="x", spot=(1, 2))
    assert {"person": expected, "note": None} == loaded
    assert greet.returns.dump(expected)["homes"] == [{"street": "A", "since": "2020-02-29"}]


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ([], "$", "expected a map of arguments"),
        ({"persn": 1}, "$.persn", "no such argument; it has: person, times, note"),
        ({"times": 1}, "$.person", "needs this argument"),
        ({"person": {"name": "A", "level": "x"}}, "$.person.level", "'low' or 'high'"),
        (
            {"person": {"name": "A", "level": "low", "homes": [{"street": "A", "since": "?"}]}},
            "$.person.homes[0].since",
            "date",
        ),
    ],
)
def test_argument_that_does_not_fit_is_refused_with_its_path(
    args: Any, path: str, reason: str
) -> None:
    with pytest.raises(ValueRefusedError) as refused:
        greet.load_arguments(args)

    assert path == refused.value.fields["path"]
    assert reason in refused.value.fields["reason"]


def test_function_without_annotations_takes_and_gives_any_json() -> None:
    @tool(effect="read")
    def echo(value):  # type: ignore[no-untyped-def]
        return value

    assert echo.parameters["properties"] == {"value": {}}
    assert echo.load_arguments({"value": [1, None]}) == {"value": [1, None]}
    assert echo.returns.dump({"a": 1}) == {"a": 1}


async def wait_for(seconds: float) -> float: ...


def test_asynchronous_function_is_known_as_one() -> None:
    assert make_tool(wait_for, effect="read").is_async
    assert not greet.is_async


@pytest.mark.parametrize("effect", [None, "", "write", "READ", ["read"]])
def test_missing_or_unknown_effect_explains_the_four(effect: Any) -> None:
    with pytest.raises(ValueError) as refused:
        tool(effect=effect)(greet.function)

    assert EXPLANATION in str(refused.value)


def find(key: str) -> Answer:
    return Succeeded(key)


async def find_later(key: str, *, limit: int = 1) -> Answer:
    return NeverHappened()


def find_nothing() -> Answer: ...
def find_by_two(key: str, other: str) -> Answer: ...


@tool(effect="managed", reattach=find)
def post(text: str) -> str:
    return text


@pytest.mark.parametrize("reattach", [find, find_later, functools.partial(find_by_two, other="x")])
def test_managed_tool_keeps_its_lookup(reattach: Any) -> None:
    made = make_tool(wait_for, effect="managed", reattach=reattach)

    assert reattach is made.reattach
    assert greet.reattach is None
    assert made.describe() == make_tool(wait_for, effect="managed", reattach=find).describe()


@pytest.mark.parametrize(
    ("effect", "reattach", "reason"),
    [
        ("managed", None, "is 'managed' and has no lookup: give reattach="),
        ("once", find, "has a lookup (reattach) and effect 'once': only a 'managed' one"),
        ("read", find, "has a lookup (reattach) and effect 'read'"),
        ("managed", find_nothing, "can't be called with an idempotency key (too many positional"),
        ("managed", find_by_two, "can't be called with an idempotency key (missing a required"),
        ("managed", "find", "reattach of tool 'wait_for' can't be called"),
    ],
)
def test_lookup_and_class_that_do_not_go_together_are_refused(
    effect: Any, reattach: Any, reason: str
) -> None:
    with pytest.raises(ValueError) as refused:
        tool(effect=effect, reattach=reattach)(wait_for)

    assert reason in str(refused.value)
    assert "'wait_for'" in str(refused.value)


def test_managed_tool_travels_with_its_lookup() -> None:
    parts = post.__reduce__()
    local = make_tool(wait_for, effect="managed", reattach=find).__reduce__()

    assert pickle.loads(pickle.dumps(post)) is post
    assert parts[1] == (__name__, "post")
    assert find is local[0](*local[1]).reattach


def test_decorator_without_parentheses_explains_itself() -> None:
    with pytest.raises(ValueError, match=r"'wait_for' has no effect class: write @tool\(effect="):
        tool(wait_for)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a: a, "lambda"),
        (takes_all, "'*args: int', which can't be given by its name"),
        (takes_options, "'**options: int', which can't be given by its name"),
        (takes_by_place, "'a: int', which can't be given by its name"),
        (takes_self, "a method"),
        (Holder.method, "a method"),
        (Holder().method, "a method"),
        (staticmethod(takes_all), "a method"),
        (yields, "a generator"),
        (yields_later, "a generator"),
        (len, "a builtin_function_or_method: wrap it in a function"),
        (Holder, "a type: wrap it in a function"),
        (takes_unknown, "an annotation names 'Missing', which isn't defined"),
        (takes_itself, "parameter 'a' has no schema: 'Node' in the schema of"),
        (takes_object, "parameter 'a' can't be recorded: no JSON form is known for the type Monk"),
        (gives_object, "the result can't be recorded: no JSON form is known"),
        (takes_huge, "keep whole numbers within 2**53 - 1"),
        (größe, "'größe' can't be the name of a tool"),
    ],
)
def test_what_can_not_be_a_tool_is_refused_by_name(
    function: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(ValueError) as refused:
        make_tool(function, effect="read")

    assert reason in str(refused.value)
    assert getattr(function, "__name__", "takes_all") in str(refused.value)


def test_descriptor_changes_with_what_callers_see_and_not_with_the_body() -> None:
    def describe(function: Callable[..., Any], **more: Any) -> Any:
        return make_tool(function, **{"effect": "read", "name": "t", **more}).describe()

    def one(a: int, b: int) -> int:
        return a

    def same(b: int, a: int) -> int:
        return b

    def other(a: int, b: str) -> int:
        return a

    first = describe(one)

    assert {"effect", "description", "parameters", "descriptorHash"} == first.keys()
    assert first["descriptorHash"] == describe(same)["descriptorHash"]
    changed = [describe(other), describe(one, effect="once"), describe(one, description="x")]
    assert len({first["descriptorHash"], *(d["descriptorHash"] for d in changed)}) == 4


def test_tool_of_a_module_travels_as_its_name() -> None:
    assert pickle.loads(pickle.dumps(greet)) is greet
    assert isinstance(greet, Tool)
