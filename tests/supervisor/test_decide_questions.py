"""Reports of approvals and lookups: what the fold would refuse is refused with its append."""

from typing import Any

import pytest
from programs import call, document
from test_decide import (
    Make,
    check_refused,
    handle,
    open_call,
    open_world,
    report,
    started,
    succeeded,
)
from test_programs import make_tools
from test_sub_runs import ask_for
from world import Child, World

from planaria.supervisor.kernel_messages import DecideApproval


def asked(child: Child, **changes: Any) -> list[Any]:
    payload = {
        "approvalId": "ap_x",
        "sessionId": child.session["sessionId"],
        "callId": "call_x",
        "prompt": "May I?",
        "dataHash": "h",
        "onTimeout": "reject",
    }
    return ["ApprovalRequested", {**payload, **changes}]


@pytest.mark.parametrize("is_decided", [False, True])
def test_approval_that_the_run_has_already_is_refused_and_the_run_goes_on(
    is_decided: bool,
) -> None:
    world = World(make_tools(), children_max=1)
    world.hold = lambda tool: True
    question = {"id": "ask", "uses": "approval", "with": {"prompt": "Ship it?"}}
    world.admit(document(question, call("a", args={"x": 1})), {})
    world.run(until=lambda: any(e.type == "harness.tool_call.started" for e in world.events()))
    (child,) = world.children.values()
    (number,) = world.state().approvals
    if is_decided:
        world.request(DecideApproval(None, "run_1", number, "approved", "ann"))

    check_refused(handle(world, report(child, asked(child, approvalId=number))), "protocol")


@pytest.mark.parametrize(
    "changes",
    [
        {"approvalId": "../x"},
        {"approvalId": ["ap_x"]},
        {"sessionId": "hs_x"},
        {"sessionId": None},
        {"stepPath": "a"},
        {"onTimeout": "ship"},
        {"onTimeout": ["fail"]},
        {"expiresAt": "soon"},
        {"expiresAt": True},
        {"callId": None},
        {"prompt": 5},
    ],
)
def test_approval_of_a_wrong_form_is_refused(changes: dict[str, Any]) -> None:
    world, child = open_world()

    check_refused(handle(world, report(child, asked(child, **changes))), "protocol")


def test_approval_asked_for_twice_in_one_append_is_refused() -> None:
    world, child = open_world()

    check_refused(handle(world, report(child, asked(child), asked(child))), "protocol")


def reattached(call_id: Any, answer: Any = "unknown") -> list[Any]:
    return ["harness.tool_call.reattached", {"callId": call_id, "answer": answer}]


@pytest.mark.parametrize(
    "make",
    [
        lambda known: [reattached("call_x")],
        lambda known: [reattached([known])],
        lambda known: [reattached(known, "maybe")],
        lambda known: [reattached(known, ["unknown"])],
        lambda known: [succeeded(known), reattached(known)],
        lambda known: [succeeded(known), started(known, effect="once"), reattached(known)],
        lambda known: [started("call_y", effect="managed"), reattached("call_y")],
    ],
)
def test_lookup_of_what_is_no_open_managed_call_is_refused(make: Make) -> None:
    world, child = open_world(effect="managed")

    check_refused(handle(world, report(child, *make(open_call(child)))), "protocol")


def test_lookup_of_a_call_that_starts_a_sub_run_is_refused() -> None:
    world, lock = ask_for(1)
    world.hold = lambda tool: True
    world.admit_lock(lock, {})
    world.run(until=lambda: any(e.type == "harness.tool_call.started" for e in world.events()))
    child = next(c for c in world.children.values() if c.session.get("role") == "orchestrator")

    check_refused(handle(world, report(child, reattached(open_call(child)))), "protocol")


def test_lookup_of_a_call_that_is_not_managed_is_refused() -> None:
    world, child = open_world()

    check_refused(handle(world, report(child, reattached(open_call(child)))), "protocol")
