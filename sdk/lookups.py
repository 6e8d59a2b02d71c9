"""What the lookup of a `managed` effect answers, and what may be one."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The effect has happened; `result` is what the tool would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NeverHappened:
    """The effect has not happened and no earlier call can still make it happen."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The lookup can't tell: a person has to; `reason` is for them, in the session's output."""

    reason: str = ""


Answer = Succeeded | NeverHappened | Unknown

# Takes the idempotency key of the call. A synchronous one runs in a thread.
Reattach = Callable[[str], Answer | Awaitable[Answer]]


def check_reattach(tool_name: str, effect: str | None, reattach: object) -> None:
    """Refuses a `managed` tool without a lookup, a lookup of another, and what can't be called.

    Raises:
        ValueError: says what to write.
    """
    if reattach is None:
        if effect == "managed":
            raise ValueError(
                f"tool {tool_name!r} is 'managed' and has no lookup: give reattach=, a function "
                "that takes the idempotency key and returns planaria.Succeeded(result), "
                "planaria.NeverHappened() or planaria.Unknown(reason); a tool that can't be "
                "looked up is 'once'"
            )
        return
    if effect != "managed":
        shown = "no declared effect" if effect is None else f"effect {effect!r}"
        raise ValueError(
            f"tool {tool_name!r} has a lookup (reattach) and {shown}: only a 'managed' one is "
            "looked up. Declare it 'managed', or leave the lookup out"
        )
    try:
        inspect.signature(reattach).bind("idem_")  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"reattach of tool {tool_name!r} can't be called with an idempotency key ({error}): "
            "give a function of one argument, as in def reattach(key): ..."
        ) from error
