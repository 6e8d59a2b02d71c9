"""Decide: what a message means now. Pure; answers with events and actions and changes nothing.

Every match over the messages is closed (no `case _`), so that the type checkers report a message
that nobody handles.
"""

from typing import Any

from planaria.protocol.errors import RunNotFoundError
from planaria.protocol.events import Draft
from planaria.protocol.limits import MAX_RESTARTS
from planaria.protocol.messages import Stop

from .decide_openings import decide_admission, decide_fork, decide_retry
from .decide_reports import decide_report
from .decide_waits import decide_approval, decide_pause, decide_resolution, decide_signal
from .decision import Decision
from .drive_loop import decide_errand, decide_start_loop, drive, give_up_errand
from .kernel_messages import (
    Action,
    AdmitRun,
    Answer,
    CancelRun,
    DecideApproval,
    DriveLoop,
    ErrandEnded,
    ForkRun,
    HistoryAsked,
    KernelMessage,
    Kill,
    LaunchFailed,
    PauseRun,
    ProcessEnded,
    ProcessReady,
    ProcessSeen,
    ResolveEffects,
    RetryRun,
    Send,
    SendHistory,
    SessionReported,
    SignalRun,
    StartLoop,
    StopSystem,
    Tick,
)
from .run_state import Library, Now
from .system_state import BOUND, LAUNCHING, ProcessState, SystemState
from .timers import decide_due


def decide(system: SystemState, message: KernelMessage, now: Now, library: Library) -> Decision:
    """Returns the events and actions that a message calls for; the fleet's come afterwards."""
    match message:
        case SessionReported():
            return decide_report(system, message, library)
        case AdmitRun():
            return decide_admission(system, message, library)
        case RetryRun():
            return decide_retry(system, message, now)
        case ForkRun():
            return decide_fork(system, message, library)
        case DecideApproval():
            return decide_approval(system, message, now)
        case SignalRun():
            return decide_signal(system, message, library)
        case PauseRun():
            return decide_pause(system, message)
        case ResolveEffects():
            return decide_resolution(system, message)
        case StartLoop():
            return decide_start_loop(system, message, library)
        case DriveLoop():
            return drive(system, system.loops[message.loop_id], library)
        case ErrandEnded():
            return decide_errand(system, message, library)
        case CancelRun():
            return _decide_cancellation(system, message)
        case HistoryAsked():
            return _decide_history(system, message)
        case ProcessEnded():
            return _decide_end(system, message)
        case LaunchFailed():
            return _decide_failed_launch(system, message)
        case Tick():
            return Decision(*decide_due(system, message.due, now))
        case StopSystem():
            return _decide_stop(system)
        case ProcessReady() | ProcessSeen():
            return Decision()


def _decide_history(system: SystemState, message: HistoryAsked) -> Decision:
    process = system.processes.get(message.process_id)
    session = system.find_session(process) if process else None
    if process is None or session is None or session.id != message.session_id:
        return Decision()
    assert process.run_id is not None
    upto = session.last_sequence
    action = SendHistory(process.id, process.run_id, session.id, message.after, upto)
    return Decision([], [action])


def _decide_cancellation(system: SystemState, message: CancelRun) -> Decision:
    run = system.runs.get(message.run_id)
    if run is None:
        missing = RunNotFoundError(run_id=message.run_id)
        return Decision([], [Answer(message.client, error=missing)])
    result = {"runId": run.run_id, "status": run.status, "alreadyEnded": run.is_ended}
    answer = Answer(message.client, result=result)
    if run.is_ended or run.cancellation is not None:
        return Decision([], [answer])
    payload: dict[str, Any] = {"requestId": message.request_id}
    if message.reason:
        payload["reason"] = f"by client: {message.reason}"
    return Decision([Draft(run.run_id, "CancellationRequested", payload)], [answer])


def _decide_end(system: SystemState, message: ProcessEnded) -> Decision:
    process = system.processes.get(message.process_id)
    if process is None:
        return Decision()
    reason = process.kill_reason
    session = system.find_session(process)
    errand = system.errands.get(process.errand_id or "")
    if errand is not None and errand.deaths >= MAX_RESTARTS:
        return give_up_errand(system, errand)
    exit_facts: dict[str, Any] = {"reason": reason}
    if message.exit_code is not None:
        exit_facts["exitCode"] = message.exit_code
    if message.signal is not None:
        exit_facts["signal"] = message.signal
    if session is not None:
        assert process.run_id is not None
        payload = {"sessionId": session.id, "incarnation": session.incarnation, **exit_facts}
        return Decision([Draft(process.run_id, "ProcessExited", payload, session.id)])
    if process.status == LAUNCHING:
        return Decision(_blame_waiting(system, process, {**exit_facts, "reason": "not_ready"}))
    return Decision()


def _decide_failed_launch(system: SystemState, message: LaunchFailed) -> Decision:
    process = system.processes.get(message.process_id)
    if process is None:
        return Decision()
    return Decision(_blame_waiting(system, process, {"reason": f"launch: {message.reason}"[:500]}))


def _blame_waiting(
    system: SystemState, process: ProcessState, exit_facts: dict[str, Any]
) -> list[Draft]:
    """Counts a process that was never ready against the session that waits for such a one.

    Otherwise a machine on which no child comes up would launch for ever: so it is an incarnation
    that started and ended, and the session's restart intensity is its limit.
    """
    for run_id in system.queue:
        run = system.runs[run_id]
        for session in run.waiting.values():
            if session.kind != process.kind:
                continue
            number = {"sessionId": session.id, "incarnation": session.incarnation + 1}
            facts = {"pid": process.pid, "startTime": process.start_time, "bootId": system.boot_id}
            return [
                Draft(run_id, "ProcessStarted", {**number, **facts}, session.id),
                Draft(run_id, "ProcessExited", {**number, **exit_facts}, session.id),
            ]
    return []


def _decide_stop(system: SystemState) -> Decision:
    actions: list[Action] = [
        Send(process.id, Stop("shutdown"))
        if process.status == BOUND
        else Kill(process.id, "put_away")
        for process in system.processes.values()
    ]
    return Decision([], actions)
