"""Approvals: bound to what they show, exact instants, one winner, no process meanwhile."""

import pytest
from decisions import (
    DAY_US,
    approval_program,
    ask,
    asked,
    decide,
    move,
    output_of,
    pause_for,
    start,
)
from programs import call, document
from test_order import of
from test_programs import make_tools
from world import World

from planaria.protocol.errors import ConflictError, NotFoundError, RunNotFoundError
from planaria.supervisor.kernel_messages import DecideApproval, Tick


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
