"""Small builders of LWIR steps; each returns the step as a dict, which may be written as well.

What every step may have is given by its LWIR name in Python's spelling: `needs`, `input`,
`output`, `max_visits`, `retry`, `timeout`, `on_failure`, `sensitive`. Where the document wants a
duration, a timedelta will do; where it wants a tool's name, the tool itself; and `output` may be
a Python type.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from planaria.protocol.values import ValueType

Step = dict[str, Any]

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_DURATIONS = frozenset({"timeout", "delay", "maxDelay", "expiresIn", "for"})
_VALUES = frozenset({"input", "args", "data", "items"})
_NAMES = {"max_visits": "maxVisits", "on_failure": "onFailure"}
_MODES = {"object": "object", "array": "array", "string": "text"}


def generate(
    id: str,
    *,
    model: str,
    prompt: str,
    tools: Sequence[Any] = (),
    instructions: str | None = None,
    max_turns: int | None = None,
    **more: Any,
) -> Step:
    """Returns an `ai.generate` step: an agent on a model slot, with tools."""
    arguments: dict[str, Any] = {"model": model, "prompt": prompt}
    if tools:
        arguments["tools"] = tools
    if instructions is not None:
        arguments["instructions"] = instructions
    if max_turns is not None:
        arguments["maxTurns"] = max_turns
    return _make(id, "ai.generate", arguments, more)


def call(id: str, tool: Any, *, args: Any = None, **more: Any) -> Step:
    """Returns a `tool.call` step: one call of one tool."""
    return _make(id, "tool.call", {"tool": tool, "args": {} if args is None else args}, more)


def code(id: str, *, source: str, tools: Sequence[Any] = (), **more: Any) -> Step:
    """Returns a `code.run` step: Python in a sandbox that sees `input` and the tools only."""
    arguments: dict[str, Any] = {"source": source}
    if tools:
        arguments["tools"] = tools
    return _make(id, "code.run", arguments, more)


def decision(id: str, *, cases: Sequence[tuple[Any, str]] = (), default: str, **more: Any) -> Step:
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
        "maxConcurrency": max_branches if max_concurrency is None else max_concurrency,
        "failureMode": failure_mode,
        "fanIn": fan_in,
    }
    return _make(id, "parallel", arguments, {**more, "steps": steps})


def approval(
    id: str,
    *,
    prompt: str,
    data: Any = None,
    expires_in: str | timedelta | None = None,
    on_timeout: str | None = None,
    **more: Any,
) -> Step:
    """Returns an `approval` step: a question to a person, who is shown `prompt` and `data`.

    Its output is {decision: approved|rejected, source: person|timer, by?, note?, decidedAt}. When
    `expires_in` is over, `on_timeout` says whether that rejects (the default) or fails the step.
    """
    given = {"data": data, "expiresIn": expires_in, "onTimeout": on_timeout}
    arguments = {name: value for name, value in given.items() if value is not None}
    return _make(id, "approval", {"prompt": prompt, **arguments}, more)


def wait(
    id: str,
    *,
    signal: str | None = None,
    until: str | datetime | None = None,
    duration: str | timedelta | None = None,
    expires_in: str | timedelta | None = None,
    **more: Any,
) -> Step:
    """Returns a `wait` step: for a signal by its name, until an instant, or for a duration.

    The data of the signal is its output; a signal that doesn't come within `expires_in` fails it.
    No process exists for it meanwhile.
    """
    moment = until.isoformat() if isinstance(until, datetime) else until
    given = {"signal": signal, "until": moment, "for": duration, "expiresIn": expires_in}
    arguments = {name: value for name, value in given.items() if value is not None}
    return _make(id, "wait", arguments, more)


def normalize_steps(steps: Any) -> Any:
    """Returns steps as a document has them, sharing nothing with what was given.

    What a document can't have is left as it is: validation names it with its path.
    """
    if isinstance(steps, Sequence) and not isinstance(steps, str):
        return [normalize_step(step) if isinstance(step, Mapping) else step for step in steps]
    return steps


def normalize_step(step: Mapping[str, Any]) -> Step:
    """Returns one step as a document has it."""
    made: Step = {}
    for name, value in step.items():
        if name == "steps":
            made[name] = normalize_steps(value)
        elif name == "with" and isinstance(value, Mapping):
            made[name] = {key: _name_tools(key, item) for key, item in value.items()}
        elif name == "output" and value is not None and not isinstance(value, Mapping):
            made[name] = describe_output(value)
        else:
            made[name] = value
    return {name: _copy(name, value) for name, value in made.items()}


def describe_output(annotation: Any) -> dict[str, Any]:
    """Returns a step's `output` for a Python type.

    Raises:
        ValueError, ValueRefusedError: the type has no schema.
    """
    schema = ValueType(annotation).schema()
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices and all(isinstance(choice, str) for choice in choices):
        return {"mode": "choice", "values": choices}
    mode = _MODES.get(str(schema.get("type")), "json")
    if not schema or schema == {"type": "string"}:
        return {"mode": mode}
    return {"mode": mode, "schema": schema}


def write_duration(value: timedelta) -> str:
    """Returns a duration as documents have it ("90s"); milliseconds are the finest.

    Raises:
        ValueError: negative, or no whole number of milliseconds.
    """
    milliseconds, rest = divmod(value, timedelta(milliseconds=1))
    if rest or milliseconds < 0:
        raise ValueError(
            f"a duration of {value.total_seconds()} s: expected a whole number of milliseconds, "
            "0 or more"
        )
    if milliseconds == 0:
        return "0s"
    return next(f"{milliseconds // size}{unit}" for unit, size in _UNITS if not milliseconds % size)


def _make(id: str, uses: str, arguments: dict[str, Any], more: dict[str, Any]) -> Step:
    fields = {_NAMES.get(name, name): value for name, value in more.items() if value is not None}
    if more.get("input", 0) is None:
        fields["input"] = None  # null is an input like any other
    return normalize_step({"id": id, "uses": uses, "with": arguments, **fields})


def _name_tools(key: str, value: Any) -> Any:
    if key == "tool":
        return _name_of(value)
    if key == "tools" and isinstance(value, Sequence) and not isinstance(value, str):
        return [_name_of(tool) for tool in value]
    return value


def _name_of(tool: Any) -> Any:
    """Returns a tool's name; any other object has none, and validation says so."""
    return tool if isinstance(tool, str) else getattr(tool, "name", tool)


def _copy(name: str | None, value: Any) -> Any:
    """Copies a field; inside of values, which have no `name`, a timedelta is left to be refused."""
    if isinstance(value, timedelta) and name in _DURATIONS:
        return write_duration(value)
    if type(value) is dict:
        is_value = name is None or name in _VALUES
        return {key: _copy(None if is_value else key, item) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [_copy(None if name is None else "", item) for item in value]
    return value
