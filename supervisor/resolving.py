"""What a person says of effects whose outcome is unknown, and what follows from it. Pure."""

from typing import Any

from planaria.protocol.errors import ConflictError, NotFoundError, PlanariaError
from planaria.protocol.events import Draft

from .drafts import make_error
from .run_state import CallState, Error, RunState

RESOLUTIONS = frozenset({"succeeded", "failed", "never_happened", "given_up"})
_FIELDS = ("resolution", "result", "resultRef", "message")


def find_conflict(run: RunState, answer: dict[str, Any]) -> PlanariaError | None:
    """Returns why an answer can't be taken: another one stands, or there is no such call."""
    call_id = answer["callId"]
    known = run.resolutions.get(call_id)
    if known is not None:
        if all(known.get(name) == answer.get(name) for name in _FIELDS):
            return None
        text = f"call {call_id!r} of run {run.run_id!r} was resolved before as"
        return ConflictError(message=f"{text} {known['resolution']} by {known['by']}")
    if call_id not in run.unknown_effects:
        listed = ", ".join(run.unknown_effects) or "none"
        text = f"run {run.run_id!r} has no effect {call_id!r} of unknown outcome; there are"
        return NotFoundError(message=f"{text}: {listed}")
    if run.is_ended and answer["resolution"] == "given_up":
        return ConflictError(message=f"run {run.run_id!r} has ended: there is nothing to give up")
    return None


def resolve(run: RunState, answer: dict[str, Any], by: str) -> list[Draft]:
    """Returns the events of an answer without a conflict; none if it stands already."""
    call_id = answer["callId"]
    if call_id in run.resolutions:
        return []
    call = run.unknown_effects[call_id]
    is_open = call.session_id in run.sessions
    given: dict[str, Any] = {n: answer[n] for n in _FIELDS if answer.get(n) is not None}
    if answer["resolution"] == "succeeded" and "resultRef" not in given:
        given["result"] = answer.get("result")
    resolved = {"callId": call_id, "sessionId": call.session_id, "by": by, **given}
    session_id = call.session_id if is_open else None
    drafts = [Draft(run.run_id, "EffectResolved", resolved, session_id)]
    if not is_open:
        return drafts
    number = {"callId": call_id}
    if answer["resolution"] == "succeeded":
        value: dict[str, Any] = {
            name: given[name] for name in ("result", "resultRef") if name in given
        }
        kind = "harness.tool_call.succeeded"
        drafts.append(Draft(run.run_id, kind, {**number, **value}, session_id))
    elif answer["resolution"] == "failed":
        message = answer.get("message") or "it failed"
        error = {"name": "ResolvedAsFailed", "message": f"{message} (said {by})"}
        kind = "harness.tool_call.failed"
        drafts.append(Draft(run.run_id, kind, {**number, "error": error}, session_id))
    return drafts


def make_interruption(call: CallState) -> Error:
    """Returns the error of a run that ends because an effect's outcome stays unknown."""
    text = (
        f"whether {call.tool_name!r} (class {call.effect}, idempotency key "
        f"{call.idempotency_key}) has happened is unknown"
    )
    return make_error("InterruptedEffect", text, "interrupted")
