"""Every message in every state: legal, or refused without a trace in the log."""

from collections.abc import Callable
from typing import Any

import pytest
from programs import call, document
from test_programs import make_tools
from world import Child, World

from planaria.protocol.events import PAYLOADS, ROLE_EVENTS
from planaria.protocol.limits import ERROR_TEXT_CHARS_MAX, SESSION_EVENTS_MAX
from planaria.protocol.messages import Committed, Refused
from planaria.supervisor.kernel import Turn
from planaria.supervisor.kernel_messages import (
    HistoryAsked,
    Kill,
    Send,
    SendHistory,
    SessionReported,
)

WARNING = ["harness.warning", {"text": "hello"}]
ERROR = {"name": "E", "message": "m", "causeCode": "step_failed", "retriable": True}


def steps() -> dict[str, Any]:
    return document(call("a", args={"x": 1}), call("b", needs=["a"], args={"x": 2}))


def open_world(effect: str = "read") -> tuple[World, Child]:
    """Returns a world whose one child has an open tool call."""
    world = World(make_tools(), effects={"echo": effect}, children_max=1)
    world.hold = lambda tool: True
    world.admit(steps(), {})
    world.run(until=lambda: any(e.type == "harness.tool_call.started" for e in world.events()))
    (child,) = world.children.values()
    return world, child


def report(child: Child, *events: Any, **changes: Any) -> SessionReported:
    fields = {
        "process_id": child.process_id,
        "session_id": child.session["sessionId"],
        "incarnation": child.session["incarnation"],
        "after": child.reported,
        "events": list(events),
    }
    return SessionReported(**{**fields, **changes})


def handle(world: World, message: Any) -> Turn:
    return world.kernel.handle(message, world.now())


def open_call(child: Child) -> str:
    found = next(event for event in child.sent if event[0] == "harness.tool_call.started")
    return str(found[1]["callId"])


def check_refused(turn: Turn, code: str) -> None:
    assert not turn.events
    refusals = [a for a in turn.actions if isinstance(a, Send) and isinstance(a.message, Refused)]
    assert [refusal.message.code for refusal in refusals] == [code]
    assert [action.reason for action in turn.actions if isinstance(action, Kill)] == [code]


def check_acknowledged(turn: Turn, upto: int) -> None:
    assert not turn.events
    (action,) = turn.actions
    assert isinstance(action, Send) and isinstance(action.message, Committed)
    assert action.message.upto == upto


def test_legal_report_is_recorded_and_acknowledged() -> None:
    world, child = open_world()
    turn = handle(world, report(child, WARNING, WARNING))

    assert [event.type for event in turn.events] == ["harness.warning"] * 2
    assert [event.incarnation for event in turn.events] == [1, 1]
    (action,) = turn.actions
    assert action.message == Committed(child.session["sessionId"], 1, child.reported + 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "hs_other"},
        {"session_id": ""},
        {"incarnation": 0},
        {"incarnation": 2},
        {"session_id": "hs_other", "after": 0, "events": []},
    ],
)
def test_report_for_another_session_or_incarnation_is_refused(changes: dict[str, Any]) -> None:
    world, child = open_world()

    check_refused(handle(world, report(child, WARNING, **changes)), "stale_incarnation")


def test_report_of_an_unknown_process_is_dropped() -> None:
    world, child = open_world()
    turn = handle(world, report(child, WARNING, process_id="p9-9"))

    assert not turn.events and not turn.actions


def test_report_after_a_lost_one_is_answered_with_what_is_known() -> None:
    world, child = open_world()
    check_acknowledged(handle(world, report(child, WARNING, after=child.reported + 1)), 1)


def test_repeated_report_is_acknowledged_again_and_not_recorded() -> None:
    world, child = open_world()
    repeated = report(child, *child.sent, after=0)
    check_acknowledged(handle(world, repeated), 1)

    turn = handle(world, report(child, *child.sent, WARNING, after=0))
    assert [event.type for event in turn.events] == ["harness.warning"]
    check_acknowledged(handle(world, report(child, *child.sent, WARNING, after=0)), 2)
    check_acknowledged(handle(world, report(child, after=2)), 2)


BROKEN = [
    None,
    5,
    "harness.warning",
    {},
    [],
    ["harness.warning"],
    [5, {}],
    [None, {}],
    [["harness.warning"], {}],
    ["harness.warning", {"text": "x"}, 1],
    ["nonsense", {}],
]


@pytest.mark.parametrize("event", BROKEN, ids=repr)
def test_event_of_a_wrong_form_is_refused_with_all_others_of_its_append(event: Any) -> None:
    world, child = open_world()

    check_refused(handle(world, report(child, WARNING, event)), "protocol")


@pytest.mark.parametrize("kind", sorted(PAYLOADS.keys() - ROLE_EVENTS["worker"]))
def test_event_that_is_not_for_workers_is_refused(kind: str) -> None:
    world, child = open_world()
    payload = {name: "x" for name in PAYLOADS[kind][0]}

    check_refused(handle(world, report(child, [kind, payload])), "protocol")


@pytest.mark.parametrize("kind", sorted(ROLE_EVENTS["worker"]))
def test_payload_of_any_wrong_form_is_refused(kind: str) -> None:
    required, _ = PAYLOADS[kind]
    full = {name: "x" for name in required}
    wrong: list[Any] = [None, 5, [], "x", {**full, "extra": 1}]
    wrong += [{n: v for n, v in full.items() if n != name} for name in sorted(required)]
    for payload in wrong:
        world, child = open_world()
        check_refused(handle(world, report(child, [kind, payload])), "protocol")


def started(call_id: Any, **changes: Any) -> list[Any]:
    payload = {
        "callId": call_id,
        "position": "c9",
        "caller": "step",
        "toolName": "echo",
        "args": {},
        "effect": "read",
        "idempotencyKey": "idem_x",
        **changes,
    }
    return ["harness.tool_call.started", payload]


def succeeded(call_id: Any) -> list[Any]:
    return ["harness.tool_call.succeeded", {"callId": call_id, "result": 1}]


def responded(call_id: Any, usage: Any) -> list[Any]:
    payload = {"callId": call_id, "turn": 0, "response": "x", "usage": usage, "model": "m"}
    return ["harness.model.responded", payload]


def called(call_id: Any) -> list[Any]:
    payload = {"callId": call_id, "position": "m0", "turn": 0, "requestHash": "h"}
    return ["harness.model.called", {**payload, "messages": [], "settings": {}}]


Make = Callable[[str], list[Any]]
ILLEGAL: dict[str, Make] = {
    "an unknown call": lambda known: [succeeded("call_x")],
    "a call id of a wrong type": lambda known: [succeeded(["call_x"])],
    "a call opened with a wrong id": lambda known: [started({"a": 1})],
    "an open call again": lambda known: [started(known)],
    "a call closed twice": lambda known: [succeeded(known), succeeded(known)],
    "a call opened twice": lambda known: [started("call_y"), started("call_y")],
    "a tool call closed as a model's": lambda known: [responded(known, {})],
    "an operation that is a tool call": lambda known: [
        ["harness.operation.succeeded", {"callId": known, "result": 1}]
    ],
    "something after the end": lambda known: [
        ["harness.execute_step.succeeded", {"output": 1}],
        WARNING,
    ],
    "two ends": lambda known: [["harness.execute_step.succeeded", {"output": 1}]] * 2,
    "an unknown effect": lambda known: [started("call_y", effect="maybe")],
    "an effect of a wrong type": lambda known: [started("call_y", effect=["once"])],
    "a key of a wrong type": lambda known: [started("call_y", idempotencyKey=["k"])],
    "a tool name of a wrong type": lambda known: [started("call_y", toolName=None)],
    "usage that is no map": lambda known: [called("call_m"), responded("call_m", 5)],
    "usage that is no count": lambda known: [called("call_m"), responded("call_m", {"a": "x"})],
    "usage that is negative": lambda known: [called("call_m"), responded("call_m", {"a": -1})],
    "usage that is a truth": lambda known: [called("call_m"), responded("call_m", {"a": True})],
    "usage beyond all counts": lambda known: [called("call_m"), responded("call_m", {"a": 2**60})],
    "an error that is a text": lambda known: [["harness.execute_step.failed", {"error": "x"}]],
    "an error without its cause": lambda known: [
        ["harness.execute_step.failed", {"error": {"name": "E", "message": "m"}}]
    ],
    "an error with a cause of a wrong type": lambda known: [
        ["harness.execute_step.failed", {"error": {**ERROR, "causeCode": ["x"]}}]
    ],
    "an error with a wrong retriable": lambda known: [
        ["harness.execute_step.failed", {"error": {**ERROR, "retriable": "no"}}]
    ],
    "an error that is a blob": lambda known: [
        ["harness.execute_step.failed", {"errorRef": {"ref": "x", "sha256": "y", "size": 1}}]
    ],
    "an error that is too long": lambda known: [
        [
            "harness.execute_step.failed",
            {"error": {**ERROR, "message": "x" * (ERROR_TEXT_CHARS_MAX + 1)}},
        ]
    ],
    "metadata that is no map": lambda known: [
        ["harness.execute_step.succeeded", {"output": 1, "metadata": [1]}]
    ],
    "too many events": lambda known: [WARNING] * SESSION_EVENTS_MAX,
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_report_is_refused_whole_and_the_run_goes_on(name: str) -> None:
    world, child = open_world()
    events = ILLEGAL[name](open_call(child))

    check_refused(handle(world, report(child, *events)), "protocol")

    world, child = open_world()
    world.inbox.append(report(child, *events))
    world.hold = None
    world.run()
    assert world.state().status == "completed"
    assert world.state().output == {"x": 2}
    exits = [event.payload for event in world.events() if event.type == "ProcessExited"]
    assert exits[0]["reason"] == "protocol"


@pytest.mark.parametrize(
    "error", [ERROR, {**ERROR, "message": "x" * ERROR_TEXT_CHARS_MAX, "causeCode": "odd"}]
)
def test_reported_failure_of_the_largest_size_fails_the_step(error: dict[str, Any]) -> None:
    world, child = open_world()
    world.handle(report(child, ["harness.execute_step.failed", {"error": error}]))
    child.script = None
    world.run()

    assert world.state().status == "failed"
    assert world.state().error == error


def test_process_whose_session_has_ended_may_repeat_and_not_add() -> None:
    world, child = open_world()
    final = [succeeded(open_call(child)), ["harness.execute_step.succeeded", {"output": {"x": 1}}]]
    world.handle(report(child, *final))
    world.children.clear()
    process = world.kernel.system.processes[child.process_id]
    assert process.session_id != child.session["sessionId"], "it has the next session already"

    check_refused(handle(world, report(child, *final)), "stale_incarnation")


def test_history_is_given_to_the_process_that_carries_the_session_only() -> None:
    world, child = open_world()
    number = {"session_id": child.session["sessionId"], "incarnation": 1, "after": 0}
    turn = handle(world, HistoryAsked(child.process_id, **number))
    (action,) = turn.actions
    assert isinstance(action, SendHistory) and action.session_id == number["session_id"]

    for process_id, session in (("p9-9", number["session_id"]), (child.process_id, "hs_other")):
        asked = HistoryAsked(process_id, **{**number, "session_id": session})
        turn = handle(world, asked)
        assert not turn.events and not turn.actions
