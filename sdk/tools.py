"""Tools: ordinary functions that declare what doing them twice would mean."""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, cast, get_type_hints

from planaria.protocol.codec import Json, hash_jcs
from planaria.protocol.effects import EXPLANATION, Effect, check_effect
from planaria.protocol.errors import ValueRefusedError
from planaria.protocol.json_paths import extend_path
from planaria.protocol.values import ValueType

from .lookups import Reattach, check_reattach

P = ParamSpec("P")
R = TypeVar("R")

# What providers take as the name of a function, and code in the sandbox can call.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function with its effect class; calling it calls the function.

    `parameters` is the JSON Schema of its arguments, in the subset of workflow documents; it isn't
    to be changed. `reattach` looks up what a `managed` one has done; see planaria.lookups.
    """

    name: str
    description: str
    function: Callable[P, R]
    effect: Effect
    parameters: dict[str, Any]
    reattach: Reattach | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.effect})>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A tool of a module travels as its name there, one of a prompt as its parts."""
        function = cast(FunctionType, self.function)
        module, name = function.__module__, function.__qualname__
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is self:
            return _find_tool, (module, name)
        parts = (self.name, self.description, function, self.effect, self.parameters)
        return Tool, (*parts, self.reattach)

    @property
    def __wrapped__(self) -> Callable[P, R]:
        """The function, for what follows wrappers: inspect.signature, documentation, pytest."""
        return self.function

    @property
    def is_async(self) -> bool:
        """Whether the function is awaited; others run in a thread."""
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def arguments(self) -> dict[str, ValueType]:
        """The types of the parameters, by name."""
        hints = _read_hints(self.name, self.function)
        return {
            name: _make_type(self.name, f"parameter {name!r}", hints.get(name, _UNSAID))
            for name in inspect.signature(self.function).parameters
        }

    @cached_property
    def returns(self) -> ValueType:
        """The type of the result."""
        hints = _read_hints(self.name, self.function)
        return _make_type(self.name, "the result", hints.get("return", _UNSAID))

    def load_arguments(self, args: Json) -> dict[str, Any]:
        """Returns the arguments with the types that the function declares.

        Raises:
            ValueRefusedError: one is missing, unknown, or doesn't fit; names its path.
        """
        try:
            return self._load_arguments(args)
        except ValueRefusedError as error:
            refusal = error.said_of(f"the arguments of tool {self.name!r} don't fit")
        raise refusal  # not chained: pydantic's error would carry the value into tracebacks

    def _load_arguments(self, args: Json) -> dict[str, Any]:
        if not isinstance(args, dict):
            raise ValueRefusedError(path="$", reason="expected a map of arguments")
        for name in args:
            if name not in self.arguments:
                known = ", ".join(self.arguments) or "none"
                reason = f"it has no such argument; it has: {known}"
                raise ValueRefusedError(path=extend_path("$", name), reason=reason)
        for name in self.parameters["required"]:
            if name not in args:
                reason = "it needs this argument, and it isn't given"
                raise ValueRefusedError(path=extend_path("$", name), reason=reason)
        return {
            name: self.arguments[name].load(value, path=extend_path("$", name))
            for name, value in args.items()
        }

    def describe(self) -> dict[str, Any]:
        """Returns what the lock keeps of the tool; its body is no part of it."""
        described: dict[str, Any] = {
            "effect": self.effect,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {**described, "descriptorHash": hash_jcs({"name": self.name, **described})}


_UNSAID = inspect.Parameter.empty


class Decorator(Protocol):
    """What `@tool(...)` gives: it makes a tool of a function and keeps the function's type."""

    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | None = None,
    name: str | None = None,
    description: str | None = None,
    reattach: Reattach | None = None,
) -> Decorator:
    """Makes a tool of a function: `@tool(effect="read")`.

    Arguments and result are typed by the function's annotations; what isn't annotated is plain
    JSON. The description, for models, is the docstring if none is given.

    With effect "managed", `reattach` is called with the idempotency key of a call whose process
    died before its outcome was recorded; it returns Succeeded(result), NeverHappened() or
    Unknown(reason). If it raises, that counts as Unknown.

    Raises:
        ValueError: no effect, an unknown one, "managed" without a lookup or a lookup without
            "managed", or a function that can't be called by names.
    """
    if function is not None or effect is None:
        shown = getattr(function, "__name__", None) or name or "a tool"
        raise ValueError(
            f"{shown!r} has no effect class: write @tool(effect=...) with one of the four. "
            f"{EXPLANATION}"
        )

    def make(decorated: Callable[P, R]) -> Tool[P, R]:
        return make_tool(
            decorated, effect=effect, name=name, description=description, reattach=reattach
        )

    return make


def make_tool(
    function: Callable[P, R],
    *,
    effect: str,
    name: str | None = None,
    description: str | None = None,
    reattach: Reattach | None = None,
) -> Tool[P, R]:
    """Returns the tool that a function is; see `tool`."""
    shown = name or str(getattr(function, "__qualname__", repr(function)[:60]))
    known_effect = check_effect(effect, shown)
    check_reattach(shown, known_effect, reattach)
    _check_function(shown, function)
    own_name = name or cast(FunctionType, function).__name__
    if not _NAME.fullmatch(own_name):
        raise ValueError(
            f"{own_name!r} can't be the name of a tool: models and code call it by its name, so it "
            "is ASCII letters, digits and '_', at most 64. Give another one: @tool(name=...)"
        )
    made: Tool[P, R] = Tool(
        name=own_name,
        description=inspect.cleandoc(
            description if description is not None else inspect.getdoc(function) or ""
        ),
        function=function,
        effect=known_effect,
        parameters=_make_parameters(own_name, function),
        reattach=reattach,
    )
    # Made now, so that a type without a JSON form is met at the declaration and not in a run.
    assert made.arguments.keys() == made.parameters["properties"].keys(), "same signature"
    assert made.returns is not None, "made once and kept"
    return made


def _check_function(name: str, function: Any) -> None:
    """Refuses what can't be found again by name, or can't be called by the names of arguments."""
    if isinstance(function, staticmethod | classmethod) or inspect.ismethod(function):
        _refuse(name, "a method: make it a function of the module")
    if not inspect.isfunction(function):
        _refuse(name, f"a {type(function).__name__}: wrap it in a function with def")
    if function.__name__ == "<lambda>":
        _refuse(name, "a lambda, without a name and types: write it with def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        _refuse(name, "a generator: return a list of what it yields")
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        _refuse(name, "a method: make it a function of the module")
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            _refuse(
                name,
                f"a function with {str(parameter)!r}, which can't be given by its name: write "
                "ordinary parameters",
            )


def _refuse(name: str, what: str) -> NoReturn:
    raise ValueError(f"tool {name!r} is {what}")


def _make_parameters(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    hints = _read_hints(name, function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        what = f"parameter {parameter.name!r}"
        declared = _make_type(name, what, hints.get(parameter.name, _UNSAID))
        try:
            properties[parameter.name] = declared.schema()
        except ValueError as error:
            raise ValueError(f"tool {name!r}: {what} has no schema: {error}") from error
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {
        "type": "object",
        "properties": properties,
        "required": sorted(required),
        "additionalProperties": False,
    }
    try:
        hash_jcs(parameters)
    except ValueError as error:
        raise ValueError(
            f"tool {name!r}: a bound or choice in its parameters has no canonical JSON form "
            f"({error}): keep whole numbers within 2**53 - 1"
        ) from error
    return parameters


def _read_hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(
            f"tool {name!r}: an annotation names {error.name!r}, which isn't defined where the "
            "tool is made: define or import it above, at the top level of the module"
        ) from error


def _make_type(name: str, what: str, annotation: object) -> ValueType:
    try:
        return ValueType(annotation)
    except ValueRefusedError as error:
        reason = error.fields["reason"]
        raise ValueError(f"tool {name!r}: {what} can't be recorded: {reason}") from error


def _find_tool(module: str, name: str) -> Tool[..., Any]:
    import importlib

    return cast(Tool[..., Any], getattr(importlib.import_module(module), name))
