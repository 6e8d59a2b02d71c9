"""Waits, signals and pauses: exact instants, once, no process meanwhile; crashes at every point."""

from collections.abc import Callable
from typing import Any

import programs
import pytest
from decisions import (
    approval_program,
    ask,
    decide,
    move,
    output_of,
    pause_for,
    set_paused,
    signal,
    start,
)
from programs import call, document
from test_order import of
from test_programs import make_tools
from world import World

from planaria.protocol.errors import ConflictError
from planaria.supervisor.kernel_messages import CancelRun, Tick

# -- waits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "due_us"),
    [
        ({"for": "90s"}, 90_000_000),
        ({"for": "{{ '2h' }}"}, 7_200_000_000),
        ({"until": "2023-11-15T00:00:00Z"}, None),
        ({"until": "{{ '2023-11-15T01:00:00+01:00' }}"}, None),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_instant_is_waited_for_exactly(
    fields: dict[str, Any], due_us: int | None, is_restarted: bool
) -> None:
    world = World(make_tools())
    world.admit(document(pause_for(**fields), call("b", needs=["wait"])), {"x": 3})
    world.run(until=lambda: bool(of(world, "WaitStarted")))
    (started,) = of(world, "WaitStarted")
    due = started.payload["dueAt"]
    assert due == (1_700_006_400_000_000 if due_us is None else started.at + due_us)

    move(world, due - 1 - world.at)
    if is_restarted:
        world.crash()
        world.handle(Tick())
    assert not of(world, "WaitCompleted") and not world.children
    move(world, 1)
    move(world, 0)

    assert [e.payload["outcome"] for e in of(world, "WaitCompleted")] == ["timer"]
    world.run()
    assert world.state().status == "completed"


@pytest.mark.parametrize("value", ["soon", 5, "2023-11-15T00:00:00"])
@pytest.mark.parametrize("field", ["until", "for"])
def test_instant_that_is_none_fails_the_step(field: str, value: Any) -> None:
    world = World(make_tools())
    world.admit(document(pause_for(**{field: "{{ input.v }}"})), {"v": value})
    world.run()

    assert world.state().status == "failed"
    assert "wait 'wait'" in (world.state().error or {})["message"]


def test_wall_clock_that_jumps_back_delays_and_forward_hastens_but_never_twice() -> None:
    world = World(make_tools())
    world.admit(document(pause_for(**{"for": "1h"})), {"x": 3})
    world.run(until=lambda: bool(of(world, "WaitStarted")))

    move(world, -5 * 3_600_000_000)
    world.mono += 7_200_000_000  # two hours of living: the wall clock alone says when
    world.handle(Tick())
    assert not of(world, "WaitCompleted")
    move(world, 7 * 3_600_000_000)
    move(world, -9 * 3_600_000_000)
    move(world, 99 * 3_600_000_000)

    assert len(of(world, "WaitCompleted")) == 1
    assert world.state().status == "completed"


def test_signal_gives_its_data_and_one_that_comes_early_is_kept() -> None:
    world = World(make_tools())
    world.admit(
        document(
            call("a", args={"x": 1}),
            pause_for("first", ["a"], signal="paid"),
            pause_for("second", ["first"], signal="paid"),
        ),
        {"x": 3},
    )
    assert signal(world, "s1", data={"n": 1}).result["isRepeated"] is False
    signal(world, "other", "else")
    world.run()
    assert output_of(world, "first") == {"n": 1} and not world.children
    assert world.state().waits.keys() == {"second"}

    signal(world, "s2", data=[2])
    world.run()

    assert world.state().output == [2]
    assert [e.payload["signalId"] for e in of(world, "WaitCompleted")] == ["s1", "s2"]


def test_signal_with_the_same_id_is_one_and_with_other_data_a_conflict() -> None:
    world = start(pause_for("a", signal="paid"), pause_for("b", ["a"], signal="paid"))
    signal(world, "s1", data=1)

    assert signal(world, "s1", data=1).result["isRepeated"] is True
    assert isinstance(signal(world, "s1", data=2).error, ConflictError)
    assert isinstance(signal(world, "s1", "else", 1).error, ConflictError)
    world.run()
    assert world.state().waits.keys() == {"b"} and len(of(world, "SignalReceived")) == 1
    signal(world, "s2")
    world.run()
    assert world.state().status == "completed"
    assert signal(world, "s2").result["isRepeated"] is True
    assert isinstance(signal(world, "s3").error, ConflictError)


def test_one_signal_moves_one_of_two_waits_and_the_oldest_goes_first() -> None:
    world = start(pause_for("a", signal="s"), pause_for("b", signal="s"))

    for number in (1, 2):
        signal(world, f"s{number}", "s", number)
        world.run()

    assert [output_of(world, "a"), output_of(world, "b")] == [1, 2]


def test_signal_that_does_not_come_in_time_fails_the_step_at_its_instant() -> None:
    world = World(make_tools())
    world.admit(document(pause_for(signal="paid", expiresIn="1h")), {"x": 3})
    world.run(until=lambda: bool(of(world, "WaitStarted")))
    due = of(world, "WaitStarted")[0].payload["dueAt"]

    move(world, due - 1 - world.at)
    assert world.state().status == "running"
    move(world, 1)

    assert world.state().status == "failed"
    assert (world.state().error or {})["name"] == "WaitExpired"


# -- pauses -------------------------------------------------------------------------------------


def test_paused_run_starts_nothing_and_goes_on_where_it_was() -> None:
    world = World(make_tools())
    world.admit(programs.sequence(), {"x": 3})
    world.run(until=lambda: bool(of(world, "harness.tool_call.started")))
    assert set_paused(world, True).result == {"runId": "run_1", "isPaused": True}
    assert set_paused(world, True).error is None
    world.run()

    assert len(of(world, "StepAttemptStarted")) == 1 and len(of(world, "RunPaused")) == 1
    world.crash()
    world.run()
    assert len(of(world, "StepAttemptStarted")) == 1
    set_paused(world, False)
    world.run()
    assert world.state().status == "completed"
    assert isinstance(set_paused(world, True).error, ConflictError)


def test_retry_and_timer_that_fall_due_in_a_pause_wait_for_its_end() -> None:
    world = World(make_tools(failures=1))
    policy = {"maxAttempts": 3, "delay": "1h"}
    world.admit(document(call("a", "flaky", {"n": 1}, retry=policy)), {"x": 3})
    world.run(until=lambda: bool(of(world, "StepRetryScheduled")))
    set_paused(world, True)
    move(world, 2 * 3_600_000_000)
    assert len(of(world, "StepAttemptStarted")) == 1

    set_paused(world, False)
    world.run()

    assert world.state().status == "completed" and len(of(world, "StepAttemptStarted")) == 2


def test_paused_run_can_be_cancelled() -> None:
    world = start(ask())
    set_paused(world, True)
    world.request(CancelRun(None, "run_1", "req_1"))
    world.run()

    assert world.state().status == "cancelled"


# -- crashes ------------------------------------------------------------------------------------

Act = Callable[[World], Any]
PLAYS: dict[str, tuple[dict[str, Any], tuple[Act, ...]]] = {
    "approval": (approval_program(), (lambda w: decide(w, "approved"),)),
    "expiry": (approval_program(expiresIn="1h"), ()),
    "signals": (
        document(
            pause_for("a", signal="s"),
            pause_for("b", ["a"], signal="s"),
            call("c", needs=["b"], args={"x": "{{ steps.b.output }}"}),
        ),
        (lambda w: signal(w, "s1", "s", 1), lambda w: signal(w, "s2", "s", 2)),
    ),
    "timers": (
        document(
            pause_for("a", **{"for": "1h"}),
            pause_for("b", ["a"], until="2023-11-16T00:00:00Z"),
            call("c", needs=["b"], args={"x": 1}),
        ),
        (),
    ),
    "pause": (
        programs.sequence(),
        (lambda w: None, lambda w: set_paused(w, False)),
    ),
}


def play(name: str, world: World) -> World:
    document_, acts = PLAYS[name]
    world.admit(document_, {"x": 3})
    if name == "pause":
        set_paused(world, True)
    for act in acts:
        world.run()
        act(world)
    world.run()
    return world


def decisions(world: World) -> list[Any]:
    kinds = "ApprovalResolved WaitCompleted SignalReceived RunPaused RunUnpaused".split()
    return sorted(e.type for e in world.events() if e.type in kinds)


@pytest.mark.parametrize("name", PLAYS)
def test_supervisor_killed_at_every_point_changes_nothing(name: str) -> None:
    quiet = play(name, World(make_tools()))
    assert quiet.state().status == "completed"
    for point in range(1, quiet.points + 1):
        world = World(make_tools())
        world.crash_at = point
        play(name, world)

        assert world.supervisor_crashes == 1, point
        assert world.state().output == quiet.state().output, point
        assert decisions(world) == decisions(quiet), point
        assert not world.state().owed and not world.children, point


@pytest.mark.parametrize("name", PLAYS)
def test_every_prefix_of_the_log_is_a_state_from_which_it_ends(name: str) -> None:
    quiet = play(name, World(make_tools()))
    for length in range(2, len(quiet.log)):
        world = World(make_tools())
        world.library, world.log = quiet.library, quiet.log[:length]
        world.epoch, world.at, world.mono = quiet.epoch, quiet.at, quiet.mono
        world.crash()
        world.run()
        state = world.state()
        if state.is_paused:
            set_paused(world, False)
        for number, data in ("s1", 1), ("s2", 2):
            if name == "signals" and number not in state.signal_hashes:
                signal(world, number, "s", data)
                world.run()
        if world.state().approvals and name == "approval":
            decide(world, "approved")
        world.run()

        assert world.state().status == "completed", length
        if name != "expiry":
            assert world.state().output == quiet.state().output, length
