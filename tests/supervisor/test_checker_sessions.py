"""The checker's rules of sessions, processes and calls, each broken alone."""

from collections.abc import Callable
from typing import Any

import pytest
from log_builder import ERROR, LogBuilder, assert_only, with_session

from planaria.protocol.ids import call_id

Change = Callable[[LogBuilder, str], None]


# -- sessions and processes -----------------------------------------------------------------


def start_session_twice(log: LogBuilder, session: str) -> None:
    started = next(e for e in log.events if e.type == "harness.session.started")
    log.add(started.type, started.payload, session)


def resume_with(**more: Any) -> Change:
    def change(log: LogBuilder, session: str) -> None:
        log.exit(session)
        log.process(session, 2)
        log.resume(session, **more)

    return change


def resume_as_another(log: LogBuilder, session: str) -> None:
    resume_with()(log, session)
    log.events[-1].payload["incarnation"] = 3


def end_twice(log: LogBuilder, session: str) -> None:
    log.end_session(session)
    log.add("harness.session.completed", {"usage": {}}, session)


def speak_after_the_end(log: LogBuilder, session: str) -> None:
    log.end_session(session)
    log.add("harness.warning", {"text": "late"}, session, 1)


def complete_without_a_result(log: LogBuilder, session: str) -> None:
    log.add("harness.session.completed", {"usage": {}}, session)


def skip_incarnation(log: LogBuilder, session: str) -> None:
    log.exit(session)
    log.process(session, 3)


def overlap_incarnations(log: LogBuilder, session: str) -> None:
    log.process(session, 2)


def exit_twice(log: LogBuilder, session: str) -> None:
    log.exit(session)
    log.exit(session)


def exit_without_cause(log: LogBuilder, session: str) -> None:
    log.exit(session, reason="bored")


def exit_without_code(log: LogBuilder, session: str) -> None:
    log.exit(session, signal=None)


def speak_after_exit(log: LogBuilder, session: str) -> None:
    log.exit(session)
    log.add("harness.warning", {"text": "late"}, session, 1)


def speak_as_the_predecessor(log: LogBuilder, session: str) -> None:
    resume_with()(log, session)
    log.add("harness.warning", {"text": "late"}, session, 1)


def speak_as_nobody(log: LogBuilder, session: str) -> None:
    log.add("harness.warning", {"text": "who"}, session)


def speak_as_the_supervisor(log: LogBuilder, session: str) -> None:
    log.exit(session)
    log.add("ProcessStarted", {
        "sessionId": session, "incarnation": 2, "pid": 9, "startTime": 1, "bootId": "b",
    }, session, 1)  # fmt: skip


def speak_without_a_pid(log: LogBuilder, session: str) -> None:
    log.exit(session)
    log.process(session, 2, pid=0)
    log.resume(session)


def share_a_process(log: LogBuilder, session: str) -> None:
    started = log.events[-1].payload
    other = log.attempt("draft.visit[0]", "draft")
    log.add("ProcessStarted", {**started, "sessionId": other}, other)


def go_on_without_resuming(log: LogBuilder, session: str) -> None:
    log.exit(session)
    log.process(session, 2)
    log.add("harness.warning", {"text": "hello"}, session, 2)


def resume_twice(log: LogBuilder, session: str) -> None:
    resume_with()(log, session)
    log.resume(session)


def restart_too_often(log: LogBuilder, session: str) -> None:
    for incarnation in range(1, 7):
        log.mono += 6_000_000
        log.exit(session, incarnation)
        log.mono += 6_000_000 if incarnation < 2 else 2_000_000
        log.process(session, incarnation + 1)


def restart_too_early(log: LogBuilder, session: str) -> None:
    for incarnation in (1, 2):
        log.exit(session, incarnation)
        log.process(session, incarnation + 1)


SESSION_CHANGES = [
    ("I6", start_session_twice),
    ("I6", resume_with(manifestHash="sha256:other")),
    ("I7", end_twice),
    ("I7", speak_after_the_end),
    ("I7", complete_without_a_result),
    ("I8", skip_incarnation),
    ("I8", overlap_incarnations),
    ("I8", exit_twice),
    ("I8", exit_without_cause),
    ("I8", exit_without_code),
    ("I9", speak_after_exit),
    ("I9", speak_as_the_predecessor),
    ("I9", speak_as_nobody),
    ("I10", speak_without_a_pid),
    ("I10", share_a_process),
    ("I14", go_on_without_resuming),
    ("I14", resume_twice),
    ("I14", resume_with(digest="sha256:00")),
    ("I14", resume_with(replayedEvents=3)),
    ("I14", resume_as_another),
    ("I29", restart_too_often),
    ("I29", restart_too_early),
]


@pytest.mark.parametrize(("invariant", "change"), SESSION_CHANGES)
def test_session_rule_is_broken_alone(invariant: str, change: Change) -> None:
    log, session = with_session()
    assert [] == log.check()

    change(log, session)

    assert_only(invariant, log)


def test_event_of_the_supervisor_that_names_a_process_breaks_i9() -> None:
    log, session = with_session()
    speak_as_the_supervisor(log, session)

    assert {"I9"} == {v.invariant for v in log.check()}


def test_process_that_was_never_ready_may_have_no_pid() -> None:
    log, session = with_session()
    log.exit(session)
    log.process(session, 2, pid=0)
    log.exit(session, 2, reason="launch: no such file", signal=None)

    assert [] == log.check()


# -- calls ------------------------------------------------------------------------------------


def start_call_twice(log: LogBuilder, session: str) -> None:
    log.tool(session, effect="read")
    log.tool(session, effect="read")


def end_call_twice(log: LogBuilder, session: str) -> None:
    call = log.tool(session)
    log.tool_end(session, call)
    log.tool_end(session, call)


def end_call_of_nobody(log: LogBuilder, session: str) -> None:
    log.tool_end(session, "call_x")


def leave_call_open(log: LogBuilder, session: str) -> None:
    log.tool(session)
    log.end_session(session)


def leave_operation_open(log: LogBuilder, session: str) -> None:
    position = "o.get_tools.x.0"
    payload = {"callId": call_id(session, position), "position": position, "name": "get_tools.x"}
    log.add("harness.operation.started", payload, session, 1)
    log.end_session(session)


def respond_twice(log: LogBuilder, session: str) -> None:
    call = log.model(session)
    log.model_end(session, call)
    log.model_end(session, call)


def ask_again_after_the_response(log: LogBuilder, session: str) -> None:
    log.model_end(session, log.model(session))
    log.model(session)


def ask_something_else_again(log: LogBuilder, session: str) -> None:
    log.model_end(session, log.model(session), failed=True)
    resume_with()(log, session)
    log.model(session, by=2, requestHash="sha256:other")


def leave_model_open(log: LogBuilder, session: str) -> None:
    log.model(session)
    log.end_session(session)


def make_an_id_up(log: LogBuilder, session: str) -> None:
    log.tool(session, callId="call_random")


def leave_a_hole(log: LogBuilder, session: str) -> None:
    log.tool_end(session, log.tool(session, "c0"))
    log.tool_end(session, log.tool(session, "c2"))
    log.end_session(session)


def invent_a_position(log: LogBuilder, session: str) -> None:
    log.tool(session, "somewhere")


def open_too_many(log: LogBuilder, session: str) -> None:
    for number in range(65):
        log.tool(session, f"c{number}", effect="read")


def ask_twice_in_one_process(log: LogBuilder, session: str) -> None:
    log.model_end(session, log.model(session), failed=True)
    log.model(session)


def repeat_in_one_process(log: LogBuilder, session: str) -> None:
    call = log.model(session)
    log.add("harness.model.repeated", {"callId": call, "reserve": None}, session, 1)


def repeat_an_ended_call(log: LogBuilder, session: str) -> None:
    call = log.model(session)
    log.model_end(session, call)
    resume_with()(log, session)
    log.add("harness.model.repeated", {"callId": call, "reserve": None}, session, 2)


def start_once_twice(log: LogBuilder, session: str) -> None:
    log.tool_end(session, log.tool(session))
    log.tool(session)


def take_over_a_lost_call(log: LogBuilder, session: str) -> None:
    call = log.tool(session)
    log.exit(session)
    log.unknown(session, call)
    log.process(session, 2)


def forget_a_lost_call(log: LogBuilder, session: str) -> None:
    log.tool(session)
    log.exit(session)


def fail_a_lost_call(log: LogBuilder, session: str) -> None:
    call = log.tool(session)
    log.exit(session)
    log.add("harness.tool_call.failed", {"callId": call, "error": ERROR}, session)


def interrupt_for_a_known_call(log: LogBuilder, session: str) -> None:
    call = log.tool(session)
    log.tool_end(session, call)
    log.add("RunInterrupted", {
        "sessionId": session, "callId": call, "effect": "once", "idempotencyKey": "k",
        "toolName": "mail", "stepPath": "send", "dispatchedAt": 1,
    })  # fmt: skip


CALL_CHANGES = [
    ("I11", start_call_twice),
    ("I11", end_call_twice),
    ("I11", end_call_of_nobody),
    ("I11", leave_call_open),
    ("I11", leave_operation_open),
    ("I12", respond_twice),
    ("I12", ask_again_after_the_response),
    ("I12", ask_something_else_again),
    ("I12", leave_model_open),
    ("I12", repeat_an_ended_call),
    ("I13", make_an_id_up),
    ("I13", leave_a_hole),
    ("I13", invent_a_position),
    ("I13", open_too_many),
    ("I15", ask_twice_in_one_process),
    ("I15", repeat_in_one_process),
    ("I15", start_once_twice),
    ("I16", take_over_a_lost_call),
    ("I16", forget_a_lost_call),
    ("I16", fail_a_lost_call),
    ("I16", interrupt_for_a_known_call),
]


@pytest.mark.parametrize(("invariant", "change"), CALL_CHANGES)
def test_call_rule_is_broken_alone(invariant: str, change: Change) -> None:
    log, session = with_session()

    change(log, session)

    assert_only(invariant, log)


def test_lost_calls_are_settled_by_their_class() -> None:
    log, session = with_session()
    log.tool(session, "c0", effect="read")
    once = log.tool(session, "c1")
    again = log.tool(session, "c2", effect="idempotent")
    log.exit(session)
    log.unknown(session, once)
    interrupted = {
        "sessionId": session, "callId": once, "effect": "once", "idempotencyKey": "k",
        "toolName": "mail", "stepPath": "send", "dispatchedAt": 1,
    }  # fmt: skip
    log.add("RunInterrupted", interrupted)
    log.add("CancellationRequested", {"requestId": "r"})
    lost = {"callId": call_id(session, "c0"), "error": ERROR}
    log.add("harness.tool_call.failed", lost, session)
    log.unknown(session, again)
    log.end_session(session, by=None, failed=True)
    log.end_step("send", "send", failed=True)
    log.end_run("RunCancelled")

    assert [] == log.check()


def retry_send(log: LogBuilder, session: str, key: str, effect: str = "once") -> tuple[str, str]:
    """Fails the attempt of a session and starts the next, with a call under the same key."""
    log.end_session(session, failed=True)
    log.end_step("send", "send", failed=True)
    log.add("StepRetryScheduled", {"stepPath": "send", "nextAttempt": 2, "dueAt": 1})
    session = log.attempt("send", "send", attempt=2)
    log.process(session)
    return session, log.tool(session, idempotencyKey=key, effect=effect)


def test_success_of_an_earlier_attempt_is_returned_again() -> None:
    log, session = with_session()
    log.tool_end(session, log.tool(session, idempotencyKey="k"), result={"id": 1})
    session, call = retry_send(log, session, "k")
    log.tool_end(session, call, result={"id": 1})

    assert [] == log.check()


def test_effect_that_is_performed_in_a_later_attempt_again_breaks_i15() -> None:
    log, session = with_session()
    log.tool_end(session, log.tool(session, idempotencyKey="k"), result={"id": 1})
    session, call = retry_send(log, session, "k")
    log.tool_end(session, call, result={"id": 2})

    assert_only("I15", log)


@pytest.mark.parametrize(("effect", "expected"), [("once", ["I15"]), ("idempotent", [])])
def test_unknown_effect_is_not_started_by_a_later_attempt(effect: str, expected: list[str]) -> None:
    log, session = with_session()
    call = log.tool(session, idempotencyKey="k", effect=effect)
    log.unknown(session, call)
    retry_send(log, session, "k", effect)

    assert expected == [v.invariant for v in log.check()]
