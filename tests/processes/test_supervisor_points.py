"""The supervisor is killed at each boundary of its work; runs go on as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import World, finish, judge, worlds
from process_programs import CLASSES

from planaria.protocol.errors import SupervisorUnavailableError

pytestmark = pytest.mark.slow

# S8 twice: a database that is being made is checkpointed before it is used.
AT_START = [("S0", 1), ("S1", 1), ("S2", 1), ("S3", 1), ("S8", 1), ("S8", 2)]
# Twice where a commit is at stake; scripts/sweep does all of them. One blob is written: the lock.
IN_A_RUN = [
    *[("S4", 2), ("S4", 6), ("S5", 3), ("S6", 2), ("S6", 8), ("S7", 5), ("S13", 4)],
    *[("S9", 1), ("S10", 1)],
]
AT_END = [("S8", 3), ("S15", 1)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


@pytest.mark.parametrize(("point", "nth"), AT_START)
def test_supervisor_killed_at_its_start_leaves_a_directory_that_starts(
    world: World, point: str, nth: int
) -> None:
    assert world.start(faults=world.kill_point(point, nth)) is None
    world.start()
    client = world.client()
    client.start(world.load(CLASSES), run_id="r")

    outcome = finish(client)

    judge(world, outcome)
    assert 1 == len(world.kills())


@pytest.mark.parametrize(("point", "nth"), IN_A_RUN)
def test_supervisor_killed_in_a_run_changes_nothing(world: World, point: str, nth: int) -> None:
    world.start(faults=world.kill_point(point, nth))
    workflow = world.load(CLASSES)
    client = world.client()
    client.start(workflow, run_id="r")

    outcome = finish(client)

    judge(world, outcome)
    assert 1 == len(world.kills()), f"{point} was not reached {nth} times"


@pytest.mark.parametrize("point", ["S3", "S6"])
def test_supervisor_killed_in_recovery_changes_nothing(world: World, point: str) -> None:
    world.start(faults=world.kill_point("S6", 6))
    client = world.client(start_if_missing=False)
    client.start(world.load(CLASSES), run_id="r")
    with pytest.raises(SupervisorUnavailableError):
        client.wait("r")
    # Its own start is one commit, and what the run owed the second.
    assert world.start(faults=world.kill_point(point, 2 if point == "S6" else 1)) is None
    again = world.client()

    outcome = finish(again)

    judge(world, outcome)
    assert 2 == len(world.kills())


@pytest.mark.parametrize(("point", "nth"), AT_END)
def test_supervisor_killed_at_its_end_changes_nothing(world: World, point: str, nth: int) -> None:
    world.start(faults=world.kill_point(point, nth))
    client = world.client(start_if_missing=False)
    client.start(world.load(CLASSES), run_id="r")
    outcome = finish(client)
    client.close()

    assert -9 == world.end()
    world.start()

    judge(world, outcome)
    assert world.client(start_if_missing=False).status("r")["status"] == "completed"


def test_supervisor_killed_after_a_childs_death_changes_nothing(world: World) -> None:
    faults = {**world.kill_point("S14"), **world.child_point("C7", ledger=None)}
    world.start(faults=faults)
    client = world.client()
    client.start(world.load(CLASSES), run_id="r")

    outcome = finish(client)

    judge(world, outcome)
    assert 1 == len(world.kills())
