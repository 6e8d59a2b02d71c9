"""The definitions that a process has loaded, and what a step names in one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from planaria.protocol.codec import Json, hash_value
from planaria.protocol.values import ValueType

from .failures import StepConfigError
from .loading import load_parts


class Tool(Protocol):
    """What a child needs of a tool; those of `planaria.tool` have it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def effect(self) -> str: ...
    @property
    def returns(self) -> ValueType: ...
    @property
    def is_async(self) -> bool: ...
    def load_arguments(self, args: Json) -> dict[str, Any]: ...


class Definition(Protocol):
    """What a child needs of a workflow."""

    @property
    def tools(self) -> Mapping[str, Tool]: ...
    @property
    def models(self) -> Mapping[str, Any]: ...


Load = Callable[[Mapping[str, Any]], Any]


class Definitions:
    """Loads each source once in a process; user code is imported here and nowhere before."""

    def __init__(self, modules_directory: Path, load: Load | None = None) -> None:
        self._load = load or (lambda source: load_parts(source, modules_directory))
        self._loaded: dict[str, Definition] = {}

    def find(self, source: Mapping[str, Any]) -> Definition:
        """Returns the definition that a source names.

        Raises:
            UserCodeError: a module failed while it was loaded.
            StepConfigError: what the source names is no workflow.
        """
        key = hash_value(source)
        if key not in self._loaded:
            loaded: Any = self._load(source)
            if not hasattr(loaded, "tools") or not hasattr(loaded, "models"):
                message = f"{source.get('entry')!r} is a {type(loaded).__name__}, no Workflow"
                raise StepConfigError(message=message)
            found: Definition = loaded
            self._loaded[key] = found
        return self._loaded[key]


def find_tool(definition: Definition, name: str) -> Tool:
    """Returns the tool of that name.

    Raises:
        StepConfigError: the definition has none.
    """
    tool = definition.tools.get(name)
    if tool is None:
        listed = ", ".join(sorted(definition.tools)) or "none"
        raise StepConfigError(message=f"the definition has no tool {name!r}; there are: {listed}")
    return tool


def find_model(definition: Definition, slot: str) -> Any:
    """Returns what stands in a model slot: a name, a model, an agent.

    Raises:
        StepConfigError: the definition has no such slot.
    """
    if slot not in definition.models:
        listed = ", ".join(sorted(definition.models)) or "none"
        raise StepConfigError(message=f"there is no model slot {slot!r}; there are: {listed}")
    return definition.models[slot]
