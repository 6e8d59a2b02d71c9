"""The fold of waits that need no process: approvals, signals, instants; and of pauses."""

from planaria.protocol.codec import hash_value
from planaria.protocol.events import Draft, Event
from planaria.protocol.payloads import read_field

from .fold_sessions import Handler
from .illegal import refuse_unless
from .run_state import FAILED, ApprovalState, Library, Now, RunState, StepState, WaitState
from .scope_flow import check_end

ABANDONED = "abandoned"  # its scope was stopped: nobody waits any more


def _request_approval(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    path, session_id = payload.get("stepPath"), payload.get("sessionId")
    refuse_unless(payload["approvalId"] not in run.approvals, event, "twice")
    if event.incarnation is not None:
        session = run.sessions.get(event.session_id or "")
        legal = session is not None and session.is_live
        refuse_unless(legal and session_id == event.session_id, event, f"for {session_id!r}")
        assert session is not None
        session.reported += 1
        session.last_sequence = event.sequence
        session.approvals[payload["approvalId"]] = None
    else:
        refuse_unless(("request_approval", path) in run.owed, event, f"for {path!r}")
        del run.owed[("request_approval", path)]
    run.approvals[payload["approvalId"]] = ApprovalState(
        id=payload["approvalId"],
        step_path=path,
        session_id=session_id,
        expires_at=payload.get("expiresAt"),
        on_timeout=payload["onTimeout"],
        requested=payload,
        requested_at=event.at,
    )


def _resolve_approval(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    approval = run.approvals.get(payload["approvalId"])
    refuse_unless(approval is not None, event, f"for {payload['approvalId']!r}, which isn't open")
    assert approval is not None
    del run.approvals[approval.id]
    run.decided[approval.id] = payload
    session = run.sessions.get(approval.session_id or "")
    if approval.step_path is None:
        if session is not None:
            session.approvals.pop(approval.id, None)
            session.last_sequence = event.sequence
            if not session.is_live and not session.awaits_others and not session.is_held:
                run.waiting[session.id] = session
    elif payload["decision"] == ABANDONED:
        _abandon(run, run.steps[approval.step_path])
    else:
        detail = {**payload, "onTimeout": approval.on_timeout}
        run.owe("finish_approval", approval.step_path, detail=detail)


def _start_wait(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    path, name = payload["stepPath"], payload.get("name")
    refuse_unless(("start_wait", path) in run.owed, event, f"for {path!r}")
    del run.owed[("start_wait", path)]
    run.waits[path] = WaitState(path, name, payload.get("dueAt"), event.at)
    if name is not None and run.signals.get(name):
        run.owe("take_signal", path)


def _receive_signal(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    signal_id, name = payload["signalId"], payload["name"]
    refuse_unless(signal_id not in run.signal_hashes, event, f"twice for {signal_id!r}")
    data = read_field(payload, "data")
    run.signal_hashes[signal_id] = hash_value([name, library.value(data)])
    run.signals.setdefault(name, {})[signal_id] = data
    kept = len(run.signals[name])
    waiting = [wait.path for wait in run.waits.values() if wait.name == name]
    for path in waiting[:kept]:
        run.owe("take_signal", path)


def _complete_wait(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    path, outcome = payload["stepPath"], payload["outcome"]
    wait = run.waits.get(path)
    refuse_unless(wait is not None, event, f"for {path!r}")
    assert wait is not None
    value = None
    if outcome == "signal":
        kept = run.signals.get(wait.name or "", {})
        refuse_unless(payload["signalId"] in kept, event, f"with signal {payload['signalId']!r}")
        value = kept.pop(payload["signalId"])
    del run.waits[path]
    run.owed.pop(("take_signal", path), None)
    if outcome == ABANDONED:
        _abandon(run, run.steps[path])
    else:
        run.owe("finish_wait", path, detail=(outcome, value))


def _abandon(run: RunState, step: StepState) -> None:
    """Ends a step that only waited, without a failure of its own: its scope has one."""
    path = step.path
    step.status = FAILED
    step.scope.running -= 1
    run.steps.pop(path)
    run.timed.pop(path, None)
    run.owed.pop(("abandon", path), None)
    check_end(run, step.scope)


def _pause(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(not run.is_paused, event, "twice")
    run.pause = {"by": event.payload["by"], "at": event.at}


def _unpause(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.is_paused, event, "while it isn't paused")
    run.pause = None


def expire(run: RunState, approval: ApprovalState, now: Now) -> Draft:
    """Returns the end of an approval that nobody has decided in time."""
    payload = {"approvalId": approval.id, "decision": "expired", "source": "timer"}
    decided = {**payload, "decidedAt": now.at}
    return Draft(run.run_id, "ApprovalResolved", decided, approval.session_id)


WAIT_HANDLERS: dict[str, Handler] = {
    "ApprovalRequested": _request_approval,
    "ApprovalResolved": _resolve_approval,
    "WaitStarted": _start_wait,
    "SignalReceived": _receive_signal,
    "WaitCompleted": _complete_wait,
    "RunPaused": _pause,
    "RunUnpaused": _unpause,
}
