"""Stray messages, ends, stops and requests: recorded where they belong, and nowhere else."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from test_decide import WARNING, open_world, report, steps
from test_programs import make_tools
from world import World

from planaria.protocol.errors import (
    CapabilityDriftError,
    InputSchemaError,
    RunInputMismatchError,
    RunNotFoundError,
)
from planaria.supervisor.kernel_messages import (
    AdmitRun,
    CancelRun,
    HistoryAsked,
    ProcessEnded,
    ProcessReady,
    ProcessSeen,
    SessionReported,
    StopSystem,
    Tick,
)


def strays(world: World) -> Iterator[Any]:
    """Messages that come late, early, twice or from nobody; of every kind."""
    ids = [*world.kernel.system.processes, "p9-9"]
    for process_id in ids:
        yield ProcessReady(process_id, 7, 7)
        yield ProcessSeen(process_id)
        yield HistoryAsked(process_id, "hs_x", 1, 0)
        yield SessionReported(process_id, "hs_x", 1, 0, [WARNING])
        yield SessionReported(process_id, "hs_x", 1, 0, [])
        child = world.children.get(process_id)
        if child is not None and child.session:
            yield report(child, after=0)
            yield report(child, WARNING, after=child.reported + 5)
            yield report(child, WARNING, incarnation=child.session["incarnation"] + 1)
    yield ProcessEnded("p9-9", 0, None)
    yield CancelRun(None, "run_x", "req")
    yield Tick()


def test_stray_message_in_any_state_is_recorded_nowhere_and_changes_no_output() -> None:
    count, number = 0, 0
    while True:
        number = 0
        while True:
            world = World(make_tools(), children_max=2)
            world.admit(steps(), {})
            if not world.step(count):
                return
            messages = list(strays(world))
            if number >= len(messages):
                break
            length = len(world.log)
            world.handle(messages[number])
            added = [event.type for event in world.events()[length:]]
            # A process that says it is ready may get a session; nothing else may follow.
            assert set(added) <= {"ProcessStarted"}, (count, messages[number], added)
            world.run()
            assert world.state().status == "completed", (count, messages[number])
            assert world.state().output == {"x": 2}
            number += 1
        count += 3


@pytest.mark.parametrize("count", range(0, 30, 3))
def test_process_that_ends_twice_ends_once(count: int) -> None:
    world = World(make_tools(), children_max=2)
    world.admit(steps(), {})
    world.step(count)
    for process_id in list(world.children):
        world.kill_child(process_id)
        world.inbox.append(ProcessEnded(process_id, None, 9))
    world.run()

    assert world.state().output == {"x": 2}
    ended = [
        (e.session_id, e.payload["incarnation"])
        for e in world.events()
        if e.type == "ProcessExited"
    ]
    assert len(ended) == len(set(ended))


@pytest.mark.parametrize("count", range(0, 40, 2))
def test_stopped_system_puts_its_sessions_away_and_starts_none(count: int) -> None:
    world = World(make_tools(), children_max=2)
    world.admit(steps(), {})
    world.step(count)
    length = len(world.log)
    world.handle(StopSystem())
    world.run()

    assert not world.children
    assert "ProcessStarted" not in [event.type for event in world.events()[length:]]
    world.crash()
    world.run()
    assert world.state().output == {"x": 2}


def admission(world: World, **changes: Any) -> AdmitRun:
    taken: list[AdmitRun] = []
    world.request = taken.append  # type: ignore[method-assign]
    world.admit(changes.pop("document", steps()), changes.pop("value", {}), **changes)
    del world.request  # type: ignore[method-assign]
    return taken[0]


def test_same_run_id_attaches_with_the_same_input_and_is_a_conflict_with_another() -> None:
    world, _ = open_world()
    length = len(world.log)
    other = copy.deepcopy(steps())
    other["steps"][0]["with"]["args"] = {"x": 9}
    for changes, expected in (
        ({}, None),
        ({"value": {"y": 1}}, RunInputMismatchError),
        ({"document": other}, CapabilityDriftError),
    ):
        world.handle(admission(world, **changes))
        answer = world.answers[-1]
        if expected is None:
            assert answer.result["runId"] == "run_1" and answer.result["attached"]
        else:
            assert type(answer.error) is expected
    assert len(world.log) == length


def test_input_that_does_not_fit_is_refused_before_anything_is_recorded() -> None:
    world = World(make_tools())
    strict = {**steps(), "input": {"schema": {"type": "object", "required": ["x"]}}}
    world.handle(admission(world, document=strict))

    assert type(world.answers[-1].error) is InputSchemaError
    assert not world.log and not world.kernel.system.runs


def test_cancelling_an_unknown_run_says_so() -> None:
    world = World(make_tools())
    world.cancel("run_x")

    assert type(world.answers[-1].error) is RunNotFoundError
    assert not world.log
