"""Races: whatever comes first, a run has one end that fits its log, and no effect is repeated."""

from collections import Counter
from typing import Any

import programs
import pytest
from programs import call, decide, document, fan_out
from test_programs import make_tools
from world import World

from planaria.protocol.events import RUN_TERMINAL, Event
from planaria.protocol.limits import MAX_RESTARTS, RESTART_DELAY_FIRST_MS
from planaria.protocol.lwir import validate_lwir

CANCELLED = {
    "diamond": (programs.diamond(), {}),
    "loop": (programs.loop(), {}),
    "branches": (programs.branches(), {"items": ["p", "q.r", "s"]}),
    "retry": (programs.retry(), {}),
}
STARTS = {"StepAttemptStarted", "harness.session.started", "ProcessStarted", "StepRetryScheduled"}


def of(world: World, kind: str, run_id: str = "run_1") -> list[Event]:
    return [event for event in world.events(run_id) if event.type == kind]


def run(steps: dict[str, Any], value: Any, tools: Any = None, **more: Any) -> World:
    assert validate_lwir(steps) == []
    world = World(tools or make_tools(), **more)
    world.admit(steps, value)
    world.run()
    return world


def count_steps(steps: dict[str, Any], value: Any) -> int:
    world = World(make_tools())
    world.admit(steps, value)
    count = 0
    while world.step(1):
        count += 1
    return count


def check_cancelled(world: World, where: str) -> None:
    events = world.events()
    assert sum(event.type in RUN_TERMINAL for event in events) == 1, where
    assert events[-1].type in ("RunCancelled", "RunCompleted"), where
    requests = [n for n, event in enumerate(events) if event.type == "CancellationRequested"]
    assert len(requests) == (events[-1].type == "RunCancelled"), where
    for event in events[requests[0] :] if requests else ():
        assert event.type not in STARTS, (where, event)
    state = world.state()
    assert not state.owed and not state.sessions and not state.backoffs, where


@pytest.mark.parametrize("name", CANCELLED)
def test_run_cancelled_at_any_point_has_one_end_and_starts_nothing_more(name: str) -> None:
    steps, value = CANCELLED[name]
    for count in range(0, count_steps(steps, value) + 2, 2):
        world = World(make_tools())
        world.admit(steps, value)
        world.step(count)
        was_ended = world.state().is_ended
        world.cancel()
        is_restarted = count % 3 == 0
        if is_restarted:
            world.crash()
        world.run()

        check_cancelled(world, f"{name} {count}")
        assert world.state().status == ("completed" if was_ended else "cancelled")
        length = len(world.log)
        world.cancel()
        world.run()
        assert len(world.log) == length, "a second request changes nothing"
        assert is_restarted or world.answers[-1].result["alreadyEnded"]


@pytest.mark.parametrize("seed", range(12))
def test_run_cancelled_amid_lost_messages_has_one_end(seed: int) -> None:
    steps, value = CANCELLED["branches"]
    world = World(make_tools(), seed=seed)
    world.lossy = True
    world.admit(steps, value)
    world.step(5 * seed)
    world.cancel()
    world.run()

    check_cancelled(world, f"seed {seed}")


def test_cancelled_run_that_never_stops_is_killed_after_the_grace_time() -> None:
    world = World(make_tools())
    world.admit(document(call("a")), {})
    world.run(until=lambda: bool(of(world, "harness.tool_call.started")))
    # It neither reports nor stops from now on.
    for child in world.children.values():
        child.script = iter(lambda: "wait", None)
        child.inbox.clear()
    world.cancel()
    world.run()

    assert world.state().status == "cancelled"
    requested, ended = of(world, "CancellationRequested")[0], world.events()[-1]
    assert ended.mono - requested.mono == 10_000_000
    assert of(world, "harness.tool_call.failed")


def mails(world: World) -> int:
    return sum(tool == "mail" for tool, *_ in world.ledger.executions)


def check_once(world: World, where: str) -> None:
    assert mails(world) <= 1, where
    status = world.state().status
    assert status in ("interrupted", "completed"), where
    assert (mails(world) == 1) or status == "interrupted", where
    unknown = of(world, "harness.tool_call.unknown")
    assert len(unknown) == len(of(world, "RunInterrupted")) == (status == "interrupted"), where
    length = len(world.log)
    world.crash()
    world.run()
    if status == "interrupted":
        assert len(world.log) == length, (where, "a restart changes nothing")
        world.cancel()
        world.run()
        assert world.state().status == "cancelled", where
    assert mails(world) <= 1, where


@pytest.mark.parametrize("effect", ["once", "managed"])
def test_once_tool_killed_at_every_child_point_is_never_performed_twice(effect: str) -> None:
    quiet = run(programs.code_step(), {}, effects={"mail": effect})
    statuses = Counter()
    for point in range(1, quiet.child_points + 1):
        world = World(make_tools(), effects={"mail": effect})
        world.kill_child_at = point
        world.admit(programs.code_step(), {})
        world.run()

        assert world.child_kills == 1
        statuses[world.state().status] += 1
        check_once(world, f"point {point}")
    assert statuses["interrupted"] >= 2, "between its start and its outcome there are points"


def test_once_tool_is_never_performed_twice_wherever_the_supervisor_is_killed() -> None:
    quiet = run(programs.code_step(), {}, effects={"mail": "once"})
    for point in range(1, quiet.points + 1):
        world = World(make_tools(), effects={"mail": "once"})
        world.crash_at = point
        world.admit(programs.code_step(), {})
        world.run()

        check_once(world, f"point {point}")


def test_unknown_effect_holds_its_step_while_independent_steps_go_on() -> None:
    steps = document(
        call("m", "mail", {"to": 1}),
        call("after", needs=["m"]),
        *(call(f"s{n}", needs=[f"s{n - 1}"] if n else [], args={"n": n}) for n in range(4)),
    )
    world = World(make_tools(), effects={"mail": "once"})
    world.is_doomed = lambda child: child.session["stepPath"] == "m" and mails(world) == 1
    world.admit(steps, {})
    world.run()

    assert world.state().status == "interrupted"
    done = [event.payload["stepId"] for event in of(world, "StepCompleted")]
    assert done == ["s0", "s1", "s2", "s3"]
    assert world.events()[-1].type == "RunInterrupted"
    assert world.events()[-1].payload["stepPath"] == "m"


def test_idempotent_call_is_repeated_with_its_own_key_only() -> None:
    steps = document(
        {"id": "code", "uses": "code.run", "with": {"source": "1", "tools": ["mail", "mail"]}},
        fan_out(call("m", "mail", {"to": "x"}), items="{{ [1, 2] }}", needs=["code"]),
    )
    effects = {"mail": "idempotent"}
    quiet = run(steps, {}, effects=effects)
    expected = {key for _, _, key, _ in quiet.ledger.executions}
    assert len(expected) == mails(quiet) == 4, "calls, branches and arguments differ in their keys"
    repeated = 0
    for point in range(1, quiet.child_points + 1):
        world = World(make_tools(), effects=effects)
        world.kill_child_at = point
        world.admit(steps, {})
        world.run()

        keys = {(call, key) for _, call, key, _ in world.ledger.executions}
        assert {key for _, key in keys} == expected and len(keys) == 4
        repeated += mails(world) - 4
    assert repeated > 0


def test_process_that_always_dies_ends_its_attempt_and_nothing_else() -> None:
    world = World(make_tools())
    world.is_doomed = lambda child: child.session["runId"] == "run_1"
    world.admit(document(call("a", retry={"maxAttempts": 2})), {})
    world.admit(programs.sequence(), {"x": 1}, run_id="run_2")
    world.run()

    bad = world.state()
    assert bad.status == "failed" and bad.error["causeCode"] == "process_crashed"
    assert bad.failed_step_path == "a"
    sessions = Counter(event.session_id for event in of(world, "ProcessExited"))
    assert sorted(sessions.values()) == [MAX_RESTARTS + 1] * 2
    assert world.state("run_2").output == {"x": 4}


def test_restarts_of_a_session_are_delayed_more_each_time() -> None:
    world = World(make_tools())
    world.is_doomed = lambda child: True
    world.admit(document(call("a")), {})
    world.run()

    started = [event.mono for event in of(world, "ProcessStarted")]
    ended = [event.mono for event in of(world, "ProcessExited")]
    delays = [start - end for end, start in zip(ended, started[1:], strict=False)]
    assert delays == [0, *(RESTART_DELAY_FIRST_MS * 1_000 * 2**n for n in range(MAX_RESTARTS - 1))]


def test_visit_over_the_limit_is_named_and_never_scheduled() -> None:
    steps = document(call("work", maxVisits=2), decide("again", ["work"], "end", ("true", "work")))
    world = run(steps, {})

    state = world.state()
    assert state.error["causeCode"] == "max_visits_exceeded"
    assert state.failed_step_path == "work.visit[2]"
    started = [event.payload["stepPath"] for event in of(world, "StepAttemptStarted")]
    assert started == ["work.visit[0]", "again.visit[0]", "work.visit[1]", "again.visit[1]"]


def crossing() -> dict[str, Any]:
    """The outer loop holds the inner one's decision, and not what that one runs again."""
    return document(
        call("outer", maxVisits=3),
        call("inner", maxVisits=5),
        call("work", needs=["inner"], maxVisits=5),
        decide(
            "again",
            ["work", "outer"],
            "end",
            ("size(steps.outer.allVisits) == 2 and size(steps.work.allVisits) < 3", "inner"),
        ),
        decide("back", ["again"], "end", ("size(steps.outer.allVisits) < 2", "outer")),
        call(
            "after",
            "flaky",
            {"seen": "{{ size(steps.work.allVisits) }}"},
            needs=["work"],
            retry={"maxAttempts": 3, "delay": "10ms"},
        ),
    )


@pytest.mark.parametrize("seed", range(6))
def test_step_after_a_loop_waits_for_every_decision_that_may_start_it_again(seed: int) -> None:
    world = run(crossing(), {}, make_tools(failures=seed % 3), seed=seed)

    asked = [
        event.payload["args"]["seen"]
        for event in of(world, "harness.tool_call.started")
        if event.payload["toolName"] == "flaky"
    ]
    assert asked == [3] * (1 + seed % 3)


def test_step_that_a_decision_goes_back_to_runs_though_another_had_not_chosen_it() -> None:
    steps = document(
        call("a"),
        decide("first", ["a"], "end", ("false", "b")),
        call("b", maxVisits=2),
        decide("second", ["b", "a"], "end", ("size(steps.b.allVisits) == 0", "b")),
    )
    world = run(steps, {})

    skipped = [event.payload["stepPath"] for event in of(world, "StepSkipped")]
    assert skipped == ["b.visit[0]"]
    completed = [event.payload["stepPath"] for event in of(world, "StepCompleted")]
    assert completed == ["a", "first", "second.visit[0]", "b.visit[0]", "second.visit[1]"]


def test_loop_whose_steps_are_all_skipped_ends_by_the_number_of_visits() -> None:
    steps = document(
        call("a"),
        decide("start", ["a"], "end", ("false", "b")),
        call("b", maxVisits=3),
        decide("round", ["start", "b"], "end", ("true", "start")),
    )
    world = run(steps, {})

    state = world.state()
    assert state.error["causeCode"] == "max_visits_exceeded"
    assert state.failed_step_path == "start.visit[4]"
