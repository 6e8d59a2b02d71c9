"""The supervisor is killed at each boundary of its work; runs go on as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import CLASSES, World, finish, judge, worlds

pytestmark = pytest.mark.slow

AT_START = ("S0", "S1", "S2", "S3")
IN_A_RUN = ("S4", "S5", "S6", "S7", "S9", "S10", "S13")
AT_END = ("S8", "S15")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


@pytest.mark.parametrize("point", AT_START)
def test_supervisor_killed_at_its_start_leaves_a_directory_that_starts(
    world: World, point: str
) -> None:
    assert world.start(faults=world.kill_point(point)) is None
    world.start()
    client = world.client()
    client.start(world.load(CLASSES), run_id="r")

    outcome = finish(client)

    judge(world, outcome)
    assert 1 == len(world.kills())


@pytest.mark.parametrize("nth", [2, 5, 9])
@pytest.mark.parametrize("point", IN_A_RUN)
def test_supervisor_killed_in_a_run_changes_nothing(world: World, point: str, nth: int) -> None:
    nth = 1 if point in ("S9", "S10") and nth == 2 else nth
    world.start(faults=world.kill_point(point, nth))
    workflow = world.load(CLASSES)
    client = world.client()
    client.start(workflow, run_id="r")

    outcome = finish(client)

    judge(world, outcome)
    if point not in ("S9", "S10") or nth == 1:  # only the lock of the workflow is a blob
        assert 1 == len(world.kills()), f"{point} was not reached {nth} times"


@pytest.mark.parametrize("point", AT_START)
def test_supervisor_killed_in_recovery_changes_nothing(world: World, point: str) -> None:
    world.start(faults=world.kill_point("S6", 6))
    client = world.client(start_if_missing=False)
    workflow = world.load(CLASSES)
    client.ask("ping")
    with pytest.raises(Exception):  # noqa: B017
        client.start(workflow, run_id="r")
        client.wait("r")
    assert world.start(faults=world.kill_point(point)) is None
    again = world.client()

    outcome = finish(again)

    judge(world, outcome)
    assert 2 == len(world.kills())


@pytest.mark.parametrize("point", AT_END)
def test_supervisor_killed_at_its_end_changes_nothing(world: World, point: str) -> None:
    world.start(faults=world.kill_point(point))
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
