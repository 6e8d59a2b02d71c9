"""Model slots: what may stand in one, and what a lock keeps of it."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.codec import hash_jcs
from planaria.protocol.effects import check_effect
from planaria.protocol.errors import UsageError, ValueRefusedError, describe_type
from planaria.protocol.values import check_json

from .lookups import Reattach, check_reattach

# pydantic-ai's form; `test` is its model for tests, the only name without a provider.
_NAME = re.compile(r"[a-z0-9_/-]+:\S+|test")


@dataclass(frozen=True, slots=True)
class AgentWorker:
    """Any pydantic-ai agent as the worker of a model slot, made crash-proof by its session.

    `deps` makes the agent's dependencies in the child, once per session. `effects` declares the
    effect class of tools by name; an undeclared one counts as `once`. `reattach` gives the lookups
    of those declared `managed`, by name; see planaria.tool.

    Raises:
        ValueError: an effect class that there isn't, `managed` without a lookup, or a lookup of
            another.
        TypeError: no agent, or `deps` isn't a function.
    """

    agent: Any
    deps: Callable[[], Any] | None = None
    effects: Mapping[str, str] = field(default_factory=dict)
    reattach: Mapping[str, Reattach] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _is_a(self.agent, "pydantic_ai.agent", "AbstractAgent"):
            raise TypeError(
                f"AgentWorker takes a pydantic-ai Agent, got a {type(self.agent).__name__}; a "
                "model's name or a Model stands in a slot by itself"
            )
        if self.deps is not None and not callable(self.deps):
            raise TypeError(
                f"deps of an AgentWorker is {describe_type(self.deps)}; give a function that "
                "makes the dependencies: they are made in the child, and never travel there"
            )
        for name, effect in self.effects.items():
            check_effect(effect, name)
        for name in {**self.effects, **self.reattach}:
            check_reattach(name, self.effects.get(name), self.reattach.get(name))


def is_model_name(text: str) -> bool:
    """Whether a text names a model with its provider."""
    return _NAME.fullmatch(text) is not None


def check_slot(slot: str, value: Any) -> None:
    """Refuses what can't stand in a model slot.

    Raises:
        UsageError: says what may.
    """
    if isinstance(value, str):
        if not _NAME.fullmatch(value):
            raise UsageError(
                message=f"model slot {slot!r} holds {value[:60]!r}; write it with its provider, "
                "as in 'anthropic:claude-haiku-4-5'"
            )
        return
    is_known = (
        isinstance(value, AgentWorker)
        or _is_a(value, "pydantic_ai.models", "Model")
        or _is_a(value, "pydantic_ai.agent", "AbstractAgent")
    )
    if not is_known:
        raise UsageError(
            message=f"model slot {slot!r} holds a {type(value).__name__}; expected a name such as "
            "'anthropic:claude-haiku-4-5', a pydantic-ai Model, an Agent or an AgentWorker"
        )


def describe_slot(value: Any) -> dict[str, Any]:
    """Returns what the lock keeps of a slot; the same in every process that loads the definition.

    Of objects that is what their public surface says: names, settings that are JSON, tools and
    their effects. A function inside of one is no part of it.
    """
    described = _describe(value)
    name = described["model"]
    return {
        "model": name if isinstance(name, str) else None,
        "descriptorHash": hash_jcs(described),
    }


def is_agent(value: Any) -> bool:
    """Whether a slot holds an agent, which brings more than a model: tools, instructions."""
    return not isinstance(value, str) and not _is_a(value, "pydantic_ai.models", "Model")


def _describe(value: Any) -> dict[str, Any]:
    if isinstance(value, str) or value is None:
        return {"kind": "name", "model": value}
    if isinstance(value, AgentWorker):
        effects = dict(sorted(value.effects.items()))
        return {**_describe(value.agent), "kind": "worker", "effects": effects}
    if _is_a(value, "pydantic_ai.models", "Model"):
        return {
            "kind": "model",
            "model": f"{value.system}:{value.model_name}",
            "settings": _keep_json(value.settings or {}),
        }
    model = value.model
    return {
        "kind": "agent",
        "model": model if isinstance(model, str) else _describe(model)["model"],
        "name": value.name,
        "tools": sorted(_list_tools(value)),
    }


def _list_tools(agent: Any) -> list[str]:
    """Returns the names of the function tools, and the ids of the agent's other toolsets."""
    names: list[str] = []
    for toolset in agent.toolsets:
        tools = getattr(toolset, "tools", None)
        names += list(tools) if isinstance(tools, dict) else [f"toolset {toolset.id}"]
    return names


def _keep_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in settings.items():
        try:
            check_json(value)
        except ValueRefusedError:
            continue  # such as a client's timeout object, whose text has an address in it
        kept[name] = value
    return kept


def _is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a pydantic-ai class; without importing what takes half a second.

    If its module isn't loaded, nothing in this process can be an instance.
    """
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))
