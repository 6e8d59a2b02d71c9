"""Effect classes, and the key under which one effect is the same in every attempt."""

from typing import Any, Final, Literal

from .codec import hash_value

Effect = Literal["read", "idempotent", "managed", "once"]
EFFECTS: Final[tuple[Effect, ...]] = ("read", "idempotent", "managed", "once")

# What the lookup of a managed effect may answer.
LOOKUP_ANSWERS = ("succeeded", "never_happened", "unknown")

# Tools of an orchestrator that the supervisor itself carries out, as runs of their own.
SUB_RUN_TOOLS = frozenset({"plan_workflow", "run_workflow", "start_workflow"})

EXPLANATION = (
    "effect='read' changes nothing and may be repeated; 'idempotent' may be repeated with the same "
    "idempotency key; 'managed' can be looked up by its key after a crash; 'once' must never "
    "happen twice and holds the run when its outcome is unknown"
)


def check_effect(effect: object, tool_name: str) -> Effect:
    """Returns the effect class, or raises ValueError with an explanation of the four."""
    for known in EFFECTS:
        if effect == known:
            return known
    raise ValueError(f"tool {tool_name!r} has effect {effect!r}, which is none. {EXPLANATION}")


def make_idempotency_key(
    *, run_id: str, version_id: str, step_path: str, tool_name: str, args: Any, nth: int
) -> str:
    """Returns the key of an effect: the same in every attempt and incarnation.

    `step_path` may contain `@attempt_n`, which is left out; it contains the visit, so branches and
    visits differ. `nth` counts equal calls (same tool, same arguments) of the step from 0.
    """
    digest = hash_value([run_id, version_id, strip_attempts(step_path), tool_name, args, nth])
    return "idem_" + digest.removeprefix("sha256:")[:40]


def strip_attempts(step_path: str) -> str:
    """Returns the path without its `@attempt_n` parts (ids can't contain that mark)."""
    if "@attempt_" not in step_path:
        return step_path
    head, *rest = step_path.split("@attempt_")
    return head + "".join(part.lstrip("0123456789") for part in rest)
