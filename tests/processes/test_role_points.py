"""Planner, orchestrator and fixer are killed in each of their turns, and the supervisor with them.

What is recorded isn't asked or done again, and the result is the same. scripts/sweep kills at every
point, every time that it is reached; here each kind of death is met once.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import (
    Trial,
    World,
    finish_program,
    judge,
    try_faults,
    wait_until,
    worlds,
)
from judging import begin
from process_programs import Program
from role_programs import FIXED, ORCHESTRATED, ORCHESTRATED_FEW, PLANNED

pytestmark = pytest.mark.slow

REGISTERED = "WorkflowVersionRegistered"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


def run_to_the_end(world: World, program: Program) -> None:
    client = world.client()
    begin(world, client, program)
    judge(world, finish_program(client, program), program)


# -- the planner -----------------------------------------------------------------------------


def test_planner_that_dies_in_each_of_its_turns_is_asked_only_the_open_one_again(
    world: World,
) -> None:
    world.mark("mortal", "plan")
    world.start()
    run_to_the_end(world, PLANNED)

    assert [0, 0, 1, 1, 2, 2] == [ask["turn"] for ask in world.asks()]


def test_planner_that_dies_after_each_of_its_turns_is_asked_none_again(tmp_path: Path) -> None:
    # C12: the outcome is on disk, and its reader goes. Each successor comes one call further.
    plan = {"point": "C12", "nth": 1, "times": 4}
    trial = try_faults(tmp_path / "world", {"child": plan}, PLANNED)

    assert Trial(True, None) == trial
    world = World(tmp_path / "world")
    assert 4 == len(world.kills())
    assert [0, 1, 2] == [ask["turn"] for ask in world.asks()]


def test_planner_that_dies_once_it_has_handed_in_drafts_nothing_again(tmp_path: Path) -> None:
    trial = try_faults(tmp_path / "world", {"child": {"point": "C13"}}, PLANNED)

    assert Trial(True, None) == trial
    assert [0, 1, 2] == [ask["turn"] for ask in World(tmp_path / "world").asks()]


def test_supervisor_killed_at_the_registration_registers_one_version(world: World) -> None:
    world.start(faults=world.kill_point("S5", event=REGISTERED))
    run_to_the_end(world, PLANNED)

    assert 1 == len(world.kills())
    assert [0, 1, 2] == [ask["turn"] for ask in world.asks()]
    assert 1 == sum(event["type"] == REGISTERED for event in world.events())


# -- the orchestrator ------------------------------------------------------------------------


def kill_orchestrator(world: World, client: Any) -> None:
    """Kills the process that carries the orchestrator's session, once there is one."""

    def find() -> int:
        for one in client.processes():
            if one.get("stepPath") == ".orchestrate" and one.get("pid"):
                return int(one["pid"])
        return 0

    os.kill(wait_until(find, "the orchestrator has a process"), signal.SIGKILL)


def find_finished(world: World) -> dict[str, list[dict[str, Any]]]:
    """Returns the events of the sub-runs that have completed."""
    return {
        run_id: events
        for run_id, events in world.all_events().items()
        if events[-1]["type"] == "RunCompleted" and not events[0]["payload"].get("planOnly")
    }


def judge_sub_runs(world: World, program: Program) -> None:
    """Checks that each sub-run is one run, asked for once, carried out once."""
    runs = world.all_events()
    asked = [
        e["payload"]["subRunId"]
        for e in runs["r"]
        if e["type"] == "SubRunRequested" and not e["payload"].get("planOnly")
    ]
    numbers = [one["n"] for one in world.executions() if one["tool"] == "square"]
    assert program.keys["square"] == len(asked) == len(set(asked)) == len(set(numbers))
    assert set(asked) <= runs.keys()
    versions = {
        e["payload"]["workflowVersionId"]
        for run_id in asked
        for e in runs[run_id]
        if e["type"] == REGISTERED
    }
    assert 1 == len(versions)


def test_fan_out_of_fifty_survives_the_deaths_of_its_orchestrator_and_supervisor(
    world: World,
) -> None:
    # More slots than sub-runs may run at once: those that wait here leave the orchestrator one.
    world.start("--children", "12")
    client = world.client()
    begin(world, client, ORCHESTRATED)
    world.wait_asked("orchestrate", 2)
    kill_orchestrator(world, client)  # none is done
    world.wait_ledger("square", 1)
    kill_orchestrator(world, client)  # one is
    wait_until(  # the others wait for a file; one run has only planned
        lambda: client.count_runs().get("completed") == 31, "30 of 50 sub-runs are done"
    )
    kill_orchestrator(world, client)
    world.wait_ledger("stay", 2)
    finished = find_finished(world)
    world.kill()
    world.mark("thirty")

    outcome = finish_program(client, ORCHESTRATED)

    judge(world, outcome, ORCHESTRATED)
    judge_sub_runs(world, ORCHESTRATED)
    runs = world.all_events()
    assert finished == {run_id: runs[run_id] for run_id in finished}  # adopted as they are
    assert 30 == len(finished)


def test_orchestrator_that_dies_in_each_of_its_turns_is_asked_only_the_open_one_again(
    world: World,
) -> None:
    world.mark("mortal", "orchestrate")
    world.start()
    run_to_the_end(world, ORCHESTRATED_FEW)

    assert [0, 0, 1, 1, 2, 2] == [ask["turn"] for ask in world.asks()]
    judge_sub_runs(world, ORCHESTRATED_FEW)


# -- the fixer -------------------------------------------------------------------------------


def test_fixer_that_dies_in_each_of_its_turns_counts_its_attempts_on(world: World) -> None:
    world.mark("mortal", "fix")
    # The supervisor too: in the second attempt, once its first answer is recorded.
    world.start(faults=world.kill_point("S6", 3, event="harness.model.responded"))
    run_to_the_end(world, FIXED)

    assert 1 == len(world.kills())
    turns = [(ask["attempt"], ask["turn"]) for ask in world.asks()]
    assert [(a, t) for a in (1, 2) for t in (0, 1) for _ in range(2)] == turns
    judge_fix(world)
    assert 2 == sum(one["tool"] == "put" for one in world.executions())  # once per key


def judge_fix(world: World) -> None:
    events = world.events()
    (metadata,) = [
        e["payload"]["metadata"]
        for e in events
        if e["type"] == "StepCompleted" and "metadata" in e["payload"]
    ]
    assert 2 == metadata["fixerAttempts"]
    assert metadata["fixedSource"].startswith("n = put(3)")
    numbers = [e["payload"].get("fixAttempt") for e in events if e["type"] == "StepAttemptStarted"]
    assert [None, 1, 2] == numbers
