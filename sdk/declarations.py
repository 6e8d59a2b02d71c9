"""What a definition or a call declares in a word: planners, skills, budgets, a loop's answers."""

import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planaria.protocol.errors import UsageError
from planaria.protocol.limits import PLAN_REVISIONS_MAX, PLANNER_TURNS_MAX
from planaria.protocol.lwir_fields import TURNS_MAX

REVISIONS_MAX = 100  # a planner that needs more has been asked for something impossible
INSTRUCTIONS_CHARS_MAX = 100_000
_SKILL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Planner:
    """An agent that drafts the steps of a workflow from its goal, once in each run.

    `model` is a slot of the workflow, or a model with its provider, which makes a slot of that
    name. Findings of a draft's validation go back to the agent, `max_revisions` times at most.

    Raises:
        UsageError: a number or a text that can't be one.
    """

    model: str
    instructions: str = ""
    max_revisions: int = PLAN_REVISIONS_MAX
    max_turns: int = PLANNER_TURNS_MAX

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise UsageError(
                message=f"the model of a Planner is {self.model!r}; name a slot of the workflow"
            )
        check_instructions(self.instructions, "a Planner")
        check_count(self.max_revisions, "max_revisions of a Planner", 0, REVISIONS_MAX)
        check_count(self.max_turns, "max_turns of a Planner", 1, TURNS_MAX)

    def describe(self, slot: str) -> dict[str, Any]:
        """Returns what a lock keeps of it."""
        return {
            "model": slot,
            "instructions": self.instructions,
            "maxRevisions": self.max_revisions,
            "maxTurns": self.max_turns,
        }


@dataclass(frozen=True, slots=True)
class Skill:
    """A text that agents may read when they need it; until then they know its description only.

    `path` is relative to the project that the workflow is defined in, and pinned with it.

    Raises:
        UsageError: a name that can't be one, no description, or a path that leaves the project.
    """

    name: str
    description: str
    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _SKILL_NAME.fullmatch(self.name):
            raise UsageError(
                message=f"{str(self.name)[:60]!r} can't be the name of a skill: expected letters, "
                "digits, '.', '_' and '-', at most 64"
            )
        if not isinstance(self.description, str) or not self.description.strip():
            raise UsageError(
                message=f"skill {self.name!r} has no description: agents decide by it whether to "
                "read the skill"
            )
        path = PurePosixPath(self.path)
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise UsageError(
                message=f"the path of skill {self.name!r} is {str(self.path)[:200]!r}; expected a "
                "file below the project's root, relative to it"
            )
        object.__setattr__(self, "path", path.as_posix())

    def describe(self) -> dict[str, str]:
        """Returns what a lock keeps of it; its body may change."""
        return {"name": self.name, "description": self.description}


@dataclass(frozen=True, slots=True)
class Budget:
    """What the model calls of a run and of its sub-runs may take; a call beyond it isn't made.

    `max_tokens` counts input and output together, `max_cost_usd` by known prices.

    Raises:
        UsageError: no limit at all, or one that can't be one.
    """

    max_model_calls: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_model_calls", "max_tokens"):
            value = getattr(self, name)
            if value is not None:
                check_count(value, f"{name} of a Budget", 1, 2**53 - 1)
        cost = self.max_cost_usd
        is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
        if cost is not None and not (is_number and math.isfinite(cost) and cost > 0):
            raise UsageError(
                message=f"max_cost_usd of a Budget is {cost!r}; expected dollars, more than 0"
            )
        if not self.describe():
            raise UsageError(
                message="a Budget has at least one of max_model_calls, max_tokens, max_cost_usd"
            )

    def describe(self) -> dict[str, Any]:
        """Returns the limits that are set, by the names that requests have for them."""
        limits = {
            "maxModelCalls": self.max_model_calls,
            "maxTokens": self.max_tokens,
            "maxCostUsd": self.max_cost_usd,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Done:
    """Answer of an outer loop's `supervise`: the loop ends with this output."""

    final_output: Any


@dataclass(frozen=True, slots=True)
class Continue:
    """Answer of an outer loop's `supervise`: another cycle, with a note for its planner."""

    prompt_note: str | None = None


def check_instructions(value: object, whose: str) -> None:
    """Refuses instructions that are no text.

    Raises:
        UsageError: says what they are.
    """
    if not isinstance(value, str) or len(value) > INSTRUCTIONS_CHARS_MAX:
        shown = f"{len(value):,} characters" if isinstance(value, str) else type(value).__name__
        raise UsageError(
            message=f"the instructions of {whose} are {shown}; expected a text of at most "
            f"{INSTRUCTIONS_CHARS_MAX:,} characters"
        )


def check_count(value: object, what: str, least: int, most: int) -> None:
    """Refuses what is no whole number in a range; true and false are none.

    Raises:
        UsageError: says what was expected.
    """
    if type(value) is not int or not least <= value <= most:
        raise UsageError(
            message=f"{what} is {str(value)[:60]!r}; expected a whole number from {least} to "
            f"{most:,}"
        )
