"""The definitions that a process has loaded, and what a step names in one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from planaria.lookups import Reattach
from planaria.protocol.codec import Json, hash_value
from planaria.protocol.errors import describe_type
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
    def reattach(self) -> Reattach | None: ...
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


class ForkedDefinition:
    """A definition with other models in some of its slots, as its fork was asked for."""

    def __init__(self, definition: Definition, overrides: Mapping[str, str]) -> None:
        self._definition = definition
        self.models = {**definition.models, **overrides}

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._definition.tools

    def __getattr__(self, name: str) -> Any:
        return getattr(self._definition, name)


Load = Callable[[Mapping[str, Any]], Any]


class Definitions:
    """Loads each source once in a process; user code is imported here and nowhere before."""

    def __init__(self, modules_directory: Path, load: Load | None = None) -> None:
        self._modules_directory = modules_directory
        self._load = load or (lambda source: load_parts(source, modules_directory))
        self._loaded: dict[str, Definition] = {}

    def find(self, source: Mapping[str, Any]) -> Definition:
        """Returns the definition that a source names; `within` leads from one to one it may call.

        Raises:
            UserCodeError: a module failed while it was loaded.
            StepConfigError: what the source names is no workflow.
        """
        within = source.get("within") or ()
        own = ("within", "overrides")  # of the run; many have the same entry
        entry = {name: value for name, value in source.items() if name not in own}
        key = hash_value(entry)
        if key not in self._loaded:
            self._loaded[key] = _check_definition(self._load(entry), repr(source.get("entry")))
        found = self._loaded[key]
        place = str(source.get("entry"))
        for name in within:
            inner = getattr(found, "workflows", {})
            if name not in inner:
                listed = ", ".join(sorted(inner)) or "none"
                message = f"{place} has no workflow {name!r}; there are: {listed}"
                raise StepConfigError(message=message)
            place = f"{place}/{name}"
            found = _check_definition(inner[name], place)
        overrides = source.get("overrides")
        return ForkedDefinition(found, overrides) if overrides else found

    def pin_of(self, source: Mapping[str, Any]) -> Path:
        """Returns the folder of the modules that a source was pinned with."""
        return self._modules_directory / str(source.get("modulesRef", ""))


def _check_definition(loaded: Any, place: str) -> Definition:
    if not hasattr(loaded, "tools") or not hasattr(loaded, "models"):
        raise StepConfigError(message=f"{place} is {describe_type(loaded)}, no Workflow")
    found: Definition = loaded
    return found


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
