"""Decide: what a message means now. Pure; answers with events and actions and changes nothing.

Every match over the messages is closed (no `case _`), so that the type checkers report a message
that nobody handles.
"""

from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.effects import EFFECTS
from planaria.protocol.errors import (
    CapabilityDriftError,
    InputSchemaError,
    ProtocolError,
    RunInputMismatchError,
    RunNotFoundError,
)
from planaria.protocol.events import WORKER_EVENTS, Draft, check_payload
from planaria.protocol.limits import ERROR_TEXT_CHARS_MAX, SESSION_EVENTS_MAX
from planaria.protocol.messages import Committed, Refused, Stop
from planaria.protocol.schemas import validate_value

from .kernel_messages import (
    Action,
    AdmitRun,
    Answer,
    CancelRun,
    HistoryAsked,
    KernelMessage,
    Kill,
    LaunchFailed,
    ProcessEnded,
    ProcessReady,
    ProcessSeen,
    Send,
    SendHistory,
    SessionReported,
    StopSystem,
    Tick,
)
from .run_state import Library, Now, RunState, SessionState
from .system_state import BOUND, LAUNCHING, ProcessState, SystemState
from .timers import decide_due

_OPENING = frozenset(
    {"harness.model.called", "harness.tool_call.started", "harness.operation.started"}
)
_ERROR_FIELDS = frozenset({"name", "message", "causeCode", "retriable"})
USAGE_NAMES_MAX = 100  # counts of one model response; providers report a dozen
COUNT_MAX = 1 << 53  # what a JSON number holds exactly
_ENDING = frozenset({"harness.execute_step.succeeded", "harness.execute_step.failed"})
_CLOSING = frozenset(
    f"harness.{kind}"
    for kind in "model.responded model.failed tool_call.succeeded tool_call.failed "
    "operation.succeeded operation.failed".split()
)


@dataclass(slots=True)
class Decision:
    """Events to be recorded, and actions for after the commit."""

    drafts: list[Draft] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)


def decide(system: SystemState, message: KernelMessage, now: Now, library: Library) -> Decision:
    """Returns the events and actions that a message calls for; the fleet's come afterwards."""
    match message:
        case SessionReported():
            return _decide_report(system, message)
        case AdmitRun():
            return _decide_admission(system, message, library)
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


def _decide_report(system: SystemState, message: SessionReported) -> Decision:
    """Fencing, repetition, legality: only then are a child's reports events."""
    process = system.processes.get(message.process_id)
    if process is None:
        return Decision()
    session = system.find_session(process)
    is_bound = (process.session_id, process.incarnation) == (
        message.session_id,
        message.incarnation,
    )
    if not is_bound and "no_incarnation_check" not in system.bugs:
        return _refuse(message, "stale_incarnation", "another process carries this session now")
    if session is None:
        known = process.reported
        if message.after + len(message.events) <= known:
            return _acknowledge(message, known)
        return _refuse(message, "session_ended", "the session has ended")
    if message.after > session.reported:
        return _acknowledge(message, session.reported)  # one got lost: send again from there
    fresh = message.events[session.reported - message.after :]
    if not fresh:
        return _acknowledge(message, session.reported)
    try:
        if session.reported + len(fresh) > SESSION_EVENTS_MAX:
            raise ProtocolError(message=f"a session reports at most {SESSION_EVENTS_MAX} events")
        _check_reports(session, fresh)
    except ProtocolError as error:
        return _refuse(message, "protocol", str(error))
    assert process.run_id is not None
    drafts = [
        Draft(process.run_id, kind, payload, message.session_id, message.incarnation)
        for kind, payload in fresh
    ]
    answer = _acknowledge(message, session.reported + len(fresh))
    return Decision(drafts, answer.actions)


def _check_reports(session: SessionState, events: list[Any]) -> None:
    """Refuses reports that the fold would refuse, before the first of them is folded."""
    open_calls = {call.call_id: call.kind for call in session.open_calls.values()}
    is_ended = session.finish is not None
    for item in events:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)):
            raise ProtocolError(message="an event of an append is a list of its type and payload")
        kind, payload = item
        if kind not in WORKER_EVENTS:
            raise ProtocolError(message=f"a worker may not report {kind[:60]!r}")
        check_payload(kind, payload)
        _check_fields(kind, payload)
        if is_ended:
            raise ProtocolError(message=f"{kind} after the end of the session's step")
        if kind in _OPENING or kind in _CLOSING:
            call_id, opened = payload["callId"], kind.split(".")[1]
            is_legal = isinstance(call_id, str) and (
                call_id not in open_calls if kind in _OPENING else open_calls.get(call_id) == opened
            )
            if not is_legal:
                raise ProtocolError(message=f"{kind} for call {str(call_id)[:60]!r} can't come now")
            if kind in _OPENING:
                open_calls[call_id] = opened
            else:
                del open_calls[call_id]
        is_ended = kind in _ENDING


def _check_fields(kind: str, payload: dict[str, Any]) -> None:
    """Refuses what the fold reads of a report and can't use; its sender may be hostile.

    The error of a step is never a blob: the kernel itself looks into it.
    """
    match kind:
        case "harness.tool_call.started":
            texts = (payload["toolName"], payload["idempotencyKey"])
            is_sound = payload["effect"] in EFFECTS and all(isinstance(t, str) for t in texts)
        case "harness.model.responded":
            usage = payload["usage"]
            is_sound = isinstance(usage, dict) and len(usage) <= USAGE_NAMES_MAX
            is_sound = is_sound and all(
                type(count) is int and 0 <= count <= COUNT_MAX for count in usage.values()
            )
        case "harness.execute_step.succeeded":
            is_sound = isinstance(payload.get("metadata", {}), dict | None)
        case "harness.execute_step.failed":
            error = payload.get("error")
            is_sound = (
                isinstance(error, dict)
                and error.keys() == _ERROR_FIELDS
                and all(
                    isinstance(value, bool)
                    if name == "retriable"
                    else isinstance(value, str) and len(value) <= ERROR_TEXT_CHARS_MAX
                    for name, value in error.items()
                )
            )
        case _:
            is_sound = True
    if not is_sound:
        raise ProtocolError(message=f"{kind} has a field of a wrong type or size")


def _acknowledge(message: SessionReported, upto: int) -> Decision:
    answer = Committed(message.session_id, message.incarnation, upto)
    return Decision([], [Send(message.process_id, answer)])


def _refuse(message: SessionReported, code: str, text: str) -> Decision:
    refusal = Refused(message.session_id, code, text)
    return Decision([], [Send(message.process_id, refusal), Kill(message.process_id, code)])


def _decide_history(system: SystemState, message: HistoryAsked) -> Decision:
    process = system.processes.get(message.process_id)
    session = system.find_session(process) if process else None
    if process is None or session is None or session.id != message.session_id:
        return Decision()
    assert process.run_id is not None
    upto = session.last_sequence
    action = SendHistory(process.id, process.run_id, session.id, message.after, upto)
    return Decision([], [action])


def _decide_admission(system: SystemState, message: AdmitRun, library: Library) -> Decision:
    run = system.runs.get(message.run_id)
    if run is not None:
        return _attach(run, message)
    plan = library.plan(message.version_id, message.lock_ref)
    schema = plan.document.get("input", {}).get("schema")
    value = message.input.get("input")
    if schema and "input" in message.input:
        findings = validate_value(schema, value)
        if findings:
            reason = "; ".join(f"{f.path}: {f.message}" for f in findings[:5])
            error = InputSchemaError(name=message.workflow_id, reason=reason)
            return Decision([], [Answer(message.client, error=error)])
    admitted: dict[str, Any] = {
        "workflowId": message.workflow_id,
        "workflowDefinitionHash": message.definition_hash,
        "trigger": message.trigger,
        **message.input,
        "inputHash": message.input_hash,
        "source": message.source,
    }
    if message.deadline_ms is not None:
        admitted["deadlineMs"] = message.deadline_ms
    if message.labels:
        admitted["labels"] = message.labels
    version = {
        "workflowVersionId": message.version_id,
        "lwirHash": plan.lwir_hash,
        "lockRef": message.lock_ref,
        "lockHash": message.lock_ref["sha256"],
    }
    drafts = [
        Draft(message.run_id, "RunAdmitted", admitted),
        Draft(message.run_id, "WorkflowVersionRegistered", version),
    ]
    result = {"runId": message.run_id, "attached": False}
    return Decision(drafts, [Answer(message.client, result=result)])


def _attach(run: RunState, message: AdmitRun) -> Decision:
    """Same id, same input, same definition: the caller joins the run. Otherwise nothing happens."""
    if run.admission.get("inputHash") != message.input_hash:
        mismatch = RunInputMismatchError(run_id=run.run_id, what="input")
        return Decision([], [Answer(message.client, error=mismatch)])
    assert run.plan is not None
    changes = [
        f"{name}: {old} → {new}"
        for name, old, new in (
            (
                "workflowDefinitionHash",
                run.admission["workflowDefinitionHash"],
                message.definition_hash,
            ),
            ("workflowVersionId", run.plan.version_id, message.version_id),
        )
        if old != new
    ]
    if changes:
        drift = CapabilityDriftError(run_id=run.run_id, changes=", ".join(changes))
        return Decision([], [Answer(message.client, error=drift)])
    result = {
        "runId": run.run_id,
        "attached": True,
        "isEnded": run.is_ended,
        "modulesRef": run.admission["source"].get("modulesRef"),
    }
    return Decision([], [Answer(message.client, result=result)])


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
            if kind_of(session) != process.kind:
                continue
            number = {"sessionId": session.id, "incarnation": session.incarnation + 1}
            facts = {"pid": process.pid, "startTime": process.start_time, "bootId": system.boot_id}
            return [
                Draft(run_id, "ProcessStarted", {**number, **facts}, session.id),
                Draft(run_id, "ProcessExited", {**number, **exit_facts}, session.id),
            ]
    return []


def kind_of(session: SessionState) -> str:
    """Returns the kind of process that a session needs: `heavy` has the agent library loaded."""
    return "heavy" if session.step.plan.kind == "ai.generate" else "light"


def _decide_stop(system: SystemState) -> Decision:
    actions: list[Action] = [
        Send(process.id, Stop("shutdown"))
        if process.status == BOUND
        else Kill(process.id, "put_away")
        for process in system.processes.values()
    ]
    return Decision([], actions)
