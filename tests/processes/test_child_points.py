"""A child is killed at each point of its life; its run ends as if nothing had happened.

Each point the first time it is reached; scripts/sweep does every time, for more programs.
"""

from pathlib import Path

import pytest
from harness import Trial, try_faults
from process_programs import CLASSES, MODEL, RESUMED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("point", [f"C{number}" for number in range(16) if number != 2])
def test_child_killed_at_a_point_changes_nothing(tmp_path: Path, point: str) -> None:
    trial = try_faults(tmp_path / "world", {"child": {"point": point}}, CLASSES)

    assert Trial(True, None) == trial


@pytest.mark.parametrize("point", ["C2", "C5", "C11"])
def test_child_killed_after_another_one_changes_nothing(tmp_path: Path, point: str) -> None:
    nth = 1 if point == "C2" else 2
    trial = try_faults(tmp_path / "world", {"child": {"point": point, "nth": nth}}, RESUMED)

    assert Trial(True, None) == trial


@pytest.mark.parametrize(("point", "nth"), [("C8", 2), ("C12", 1)])
def test_agents_child_killed_at_a_point_changes_nothing(
    tmp_path: Path, point: str, nth: int
) -> None:
    trial = try_faults(tmp_path / "world", {"child": {"point": point, "nth": nth}}, MODEL)

    assert Trial(True, None) == trial


def test_children_that_are_killed_again_and_again_change_nothing(tmp_path: Path) -> None:
    plan = {"point": "C8", "nth": 1, "times": 3}
    trial = try_faults(tmp_path / "world", {"child": plan}, CLASSES)

    assert Trial(True, None) == trial


def test_process_without_a_result_that_exits_with_0_is_replaced(tmp_path: Path) -> None:
    plan = {"point": "C13", "action": "exit"}
    trial = try_faults(tmp_path / "world", {"child": plan}, CLASSES)

    assert Trial(True, None) == trial
