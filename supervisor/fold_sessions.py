"""The fold of sessions, their calls, and the processes that carry them."""

from collections.abc import Callable
from typing import Any

from planaria.protocol.effects import SUB_RUN_TOOLS, strip_attempts
from planaria.protocol.events import TASKS, Event
from planaria.protocol.ids import sub_run_id
from planaria.protocol.payloads import read_field
from planaria.protocol.usage import add_counts

from .illegal import refuse_unless
from .resolving import make_interruption
from .restart import is_over_intensity, restart_not_before
from .run_state import RUNNING, CallState, Library, RunState, SessionState, choose_kind

# Ends of a process that say nothing against its session.
UNCOUNTED = frozenset({"supervisor_lost", "put_away"})

Handler = Callable[[RunState, Event, Library], None]


def _session(run: RunState, event: Event) -> SessionState:
    """Returns the open session that the event belongs to, after the fencing checks."""
    session = run.sessions.get(event.session_id or "")
    refuse_unless(session is not None, event, f"for session {event.session_id!r}, which isn't open")
    assert session is not None
    if event.incarnation is not None:
        is_current = session.is_live and event.incarnation == session.incarnation
        refuse_unless(is_current, event, f"from incarnation {event.incarnation}")
    return session


def _count(session: SessionState, event: Event) -> None:
    """Counts an event of the session, once nothing refuses it any more."""
    if event.incarnation is not None:
        session.reported += 1
    session.last_sequence = event.sequence


def _start_session(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    path = payload["stepPath"]
    step = run.steps.get(path)
    legal = step is not None and step.status == RUNNING and step.attempt == payload["attempt"]
    refuse_unless(legal and ("open_session", path) in run.owed, event, f"for {path!r}")
    assert step is not None and event.session_id is not None
    del run.owed[("open_session", path)]
    session = SessionState(
        id=event.session_id,
        step=step,
        role=payload["role"],
        task=payload["task"],
        attempt=payload["attempt"],
        started_at=event.at,
        manifest_hash=payload["manifestHash"],
        first_sequence=event.sequence,
        last_sequence=event.sequence,
    )
    session.kind = choose_kind(run.admission["source"], needs_agent=session.needs_agent)
    step.session = session
    run.sessions[session.id] = session
    run.waiting[session.id] = session


def _start_process(run: RunState, event: Event, library: Library) -> None:
    session = _session(run, event)
    number = event.payload["incarnation"]
    legal = not session.is_live and number == session.incarnation + 1 and not session.is_held
    refuse_unless(legal, event, f"as incarnation {number} of {session.id!r}")
    _count(session, event)
    session.incarnation = number
    session.is_live = True
    run.waiting.pop(session.id, None)
    run.owed.pop(("close_session", session.id), None)


def _end_process(run: RunState, event: Event, library: Library) -> None:
    session = _session(run, event)
    legal = session.is_live and event.payload["incarnation"] == session.incarnation
    refuse_unless(legal, event, f"for {session.id!r}")
    _count(session, event)
    session.is_live = False
    if event.payload["reason"] not in UNCOUNTED:
        session.crashes.append((event.epoch, event.mono))
    if run.cancellation is not None:
        run.owe("close_session", session.id, detail=run.error)
        return
    if session.finish is not None or session.is_held:
        return
    for call in session.open_calls.values():
        call.is_lost = call.is_lost or call.effect == "once"
    session.not_before = restart_not_before(session.crashes, event.epoch, event.mono)
    if any(call.is_lost for call in session.open_calls.values()):
        run.owe("hold_session", session.id, detail=event.sequence)
    elif is_over_intensity(session.crashes, event.epoch, event.mono):
        run.owe("close_session", session.id, detail=_crash_error(session, event.payload))
    elif not session.awaits_others:
        run.waiting[session.id] = session


def _crash_error(session: SessionState, exit_facts: dict[str, Any]) -> dict[str, Any]:
    how = exit_facts["reason"]
    for name in ("exitCode", "signal"):
        if exit_facts.get(name) is not None:
            how += f", {name} {exit_facts[name]}"
    return {
        "name": "ProcessCrashed",
        "message": f"the process of this step ended {len(session.crashes)} times without a "
        f"result (last: {how})",
        "causeCode": "process_crashed",
        "retriable": True,
    }


def _open_call(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    call_id = payload["callId"]
    kind = event.type.split(".")[1]
    session = _session(run, event)
    refuse_unless(call_id not in session.open_calls, event, f"twice for call {call_id!r}")
    _count(session, event)
    call = session.open_calls[call_id] = CallState(
        call_id=call_id,
        kind=kind,
        effect=payload.get("effect", "read"),
        tool_name=payload.get("toolName", ""),
        idempotency_key=payload.get("idempotencyKey", ""),
        started_at=event.at,
        session_id=session.id,
        step_path=session.step.path,
    )
    if session.role == "orchestrator" and call.tool_name in SUB_RUN_TOOLS:
        call.sub_run_id = sub_run_id(run.run_id, call_id)
        call.args = read_field(payload, "args")
        run.owe("request_sub_run", session.id, call_id)


def _close_call(run: RunState, event: Event, library: Library) -> None:
    call_id = event.payload["callId"]
    session = _session(run, event)
    call = session.open_calls.get(call_id)
    refuse_unless(call is not None, event, f"for call {call_id!r}, which isn't open")
    assert call is not None
    _count(session, event)
    del session.open_calls[call_id]
    for what in ("request_sub_run", "answer_call"):
        run.owed.pop((what, session.id, call_id), None)
    if call.sub_run_id is not None:
        if not session.is_live and not session.open_calls and run.cancellation is None:
            run.waiting[session.id] = session
    elif event.type == "harness.model.responded":
        for counted in (session.usage, session.step.usage, run.usage):
            add_counts(counted, event.payload["model"], event.payload["usage"])
    elif event.type == "harness.tool_call.succeeded" and call.effect != "read":
        path = strip_attempts(session.step.path)
        result = read_field(event.payload, "result")
        run.performed.setdefault(path, {})[call.idempotency_key] = result


def _mark_unknown(run: RunState, event: Event, library: Library) -> None:
    session = _session(run, event)
    call = session.open_calls.get(event.payload["callId"])
    refuse_unless(call is not None, event, "for a call that isn't open")
    assert call is not None
    _count(session, event)
    del session.open_calls[call.call_id]
    session.unknown_calls.append(call)
    call.unknown_at, call.evidence = event.at, event.payload["evidence"]
    if call.fails_closed:
        run.unknown_effects[call.call_id] = call
        run.resolutions.pop(call.call_id, None)  # it may be lost a second time
    if not call.fails_closed or run.cancellation is not None:
        return
    run.waiting.pop(session.id, None)
    run.timed.pop(session.step.path, None)
    if not any(c.is_lost for c in session.open_calls.values()):
        run.owed.pop(("hold_session", session.id), None)
        run.owed.pop(("settle_session", session.id), None)
        if run.admission.get("onInterrupted") == "fail":
            run.owe("close_session", session.id, detail=make_interruption(call))
        else:
            run.owe("interrupt")


def _reattach(run: RunState, event: Event, library: Library) -> None:
    """A managed effect was looked up; if that says nothing, only a person can."""
    session = _session(run, event)
    call = session.open_calls.get(event.payload["callId"])
    legal = call is not None and call.effect == "managed" and call.sub_run_id is None
    refuse_unless(legal, event, f"for call {event.payload['callId']!r}")
    assert call is not None
    _count(session, event)
    if event.payload["answer"] == "unknown":
        call.is_lost = True
        run.owe("hold_session", session.id, detail=event.sequence)


def _resolve_effect(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    call_id, resolution = payload["callId"], payload["resolution"]
    call = run.unknown_effects.get(call_id)
    refuse_unless(call is not None, event, f"for call {call_id!r}")
    assert call is not None
    run.resolutions[call_id] = payload
    session = run.sessions.get(call.session_id)
    if session is None:
        del run.unknown_effects[call_id]
        if resolution == "succeeded":
            path = strip_attempts(call.step_path)
            result = read_field(payload, "result")
            run.performed.setdefault(path, {})[call.idempotency_key] = result
        return
    session.last_sequence = event.sequence
    if run.status == "interrupted":
        run.status = "running"
    if resolution == "given_up":
        run.owe("close_session", session.id, detail=make_interruption(call))
        return
    del run.unknown_effects[call_id]
    session.unknown_calls.remove(call)
    call.is_lost = False
    session.open_calls[call_id] = call
    if session.is_held:
        run.owe("interrupt")
    elif not session.is_live:
        run.waiting[session.id] = session
    if any(other.is_held for other in run.sessions.values()):
        run.owe("interrupt")


def _report(run: RunState, event: Event, library: Library) -> None:
    """An event that changes nothing but the session's count."""
    _count(_session(run, event), event)


def _repeat_call(run: RunState, event: Event, library: Library) -> None:
    session = _session(run, event)
    call = session.open_calls.get(event.payload["callId"])
    legal = call is not None and call.kind == "model"
    refuse_unless(legal, event, f"for call {event.payload['callId']!r}, which isn't open")
    _count(session, event)


def _reserve(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    reserved = (payload[name] for name in ("callId", "calls", "tokens", "costUsd"))
    run.spent.reserve(*reserved)


def _settle_budget(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    run.spent.settle(payload["callId"], payload["tokens"], payload["costUsd"])


def _exhaust_budget(run: RunState, event: Event, library: Library) -> None:
    session = _session(run, event)
    run.owe("close_session", session.id, detail=event.payload["error"])


def _report_end(run: RunState, event: Event, library: Library) -> None:
    session = _session(run, event)
    refuse_unless(session.finish is None, event, f"twice for {session.id!r}")
    _count(session, event)
    metadata = event.payload.get("metadata") or {}
    if event.type.endswith(".succeeded"):
        session.finish = ("succeeded", read_field(event.payload, "output"), metadata)
    else:
        session.finish = ("failed", event.payload["error"], metadata)
    run.owe("settle_session", session.id)


def _end_session(run: RunState, event: Event, library: Library) -> None:
    session = _session(run, event)
    refuse_unless(not session.open_calls, event, "while a call of the session is open")
    del run.sessions[session.id]
    run.waiting.pop(session.id, None)
    session.is_live = False
    for what in ("settle_session", "close_session", "hold_session"):
        run.owed.pop((what, session.id), None)
    failed = event.payload.get("error") if event.type == "harness.session.failed" else None
    run.owe("finish_step", session.step.path, detail=(session, failed))


SESSION_HANDLERS: dict[str, Handler] = {
    "harness.session.started": _start_session,
    "harness.session.resumed": _report,
    "harness.session.completed": _end_session,
    "harness.session.failed": _end_session,
    "harness.model.called": _open_call,
    "harness.model.responded": _close_call,
    "harness.model.failed": _close_call,
    "harness.tool_call.started": _open_call,
    "harness.tool_call.succeeded": _close_call,
    "harness.tool_call.failed": _close_call,
    "harness.tool_call.unknown": _mark_unknown,
    "harness.tool_call.reattached": _reattach,
    "EffectResolved": _resolve_effect,
    "harness.model.repeated": _repeat_call,
    "BudgetReserved": _reserve,
    "BudgetSettled": _settle_budget,
    "BudgetExhausted": _exhaust_budget,
    "harness.operation.started": _open_call,
    "harness.operation.succeeded": _close_call,
    "harness.operation.failed": _close_call,
    "harness.warning": _report,
    "StepRepairAttempted": _report,
    "harness.memory.written": _report,
    **{f"harness.{task}.succeeded": _report_end for task in TASKS.values()},
    **{f"harness.{task}.failed": _report_end for task in TASKS.values()},
    "ProcessStarted": _start_process,
    "ProcessExited": _end_process,
}
