"""What sessions owe: their start, their end, and what becomes of calls that got no outcome."""

from typing import Any

from planaria.protocol.codec import Json
from planaria.protocol.events import TASKS, Draft
from planaria.protocol.manifests import hash_manifest, make_manifest
from planaria.protocol.payloads import write_field
from planaria.protocol.usage import copy_usage

from .drafts import fail_attempt, identify_step, make_error
from .outputs import check_output
from .owed_waits import close_approvals
from .planning import describe_draft_findings
from .run_state import Error, Library, Now, Owed, RunState, SessionState


def close_calls(run: RunState, session: SessionState, why: str, now: Now) -> list[Draft]:
    """Returns the ends of a session's open calls and approvals, for one that ends without them.

    A lost `read` is a failure; a lost effect of another class is unknown.
    """
    drafts = close_approvals(run, session, now)
    for call in session.open_calls.values():
        error = {"name": "Lost", "message": why}
        payload: dict[str, Any] = {"callId": call.call_id, "error": error}
        kind = f"harness.{call.kind}.failed"
        if call.kind == "tool_call" and call.effect != "read" and call.sub_run_id is None:
            kind = "harness.tool_call.unknown"
            payload = {"callId": call.call_id, "since": call.started_at, "evidence": why}
        drafts.append(Draft(run.run_id, kind, payload, session.id))
    return drafts


def open_session(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Starts the session of an attempt, whose id is the detail, with its manifest."""
    step = run.steps[owed[1]]
    assert run.plan is not None
    role = "fixer" if step.fix_attempt else step.plan.role
    manifest = make_manifest(
        role,
        step.plan.fixer_manifest if step.fix_attempt else step.plan.manifest,
        definition_hash=run.admission["workflowDefinitionHash"],
        version_id=run.plan.version_id,
        step_path=step.path,
        cycle=library.value(run.cycle) if role == "planner" else None,
    )
    payload = {
        "role": role,
        "task": TASKS[role],
        "stepPath": step.path,
        "attempt": step.attempt,
        "manifest": manifest,
        "manifestHash": hash_manifest(manifest),
    }
    return [Draft(run.run_id, "harness.session.started", payload, detail)]


def settle_session(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    """Ends a session whose process has reported the end of its step."""
    session = run.sessions[owed[1]]
    assert session.finish is not None
    outcome, value, _ = session.finish
    if run.cancellation is None and any(call.fails_closed for call in session.open_calls.values()):
        return hold_session(run, owed, detail, now, library)
    drafts = close_calls(run, session, "its session ended before its outcome was recorded", now)
    if outcome == "succeeded":
        error = _check_output(run, session, library.value(value))
        if error is None:
            done = {"usage": copy_usage(session.usage)}
            return [*drafts, Draft(run.run_id, "harness.session.completed", done, session.id)]
    else:
        error = value
    failed = {"error": error, "usage": copy_usage(session.usage)}
    return [*drafts, Draft(run.run_id, "harness.session.failed", failed, session.id)]


def _check_output(run: RunState, session: SessionState, output: Json) -> Error | None:
    if session.role == "planner":
        assert run.plan is not None
        problem = describe_draft_findings(run.plan, output)
        cause = "planner_validation_exhausted"
        return make_error("PlanInvalidError", problem, cause) if problem is not None else None
    problem = check_output(session.step.plan, output)
    if problem is None:
        return None
    return make_error("OutputSchemaError", problem, "step_schema_error")


def close_session(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    """Ends a session from outside: it was cancelled, timed out, or crashed too often."""
    session = run.sessions[owed[1]]
    failed = Draft(
        run.run_id,
        "harness.session.failed",
        {"error": detail, "usage": copy_usage(session.usage)},
        session.id,
    )
    return [*close_calls(run, session, detail["message"], now), failed]


def hold_session(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Marks the effects whose outcome nobody may guess; the session waits for a person."""
    session = run.sessions[owed[1]]
    evidence = "its process ended after the call was dispatched and before an outcome came"
    return [
        Draft(
            run.run_id,
            "harness.tool_call.unknown",
            {"callId": call.call_id, "since": call.started_at, "evidence": evidence},
            session.id,
        )
        for call in session.open_calls.values()
        if call.fails_closed and (call.is_lost or session.finish is not None)
    ]


def interrupt(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Says that a run can't move on: an effect is unknown and nothing else is left to do."""
    can_move = any(not session.is_held for session in run.sessions.values())
    waits = run.awaits_sub_runs or run.approvals or run.waits
    if len(run.owed) > 1 or can_move or run.backoffs or waits:
        return []
    session = next(s for s in run.sessions.values() if s.is_held)
    call = next(c for c in session.unknown_calls if c.fails_closed)
    payload = {
        "sessionId": session.id,
        "callId": call.call_id,
        "effect": call.effect,
        "idempotencyKey": call.idempotency_key,
        "toolName": call.tool_name,
        "stepPath": session.step.path,
        "dispatchedAt": call.started_at,
    }
    return [Draft(run.run_id, "RunInterrupted", payload)]


def finish_step(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Ends the attempt whose session has ended."""
    session, failed = detail
    step = session.step
    if failed is not None:
        error = {"retriable": True, "causeCode": "step_failed", **failed}
        return [fail_attempt(run, step, error)]
    _, value, metadata = session.finish
    payload = {**identify_step(step), "attempt": step.attempt, **write_field("output", value)}
    if step.fix_attempt:
        metadata = {**metadata, "fixerAttempts": step.fix_attempt}
    if metadata:
        payload["metadata"] = metadata
    return [Draft(run.run_id, "StepCompleted", payload)]
