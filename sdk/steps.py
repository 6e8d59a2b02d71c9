"""Small builders of LWIR steps; each returns the step as a dict, which may be written as well."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

Step = dict[str, Any]
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def generate(
    id: str,
    *,
    model: str,
    prompt: str,
    tools: Sequence[str] = (),
    instructions: str | None = None,
    max_turns: int | None = None,
    **more: Any,
) -> Step:
    """Returns an `ai.generate` step: an agent on a model slot, with tools."""
    arguments: dict[str, Any] = {"model": model, "prompt": prompt}
    if tools:
        arguments["tools"] = [_name_of(tool) for tool in tools]
    if instructions is not None:
        arguments["instructions"] = instructions
    if max_turns is not None:
        arguments["maxTurns"] = max_turns
    return _make(id, "ai.generate", arguments, more)


def call(id: str, tool: Any, *, args: dict[str, Any] | None = None, **more: Any) -> Step:
    """Returns a `tool.call` step: one call of one tool."""
    return _make(id, "tool.call", {"tool": _name_of(tool), "args": args or {}}, more)


def code(id: str, *, source: str, tools: Sequence[Any] = (), **more: Any) -> Step:
    """Returns a `code.run` step: Python in a sandbox that sees `input` and the tools only."""
    arguments: dict[str, Any] = {"source": source}
    if tools:
        arguments["tools"] = [_name_of(tool) for tool in tools]
    return _make(id, "code.run", arguments, more)


def decision(id: str, *, cases: Sequence[tuple[str, str]] = (), default: str, **more: Any) -> Step:
    """Returns a `decision` step; `cases` are (condition, target) in order."""
    listed = [{"when": when, "to": to} for when, to in cases]
    return _make(id, "decision", {"cases": listed, "default": default}, more)


def parallel(
    id: str,
    *,
    items: Any,
    steps: Sequence[Step],
    item_key: str = "{{ item }}",
    max_branches: int = 10_000,
    max_concurrency: int | None = None,
    failure_mode: str = "fail_fast",
    order: str = "input",
    output_step: str | None = None,
    **more: Any,
) -> Step:
    """Returns a `parallel` step: its steps once for each item."""
    fan_in: dict[str, Any] = {"order": order}
    if output_step is not None:
        fan_in["outputStep"] = output_step
    arguments = {
        "items": items,
        "itemKey": item_key,
        "maxBranches": max_branches,
        "maxConcurrency": max_concurrency or max_branches,
        "failureMode": failure_mode,
        "fanIn": fan_in,
    }
    return {**_make(id, "parallel", arguments, more), "steps": list(steps)}


def write_duration(value: timedelta | str) -> str:
    """Returns a duration as documents have it ("90s"); milliseconds are the finest."""
    if isinstance(value, str):
        return value
    milliseconds = round(value / timedelta(milliseconds=1))
    for unit, size in _UNITS:
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    raise AssertionError("every whole number of milliseconds has the unit ms")


def _make(id: str, uses: str, arguments: dict[str, Any], more: dict[str, Any]) -> Step:
    names = {"max_visits": "maxVisits", "on_failure": "onFailure"}
    step: Step = {"id": id, "uses": uses, "with": arguments}
    step.update({names.get(name, name): value for name, value in more.items()})
    return step


def normalize(value: Any) -> Any:
    """Returns a document's part with every timedelta in it written as a duration."""
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, dict):
        return {key: normalize(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normalize(item) for item in value]
    return value


def _name_of(tool: Any) -> str:
    return tool if isinstance(tool, str) else str(tool.name)
