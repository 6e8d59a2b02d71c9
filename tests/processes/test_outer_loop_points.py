"""Outer loops are killed in each row of their table, and between the files' operations.

After each the output, the states that `supervise` was asked with and the bytes of the manifest are
those of a loop that nobody disturbed. Then callers in processes of their own, who share a loop.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import (
    DEADLINE_SECONDS,
    World,
    finish_program,
    judge,
    wait_until,
    worlds,
)
from judging import LOOP_ID, begin
from process_programs import Program
from role_programs import EXHAUSTED_SOURCE, HELD_LOOP_SOURCE, LOOPED

from planaria.protocol.errors import RunFailedError

pytestmark = pytest.mark.slow

# Where the supervisor is killed, and what that is in the life of a loop of two cycles.
KILLED_AT: dict[str, dict[str, Any]] = {
    "inside the first cycle": {"point": "S6", "event": "harness.tool_call.started"},
    "the run has ended, supervise wasn't asked": {"point": "S6", "event": "RunCompleted"},
    "the last cycle is recorded, its manifest isn't": {"point": "S11", "nth": 2},
    "the first manifest is written, its loop isn't recorded": {
        "point": "S4",
        "event": "RunAdmitted",
    },
    "between cycles, the next one's run isn't recorded": {
        "point": "S4",
        "event": "RunAdmitted",
        "nth": 2,
    },
    **{f"manifest {n} has no name yet": {"point": "S12", "nth": n} for n in (1, 2, 3, 4)},
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world in which the loop ran to its end."""
    found = worlds(tmp_path_factory.mktemp("undisturbed"))
    world = next(found)
    world.start()
    client = world.client()
    begin(world, client, LOOPED)
    judge(world, finish_program(client, LOOPED), LOOPED)
    client.close()
    assert 0 == world.end()
    found.close()
    yield world


def read_manifest(world: World) -> bytes:
    return (world.directory / "outer-loops" / f"{LOOP_ID}.json").read_bytes()


def states(world: World) -> list[Any]:
    return [one["state"] for one in world.asks() if one["ask"] == "supervise"]


def check_same(world: World, undisturbed: World, *, asked_again: int = 0) -> None:
    """Checks manifest, states and the loop's own event against the loop that nobody disturbed."""
    assert read_manifest(undisturbed) == read_manifest(world)
    asked = states(world)
    assert 2 + asked_again == len(asked)
    assert states(undisturbed) == [s for n, s in enumerate(asked) if s not in asked[:n]]
    started = [e for e in world.events("run_system") if e["type"] == "OuterLoopStarted"]
    assert [LOOP_ID] == [event["payload"]["outerLoopId"] for event in started]
    assert [f"{LOOP_ID}.json"] == os.listdir(world.directory / "outer-loops")


@pytest.mark.parametrize("row", KILLED_AT)
def test_supervisor_killed_at_a_point_of_a_loop_changes_nothing(
    world: World, undisturbed: World, row: str
) -> None:
    world.start(faults=world.kill_point(**KILLED_AT[row]))
    client = world.client()
    begin(world, client, LOOPED)

    judge(world, finish_program(client, LOOPED), LOOPED)

    assert 1 == len(world.kills())
    check_same(world, undisturbed)


def test_child_killed_inside_a_cycle_changes_nothing(world: World, undisturbed: World) -> None:
    world.start(faults=world.child_point("C7"))
    client = world.client()
    begin(world, client, LOOPED)

    judge(world, finish_program(client, LOOPED), LOOPED)

    assert 1 == len(world.kills())
    check_same(world, undisturbed)


def test_supervise_that_dies_each_time_is_asked_again_with_an_equal_state(
    world: World, undisturbed: World
) -> None:
    world.mark("mortal", "supervise")
    world.start()
    client = world.client()
    begin(world, client, LOOPED)

    judge(world, finish_program(client, LOOPED), LOOPED)

    check_same(world, undisturbed, asked_again=2)
    assert [1, 1, 2, 2] == [ask["turn"] for ask in world.asks()]


def test_supervisor_killed_inside_supervise_asks_again_with_an_equal_state(
    world: World, undisturbed: World
) -> None:
    world.mark("held")
    world.start()
    client = world.client()
    begin(world, client, LOOPED)
    world.wait_asked("supervise")
    world.kill()
    world.mark("released")

    judge(world, finish_program(client, LOOPED), LOOPED)

    check_same(world, undisturbed, asked_again=1)


def test_finished_loop_gives_its_output_again_and_runs_nothing(
    world: World, undisturbed: World
) -> None:
    world.start()
    client = world.client()
    begin(world, client, LOOPED)
    finish_program(client, LOOPED)
    world.kill()
    events, asks, manifest = world.all_events(), world.asks(), read_manifest(world)

    begin(world, client, LOOPED)
    again = finish_program(client, LOOPED)

    judge(world, again, LOOPED)
    assert (events, asks, manifest) == (world.all_events(), world.asks(), read_manifest(world))
    check_same(world, undisturbed)


def test_exhausted_loop_is_exhausted_again_and_runs_nothing(world: World) -> None:
    program = Program(EXHAUSTED_SOURCE, None, {}, {"n": 5}, asks={"supervise": 2}, cycles_max=2)
    world.start()
    client = world.client()
    begin(world, client, program)
    with pytest.raises(RunFailedError) as first:
        finish_program(client, program)
    world.kill()
    events, asks, manifest = world.all_events(), world.asks(), read_manifest(world)

    begin(world, client, program)
    with pytest.raises(RunFailedError) as second:
        finish_program(client, program)

    assert "outer_loop_exhausted" == first.value.cause_code
    assert str(first.value) == str(second.value)
    assert (events, asks, manifest) == (world.all_events(), world.asks(), read_manifest(world))
    assert "pendingCycleRunId" not in json.loads(manifest)
    assert 2 == len(asks)


# -- callers in processes of their own --------------------------------------------------------

CALLER = """
import json, sys
from planaria import run
from flow import flow, supervise

facts = json.loads(sys.argv[1])
result = run(flow, {"n": facts.get("n", 5)}, max_outer_cycles=3, outer_loop_id=facts["loop"],
    supervise=supervise, data_dir=facts["data"], wait_timeout=facts.get("wait"))
print(json.dumps([result.output, [one["runId"] for one in result.cycles]]), flush=True)
"""


class Callers:
    """Processes that call `run(…, outer_loop_id=…)` in the world's project."""

    def __init__(self, world: World, source: str) -> None:
        self._world = world
        world.load(source)
        (world.folder / "project" / "caller.py").write_text(CALLER)
        self._started: list[subprocess.Popen[str]] = []

    def call(self, loop_id: str = LOOP_ID, **facts: Any) -> "subprocess.Popen[str]":
        """Starts a caller."""
        given = {"loop": loop_id, "data": str(self._world.directory), **facts}
        process = subprocess.Popen(
            [sys.executable, "caller.py", json.dumps(given)],
            cwd=self._world.folder / "project",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def callers(world: World) -> Iterator[Callers]:
    found = Callers(world, HELD_LOOP_SOURCE)
    yield found
    found.close()


def read_result(process: "subprocess.Popen[str]") -> Any:
    output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert 0 == process.returncode, errors
    return json.loads(output)


def is_waiting(process: "subprocess.Popen[str]") -> bool:
    """Says whether a caller is connected to a supervisor."""
    folder = f"/proc/{process.pid}/fd"
    try:
        links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    except OSError:  # one was closed meanwhile
        return False
    return any("pidfd" in link for link in links)


def test_callers_of_one_loop_share_it_and_those_who_leave_disturb_nobody(
    world: World, callers: Callers
) -> None:
    world.start()
    first = callers.call()
    world.wait_ledger("put")
    second, third = callers.call(), callers.call()
    impatient = callers.call(wait=0.2)
    other = callers.call("other", n=6)  # its tool waits for nothing
    assert 12 == read_result(other)[0][0]
    _, errors = impatient.communicate(timeout=DEADLINE_SECONDS)
    assert 0 != impatient.returncode and "WaitTimeoutError" in errors
    wait_until(lambda: is_waiting(third), "the third caller waits")
    third.send_signal(signal.SIGINT)
    _, errors = third.communicate(timeout=DEADLINE_SECONDS)
    assert f"outer loop {LOOP_ID!r} is left open" in errors
    assert first.poll() is None and second.poll() is None
    world.mark("open")

    results = [read_result(first), read_result(second)]

    assert [10, 10] == results[0][0]
    assert results[0] == results[1]
    asked = [ask["turn"] for ask in world.asks()]
    assert [1, 1, 2, 2] == sorted(asked)  # once in each cycle of either loop
    assert 4 == len(world.executions())


def test_loop_whose_caller_is_gone_is_driven_on_by_planaria_up(
    world: World, callers: Callers
) -> None:
    caller = callers.call()
    world.wait_ledger("put")
    caller.kill()
    caller.wait()
    world.mark("open")
    # The supervisor was there for the call; it lets the effect in flight end first.
    wait_until(lambda: not world.find_processes(), "the supervisor has ended")
    assert [] == world.asks()
    run_planaria(world, "up", "--detach")
    try:
        client = world.client(start_if_missing=False)
        judge(world, finish_program(client, LOOPED), LOOPED)
        client.close()
    finally:
        run_planaria(world, "down")


def run_planaria(world: World, *words: str) -> None:
    words = (sys.executable, "-m", "planaria", *words, "--data-dir", str(world.directory))
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert 0 == done.returncode, done.stderr
