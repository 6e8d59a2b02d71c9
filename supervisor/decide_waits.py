"""What people say to runs: decisions, signals, pauses, what became of effects. Pure."""

from typing import Any

from planaria.protocol.codec import hash_value
from planaria.protocol.errors import ConflictError, NotFoundError, PlanariaError, RunNotFoundError
from planaria.protocol.events import Draft
from planaria.protocol.payloads import read_field

from .decision import Decision
from .fold_waits import ABANDONED, expire
from .kernel_messages import Answer, DecideApproval, PauseRun, ResolveEffects, SignalRun
from .resolving import find_conflict, resolve
from .run_state import Library, Now
from .system_state import SystemState

SIGNALS_KEPT_MAX = 10_000  # of one run, that no wait has taken


def decide_approval(system: SystemState, message: DecideApproval, now: Now) -> Decision:
    """Records the first decision; repeats it, refuses the opposite one, and what comes too late."""
    run = system.runs.get(message.run_id)
    if run is None:
        return _refuse(message.client, RunNotFoundError(run_id=message.run_id))
    decided = run.decided.get(message.approval_id)
    if decided is not None:
        return _repeat(message, decided)
    approval = run.approvals.get(message.approval_id)
    if approval is None:
        listed = ", ".join(run.approvals) or "none"
        text = f"run {run.run_id!r} has no approval {message.approval_id!r}; open are: {listed}"
        return _refuse(message.client, NotFoundError(message=text))
    if approval.expires_at is not None and approval.expires_at <= now.at:
        expired = expire(run, approval, now)
        return Decision([expired], _repeat(message, expired.payload).actions)
    payload: dict[str, Any] = {
        "approvalId": approval.id,
        "decision": message.decision,
        "source": "person",
        "by": message.by,
        "decidedAt": now.at,
    }
    if message.note:
        payload["note"] = message.note
    draft = Draft(run.run_id, "ApprovalResolved", payload, approval.session_id)
    return Decision([draft], _repeat(message, payload).actions)


def _repeat(message: DecideApproval, decided: dict[str, Any]) -> Decision:
    """Answers with what is decided, if it is what the caller wants."""
    if decided["decision"] == message.decision:
        return Decision(
            actions=[Answer(message.client, result={"runId": message.run_id, **decided})]
        )
    how = decided["decision"]
    if how == ABANDONED:
        text = "nobody waits for it any more"
    elif how == "expired":
        text = "it expired before"
    else:
        text = f"it was {how} by {decided.get('by')} before"
    error = ConflictError(message=f"approval {message.approval_id!r} stays as it is: {text}")
    return _refuse(message.client, error)


def decide_signal(system: SystemState, message: SignalRun, library: Library) -> Decision:
    """Keeps a signal for the wait that takes it; the same id twice is one signal."""
    run = system.runs.get(message.run_id)
    if run is None:
        return _refuse(message.client, RunNotFoundError(run_id=message.run_id))
    result = {"runId": run.run_id, "signalId": message.signal_id}
    known = run.signal_hashes.get(message.signal_id)
    if known is not None:
        if known == hash_value([message.name, library.value(read_field(message.data, "data"))]):
            return Decision(actions=[Answer(message.client, result={**result, "isRepeated": True})])
        text = f"signal {message.signal_id!r} came before with another name or other data"
        return _refuse(message.client, ConflictError(message=text))
    if run.is_ended:
        text = f"run {run.run_id!r} has ended: nothing waits for signal {message.name!r}"
        return _refuse(message.client, ConflictError(message=text))
    if sum(len(kept) for kept in run.signals.values()) >= SIGNALS_KEPT_MAX:
        text = f"run {run.run_id!r} keeps {SIGNALS_KEPT_MAX} signals already that nothing has taken"
        return _refuse(message.client, ConflictError(message=text))
    payload = {"signalId": message.signal_id, "name": message.name, **message.data}
    if message.by:
        payload["by"] = message.by
    answer = Answer(message.client, result={**result, "isRepeated": False})
    return Decision([Draft(run.run_id, "SignalReceived", payload)], [answer])


def decide_pause(system: SystemState, message: PauseRun) -> Decision:
    """Stops a run from starting anything, or lets it go on; a repetition changes nothing."""
    run = system.runs.get(message.run_id)
    if run is None:
        return _refuse(message.client, RunNotFoundError(run_id=message.run_id))
    if run.is_ended:
        text = f"run {run.run_id!r} has ended ({run.status})"
        return _refuse(message.client, ConflictError(message=text))
    answer = Answer(message.client, result={"runId": run.run_id, "isPaused": message.is_paused})
    if run.is_paused == message.is_paused:
        return Decision(actions=[answer])
    kind = "RunPaused" if message.is_paused else "RunUnpaused"
    return Decision([Draft(run.run_id, kind, {"by": message.by})], [answer])


def decide_resolution(system: SystemState, message: ResolveEffects) -> Decision:
    """Records what a person knows of effects: all of the answers, or none of them."""
    run = system.runs.get(message.run_id)
    if run is None:
        return _refuse(message.client, RunNotFoundError(run_id=message.run_id))
    drafts: list[Draft] = []
    for answer in message.answers:
        error = find_conflict(run, answer)
        if error is not None:
            return _refuse(message.client, error)
        drafts.extend(resolve(run, answer, message.by))
    calls = [answer["callId"] for answer in message.answers]
    result = {"runId": run.run_id, "callIds": calls, "isRepeated": not drafts}
    return Decision(drafts, [Answer(message.client, result=result)])


def _refuse(client: Any, error: PlanariaError) -> Decision:
    return Decision(actions=[Answer(client, error=error)])
