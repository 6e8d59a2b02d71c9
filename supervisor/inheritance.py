"""What a fork inherits of the run that it comes from: committed steps, branches, effects.

It is computed once, when the fork is asked for, and stored as a blob that `RunForked` names: the
fork needs nothing of the other run's log. Paths stand without attempts, which are the fork's own.
"""

from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.effects import strip_attempts


@dataclass(frozen=True, slots=True)
class Inheritance:
    """`steps`: {"output": wrapped} or {"chosen": id} by path; `branches`: wrapped outputs by the
    path of a group's visit, then by key; `performed`: wrapped results by step path, then by key;
    `origins`: (run id, version id) under which those keys were made.
    """

    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    branches: dict[str, dict[str, Any]] = field(default_factory=dict)
    performed: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: tuple[tuple[str, str], ...] = ()

    def step(self, path: str) -> dict[str, Any] | None:
        """Returns what is recorded of a visit, or None."""
        return self.steps.get(strip_attempts(path))

    def dump(self) -> dict[str, Any]:
        """Returns it as JSON."""
        return {
            "steps": self.steps,
            "branches": self.branches,
            "performed": self.performed,
            "origins": [list(origin) for origin in self.origins],
        }


def load_inheritance(dumped: Any) -> Inheritance:
    """Returns what `dump` gave."""
    origins = tuple((run_id, version_id) for run_id, version_id in dumped["origins"])
    return Inheritance(dumped["steps"], dumped["branches"], dumped["performed"], origins)
