"""Four bugs are planted, one after another, and each is found by a sweep like those that pass.

A sweep that doesn't find its planted bug proves nothing. That the same faults find nothing without
the bug is what test_child_points, test_supervisor_points and test_restart show.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from harness import Trial, try_faults
from process_programs import CLASSES, FORGING, Program

pytestmark = pytest.mark.slow

Faults = dict[str, Any]
FORGED = Program(FORGING, "honest", {"forge": 1}, {"do": "incarnation"})


def sweep(folder: Path, make: Callable[[int], Faults], program: Program) -> tuple[int, Trial]:
    """Tries n = 1, 2, 3 … until a trial finds something or nothing is hit any more."""
    for n in count(1):
        trial = try_faults(folder / str(n), make(n), program)
        if trial.problem is not None or not trial.was_hit:
            return n, trial
    raise AssertionError("unreachable")


def kill_at_commit(n: int) -> Faults:
    # A slow disk gives the world time to act on what it was told too early.
    return {"point": "S4", "nth": n, "pause_ms": 30}


def refuse_commit(n: int) -> Faults:
    return {"point": "S5", "nth": n + 1, "action": "commit_error"}


def kill_child(n: int) -> Faults:
    return {"child": {"point": "C12", "nth": n + 2}}


def forge(n: int) -> Faults:
    return {}


PLANTED: dict[str, tuple[Callable[[int], Faults], Program]] = {
    "acknowledge_before_commit": (kill_at_commit, CLASSES),
    "no_incarnation_check": (forge, FORGED),
    "random_call_ids": (kill_child, CLASSES),
    "go_on_after_failed_commit": (refuse_commit, CLASSES),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found_by_its_sweep(tmp_path: Path, bug: str) -> None:
    make, program = PLANTED[bug]

    _, trial = sweep(tmp_path, lambda n: {**make(n), "bugs": [bug]}, program)

    assert trial.problem is not None, f"{bug} wasn't found"
