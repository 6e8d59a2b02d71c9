"""Approvals, waits, signals and pauses: exact instants, one winner, no process meanwhile."""

from collections.abc import Callable
from typing import Any

import programs
import pytest
from programs import call, document
from test_order import of
from test_programs import make_tools
from world import World

from planaria.protocol.errors import ConflictError, NotFoundError, RunNotFoundError
from planaria.supervisor.kernel_messages import (
    CancelRun,
    DecideApproval,
    PauseRun,
    SignalRun,
    Tick,
)

DAY_US = 86_400_000_000


def ask(id: str = "ask", needs: Any = (), **more: Any) -> dict[str, Any]:
    fields = {"prompt": "Ship {{ input.x }}?", **more}
    return {"id": id, "uses": "approval", "needs": list(needs), "with": fields}


def pause_for(id: str = "wait", needs: Any = (), **fields: Any) -> dict[str, Any]:
    return {"id": id, "uses": "wait", "needs": list(needs), "with": fields}


def approval_program(**more: Any) -> dict[str, Any]:
    route = {
        "id": "route",
        "uses": "decision",
        "needs": ["ask"],
        "with": {
            "cases": [{"when": "{{ steps.ask.output.decision == 'approved' }}", "to": "ship"}],
            "default": "stop",
        },
    }
    return document(
        call("a", args={"x": "{{ input.x }}"}),
        ask(needs=["a"], data="{{ steps.a.output }}", **more),
        route,
        call("ship", args={"x": "shipped"}),
        call("stop", args={"x": "stopped"}),
    )


def start(*steps: dict[str, Any], seed: int | None = None, **options: Any) -> World:
    world = World(make_tools(), seed=seed)
    world.admit(document(*steps), {"x": 3}, **options)
    world.run()
    return world


def load(world: World) -> None:
    """Brings an ended run back, as the desk does before it asks the kernel."""
    world.kernel.system.runs.setdefault("run_1", world.state())


def asked(world: World) -> str:
    return next(iter(world.state().approvals))


def decide(world: World, decision: str, by: str = "ann", approval: str | None = None) -> Any:
    number = asked(world) if approval is None else approval
    load(world)
    world.request(DecideApproval(None, "run_1", number, decision, by))
    return world.answers[-1]


def signal(world: World, id: str, name: str = "paid", data: Any = None) -> Any:
    world.request(SignalRun(None, "run_1", id, name, {"data": data}))
    return world.answers[-1]


def set_paused(world: World, is_paused: bool) -> Any:
    world.request(PauseRun(None, "run_1", is_paused, "ann"))
    return world.answers[-1]


def output_of(world: World, step: str) -> Any:
    done = [e for e in of(world, "StepCompleted") if e.payload["stepId"] == step]
    return done[-1].payload["output"]


def move(world: World, micros: int) -> None:
    """Moves the wall clock, and lets the supervisor look at it."""
    world.at += micros
    world.handle(Tick())


# -- approvals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("decision", "end"), [("approved", "shipped"), ("rejected", "stopped")])
def test_decision_is_the_output_and_no_process_waits_for_it(decision: str, end: str) -> None:
    world = World(make_tools())
    world.admit(approval_program(), {"x": 3})
    world.run()

    assert world.state().status == "running" and not world.children
    request = world.state().approvals[asked(world)].requested
    assert (request["prompt"], request["data"]) == ("Ship 3?", {"x": 3})

    answer = decide(world, decision)
    world.run()

    assert answer.result["decision"] == decision
    assert world.state().output == {"x": end}
    output = output_of(world, "ask")
    assert output["decision"] == decision and output["by"] == "ann"
    assert output["source"] == "person"


def test_same_decision_again_is_answered_with_the_first_and_the_opposite_is_a_conflict() -> None:
    world = start(ask(), call("b", needs=["ask"]))
    number = asked(world)
    first = decide(world, "approved")
    world.at += 5_000_000

    again = decide(world, "approved", "bob", number)
    opposite = decide(world, "rejected", "bob", number)

    assert again.result == first.result and again.result["by"] == "ann"
    assert isinstance(opposite.error, ConflictError) and "ann" in str(opposite.error)
    assert len(of(world, "ApprovalResolved")) == 1
    world.run()
    late = decide(world, "rejected", "bob", number)  # the run has ended
    assert isinstance(late.error, ConflictError)


def test_approval_belongs_to_its_run_step_and_data() -> None:
    world = World(make_tools())
    world.admit(document(ask("p"), ask("q")), {"x": 3})
    world.admit(document(ask("p"), ask("q")), {"x": 4}, "run_2")
    world.run()
    runs = [world.state(), world.state("run_2")]

    assert len({number for run in runs for number in run.approvals}) == 4
    wrong = next(iter(runs[1].approvals))
    assert isinstance(decide(world, "approved", approval=wrong).error, NotFoundError)
    world.request(DecideApproval(None, "nope", wrong, "approved", "ann"))
    assert isinstance(world.answers[-1].error, RunNotFoundError)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("early_us", [1, 1_000])
def test_approval_expires_at_its_instant_and_not_before(early_us: int, is_restarted: bool) -> None:
    world = World(make_tools())
    world.admit(approval_program(expiresIn="1d"), {"x": 3})
    world.run(until=lambda: bool(of(world, "ApprovalRequested")))
    due = of(world, "ApprovalRequested")[0].payload["expiresAt"]

    move(world, due - early_us - world.at)
    if is_restarted:
        world.crash()
    assert not of(world, "ApprovalResolved")
    move(world, early_us)

    (resolved,) = of(world, "ApprovalResolved")
    assert resolved.payload["decision"] == "expired" and resolved.payload["source"] == "timer"
    world.run()
    assert output_of(world, "ask")["decision"] == "rejected"
    assert world.state().output == {"x": "stopped"}


def test_expiry_while_nobody_lived_fires_once_at_the_next_start() -> None:
    world = World(make_tools())
    world.admit(approval_program(expiresIn="1d", onTimeout="fail"), {"x": 3})
    world.run(until=lambda: bool(of(world, "ApprovalRequested")))
    number = asked(world)
    world.at += 30 * DAY_US

    world.crash()
    world.handle(Tick())
    world.crash()
    world.run()

    assert len(of(world, "ApprovalResolved")) == 1
    state = world.state()
    assert state.status == "failed" and state.error is not None
    assert state.error["name"] == "ApprovalExpired"
    assert isinstance(decide(world, "approved", approval=number).error, ConflictError)


@pytest.mark.parametrize("offset", range(-500, 500, 25))
def test_person_and_timer_racing_have_one_winner(offset: int) -> None:
    world = World(make_tools())
    world.admit(approval_program(expiresIn="1m"), {"x": 3})
    world.run(until=lambda: bool(of(world, "ApprovalRequested")))
    due, number = of(world, "ApprovalRequested")[0].payload["expiresAt"], asked(world)
    for order in range(25):
        here = World(make_tools())
        here.library, here.log, here.epoch = world.library, list(world.log), world.epoch
        here.at, here.mono = due + offset + order - 12, world.mono
        here.crash()
        asking = DecideApproval(None, "run_1", number, "approved", "ann")
        messages = [Tick(), asking] if order % 2 else [asking, Tick()]
        for message in messages:
            here.handle(message)

        (resolved,) = of(here, "ApprovalResolved")
        answer = here.answers[-1]
        expected = "approved" if here.at < due else "expired"
        assert resolved.payload["decision"] == expected, (offset, order)
        assert (answer.error is None) == (expected == "approved")


@pytest.mark.parametrize("how", ["cancel", "deadline", "sibling"])
def test_open_approval_ends_with_what_it_belongs_to(how: str) -> None:
    if how == "sibling":
        world = World({**make_tools(), "echo": lambda args: 1 / 0})
        world.admit(document(ask(), pause_for("w", signal="s"), call("bad")), {"x": 3})
        world.run()
    else:
        options = {"deadlineMs": 60_000} if how == "deadline" else {}
        world = start(ask(), pause_for("w", signal="s"), **options)
        if how == "cancel":
            world.cancel()
    world.run()
    number = of(world, "ApprovalRequested")[0].payload["approvalId"]

    (resolved,) = of(world, "ApprovalResolved")
    assert resolved.payload["decision"] == "abandoned"
    assert [e.payload["outcome"] for e in of(world, "WaitCompleted")] == ["abandoned"]
    assert world.state().status == ("cancelled" if how == "cancel" else "failed")
    assert not world.state().approvals and not world.state().waits and not world.state().owed
    assert isinstance(decide(world, "approved", approval=number).error, ConflictError)


def test_prompt_that_can_not_be_made_fails_the_step() -> None:
    world = start(ask(prompt="{{ 1 / (input.x - 3) }}"))

    assert world.state().status == "failed"
    assert "approval 'ask'" in (world.state().error or {})["message"]


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
