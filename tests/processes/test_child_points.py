"""A child is killed at each point of its life; its run ends as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import World, finish, judge, worlds
from process_programs import CLASSES

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


@pytest.mark.parametrize("point", [f"C{number}" for number in range(16) if number != 2])
def test_child_killed_at_a_point_changes_nothing(world: World, point: str) -> None:
    world.start(faults=world.child_point(point))
    client = world.client()
    client.start(world.load(CLASSES), run_id="r")

    outcome = finish(client)

    judge(world, outcome)
    assert [] != world.kills(), f"{point} was never reached"
