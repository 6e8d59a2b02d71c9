"""The effect class of every tool that an agent may call, from what was declared for it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_ai.tools import ToolDefinition

from planaria.protocol.effects import Effect, check_effect
from planaria.protocol.errors import UsageError

METADATA_KEY = "planaria"  # Tool(metadata={"planaria": {"effect": "read"}})


class ToolEffects:
    """Resolves effect classes; undeclared tools count as `once`, with one notice for all."""

    def __init__(self, overrides: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._overrides: dict[str, Effect] = {
            name: _checked(effect, name) for name, effect in overrides.items()
        }
        self._warn = warn
        self._noticed = False

    def of(self, kind: str, names: Iterable[str], definition: ToolDefinition | None) -> Effect:
        """Returns the effect of a tool.

        `kind` is that of its toolset; `names` are the name that the model sees and the toolset's
        own (a prefix makes them differ), in the order in which overrides are looked up.
        """
        names = tuple(names)
        for name in names:
            if name in self._overrides:
                return self._overrides[name]
        metadata = (definition.metadata if definition is not None else None) or {}
        declared = declared_effect(metadata, names[0])
        if declared is not None:
            return declared
        if kind == "mcp":
            return effect_of_annotations(metadata.get("annotations"))
        self.notice([names[0]])
        return "once"

    def is_local(self, definition: ToolDefinition | None) -> bool:
        """Returns whether the tool acts on its own session only; see Journal.call_tool."""
        own = ((definition.metadata if definition is not None else None) or {}).get(METADATA_KEY)
        return isinstance(own, Mapping) and own.get("local") is True

    def is_declared(self, name: str, metadata: Mapping[str, Any] | None) -> bool:
        """Returns whether the tool needs no notice."""
        return name in self._overrides or declared_effect(metadata or {}, name) is not None

    def notice(self, names: list[str]) -> None:
        """Says once that these tools have no declared effect, and what that means."""
        if names and not self._noticed:
            self._noticed = True
            listed = ", ".join(repr(name) for name in names)
            self._warn(
                f"no effect is declared for {listed}: counted as 'once', so a process that dies "
                f"inside one holds the run until a person decides. Declare it, "
                f"for example effects={{{names[0]!r}: 'read'}}"
            )


def declared_effect(metadata: Mapping[str, Any], tool_name: str) -> Effect | None:
    """Returns the effect that the tool's own metadata declares, if they do."""
    own = metadata.get(METADATA_KEY)
    if not isinstance(own, Mapping) or "effect" not in own:
        return None
    return _checked(own["effect"], tool_name)


def effect_of_annotations(annotations: object) -> Effect:
    """Returns what an MCP server's annotations promise; without a promise it is `once`."""
    if isinstance(annotations, Mapping):
        if annotations.get("readOnlyHint") is True:
            return "read"
        if annotations.get("idempotentHint") is True:
            return "idempotent"
    return "once"


def _checked(effect: object, tool_name: str) -> Effect:
    try:
        return check_effect(effect, tool_name)
    except ValueError as error:
        raise UsageError(message=str(error)) from error
