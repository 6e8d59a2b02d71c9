"""Tools: ordinary functions that declare what doing them twice would mean."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints, overload

from planaria.protocol.codec import Json, hash_jcs
from planaria.protocol.effects import EXPLANATION, Effect, check_effect
from planaria.protocol.errors import ValueRefusedError
from planaria.protocol.values import ValueType

F = TypeVar("F", bound=Callable[..., Any])
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with its effect class and the types of its arguments and result.

    Calling it calls the function, so a decorated function still works and tests as one.
    """

    name: str
    description: str
    function: Callable[..., Any]
    effect: Effect
    arguments: dict[str, ValueType]
    required: frozenset[str]
    parameters: dict[str, Any] = field(compare=False)
    returns: ValueType
    is_async: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def load_arguments(self, args: Json) -> dict[str, Any]:
        """Returns the arguments with the types that the function declares.

        Raises:
            ValueRefusedError: one is missing, unknown, or doesn't fit; names its path.
        """
        if not isinstance(args, dict):
            raise ValueRefusedError(path="$", reason=f"{self.name}() takes a map of arguments")
        for name in args:
            if name not in self.arguments:
                known = ", ".join(self.arguments) or "none"
                raise ValueRefusedError(
                    path=f"$.{name}", reason=f"{self.name}() has no such argument; it has: {known}"
                )
        for name in sorted(self.required):
            if name not in args:
                raise ValueRefusedError(path=f"$.{name}", reason=f"{self.name}() needs it")
        return {
            name: self.arguments[name].load(value, path=f"$.{name}")
            for name, value in args.items()
        }

    def describe(self) -> dict[str, Any]:
        """Returns what the lock keeps of the tool; its body is no part of it."""
        described: dict[str, Any] = {
            "effect": self.effect,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {**described, "descriptorHash": hash_jcs(described)}


@overload
def tool(function: F, /) -> Tool: ...
@overload
def tool(
    *, effect: Effect, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Any = _MISSING,
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Makes a tool of a function: `@tool(effect="read")`.

    Arguments and result are typed by the function's annotations; what isn't annotated is plain
    JSON. The description, for models, is the docstring.

    Raises:
        ValueError: no effect, an unknown one, or a function that can't be called by names.
    """
    if effect is _MISSING:
        what = getattr(function, "__name__", "a tool")
        raise ValueError(f"{what}: say its effect class, @tool(effect=...). {EXPLANATION}")

    def make(inner: Callable[..., Any]) -> Tool:
        return make_tool(inner, effect=effect, name=name, description=description)

    return make(function) if function is not None else make


def make_tool(
    function: Callable[..., Any],
    *,
    effect: str,
    name: str | None = None,
    description: str | None = None,
) -> Tool:
    """Returns the tool that a function is; see `tool`."""
    found_name = name or getattr(function, "__name__", "")
    if not found_name.isidentifier():
        raise ValueError(f"a tool needs a name that is an identifier, not {found_name!r}")
    known_effect = check_effect(effect, found_name)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(f"tool {found_name!r}: an annotation can't be found: {error}") from error
    arguments: dict[str, ValueType] = {}
    required: set[str] = set()
    properties: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"tool {found_name!r}: {parameter} can't be given by name; use named parameters"
            )
        declared = ValueType(hints.get(parameter.name, inspect.Parameter.empty))
        arguments[parameter.name] = declared
        properties[parameter.name] = _schema_of(declared, f"{found_name}({parameter.name})")
        if parameter.default is parameter.empty:
            required.add(parameter.name)
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": sorted(required),
        "additionalProperties": False,
    }
    return Tool(
        name=found_name,
        description=inspect.cleandoc(description or function.__doc__ or ""),
        function=function,
        effect=known_effect,
        arguments=arguments,
        required=frozenset(required),
        parameters=parameters,
        returns=ValueType(hints.get("return", inspect.Parameter.empty)),
        is_async=inspect.iscoroutinefunction(function),
    )


def _schema_of(declared: ValueType, what: str) -> dict[str, Any]:
    try:
        return declared.schema()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what}: its type has no schema: {error}") from error
