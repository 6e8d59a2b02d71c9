"""Advance: the events that a run's state owes, one follow-up after another.

`advance(run, now, library)` is pure: it reads the first entry of `run.owed` that can be fulfilled
now and answers with its events. The caller folds them and calls again until nothing comes. A
normal step and a recovery after a crash are the same loop.
"""

import json
from collections.abc import Callable
from typing import Any

from planaria.protocol.codec import Json
from planaria.protocol.errors import shorten
from planaria.protocol.events import Draft
from planaria.protocol.expressions import ExpressionError
from planaria.protocol.ids import session_id
from planaria.protocol.manifests import hash_manifest, make_worker_manifest
from planaria.protocol.payloads import write_field

from .context import evaluate, make_roots
from .fold import evaluate_items
from .outputs import check_output, check_run_output, scope_output, scope_output_path
from .run_state import (
    FAIL_CLOSED,
    Error,
    Library,
    Now,
    Owed,
    RunState,
    ScopeState,
    SessionState,
    StepState,
)

KEY_CHARS_MAX = 200  # an item key stands in every path below its branch
Handler = Callable[[RunState, Owed, Any, Now, Library], list[Draft]]


def advance(run: RunState, now: Now, library: Library) -> list[Draft]:
    """Returns the events of the first follow-up that can be done now; empty: nothing is owed."""
    for owed, detail in run.owed.items():
        drafts = _HANDLERS[owed[0]](run, owed, detail, now, library)
        if drafts:
            return drafts
    return []


def make_error(name: str, message: str, cause: str, *, retriable: bool = False) -> Error:
    """Returns the error of a step or run as it stands in events."""
    text = shorten(message)
    return {"name": name, "message": text, "causeCode": cause, "retriable": retriable}


def close_calls(run: RunState, session: SessionState, why: str) -> list[Draft]:
    """Returns the ends of a session's open calls, for a session that ends without them.

    A lost `read` is a failure; a lost effect of another class is unknown.
    """
    drafts = []
    for call in session.open_calls.values():
        error = {"name": "Lost", "message": why}
        payload: dict[str, Any] = {"callId": call.call_id, "error": error}
        kind = f"harness.{call.kind}.failed"
        if call.kind == "tool_call" and call.effect != "read":
            kind = "harness.tool_call.unknown"
            payload = {"callId": call.call_id, "since": call.started_at, "evidence": why}
        drafts.append(Draft(run.run_id, kind, payload, session.id))
    return drafts


def _start_run(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    assert run.plan is not None
    payload: dict[str, Any] = {
        "workflowVersionId": run.plan.version_id,
        "inputHash": run.admission["inputHash"],
    }
    if run.admission.get("deadlineMs") is not None:
        payload["deadline"] = now.at + run.admission["deadlineMs"] * 1_000
    return [Draft(run.run_id, "RunStarted", payload)]


def _identify(step: StepState) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "stepPath": step.path,
        "stepId": step.plan.id,
        "visitIndex": step.visit_index,
    }
    if step.scope.path:
        payload["branchPath"] = step.scope.path
    return payload


def start_attempt(run: RunState, step: StepState) -> list[Draft]:
    """Returns the start of a step's next attempt."""
    attempt = step.attempt + 1
    payload = {**_identify(step), "uses": step.plan.kind, "attempt": attempt}
    if step.plan.kind not in ("decision", "parallel"):
        payload["sessionId"] = session_id(run.run_id, step.path, attempt)
    return [Draft(run.run_id, "StepAttemptStarted", payload)]


def _start_step(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    return start_attempt(run, run.steps[owed[1]])


def _skip_step(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    step = run.steps[owed[1]]
    payload = {"stepPath": owed[1], "stepId": step.plan.id, "because": detail}
    return [Draft(run.run_id, "StepSkipped", payload)]


def _open_session(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    step = run.steps[owed[1]]
    assert run.plan is not None
    manifest = make_worker_manifest(
        step.plan.manifest,
        definition_hash=run.admission["workflowDefinitionHash"],
        version_id=run.plan.version_id,
        step_path=step.path,
    )
    payload = {
        "role": "worker",
        "task": "execute_step",
        "stepPath": step.path,
        "attempt": step.attempt,
        "manifest": manifest,
        "manifestHash": hash_manifest(manifest),
    }
    session = session_id(run.run_id, step.path, step.attempt)
    return [Draft(run.run_id, "harness.session.started", payload, session)]


def _decide(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Evaluates a decision: the first case that holds, else the default."""
    step = run.steps[owed[1]]
    chosen = step.plan.default
    try:
        for condition, target in step.plan.cases:
            if _holds(evaluate(run, step, condition, library)):
                chosen = target
                break
    except ExpressionError as error:
        message = f"decision {step.plan.id!r}: {error}"
        return [_fail(run, step, make_error("ExpressionError", message, "step_failed"))]
    payload = {**_identify(step), "attempt": step.attempt, "chosen": chosen}
    return [Draft(run.run_id, "StepCompleted", payload)]


def _holds(value: Json) -> bool:
    """Says whether a condition holds: null, false, 0 and what is empty don't."""
    return bool(value)


def _fail(run: RunState, step: StepState, error: Error) -> Draft:
    payload = {**_identify(step), "attempt": step.attempt, "error": error}
    return Draft(run.run_id, "StepFailed", payload)


def _open_group(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    step = run.steps[owed[1]]
    try:
        keys = _make_keys(run, step, library)
    except (ExpressionError, ValueError) as error:
        message = f"parallel {step.plan.id!r}: {error}"
        return [_fail(run, step, make_error(type(error).__name__, message, "step_failed"))]
    payload = {"stepPath": step.path, "attempt": step.attempt, "itemKeys": keys}
    return [Draft(run.run_id, "ParallelGroupStarted", payload)]


def _make_keys(run: RunState, step: StepState, library: Library) -> list[str]:
    assert step.plan.items is not None
    items = evaluate(run, step, step.plan.items, library)
    if not isinstance(items, list):
        raise ValueError(f"'items' gave {type(items).__name__}, expected a list")
    items = evaluate_items(run, step, library)
    if len(items) > step.plan.branches_max:
        raise ValueError(f"{len(items)} items, but maxBranches is {step.plan.branches_max}")
    if step.plan.item_key is None:
        return [str(index) for index in range(len(items))]
    roots = make_roots(run, step, library)
    seen: dict[str, None] = {}
    for item in items:
        value = step.plan.item_key.evaluate({**roots, "item": item, "itemKey": None})
        key = value if isinstance(value, str) else _key_text(value)
        if key in seen:
            raise ValueError(f"two items have the key {key[:80]!r}; keys must differ")
        if len(key) > KEY_CHARS_MAX:
            raise ValueError(f"key {key[:40]!r}… has {len(key)} characters; at most 200")
        seen[key] = None
    return list(seen)


def _key_text(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _start_branch(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    group = run.groups[owed[1]]
    index = group.next_index
    payload = {
        "stepPath": owed[1],
        "branchPath": group.branch_path(index),
        "itemKey": group.keys[index],
        "branchIndex": index,
    }
    return [Draft(run.run_id, "ParallelBranchScheduled", payload)]


def _end_scope(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    path = owed[1]
    if path == "":
        return _end_run(run, library)
    scope = run.branches[path]
    assert scope.group is not None
    payload: dict[str, Any] = {
        "stepPath": scope.group.step.path,
        "branchPath": path,
        "itemKey": scope.group.keys[scope.branch_index],
        "branchIndex": scope.branch_index,
    }
    if scope.unsettled == 0 and scope.failure is None:
        payload.update(write_field("output", scope_output(scope)))
        return [Draft(run.run_id, "ParallelBranchCompleted", payload)]
    payload["error"] = _scope_error(run, scope)
    return [Draft(run.run_id, "ParallelBranchFailed", payload)]


def _scope_error(run: RunState, scope: ScopeState) -> Error:
    """Returns why a scope failed: its own failure, else the one around it that stopped it."""
    outer: ScopeState | None = scope
    while outer is not None:
        if outer.failure is not None:
            error, path = outer.failure
            return {**error, "failedStepPath": path} if path else error
        if outer.group is not None and outer.group.failure is not None:
            return outer.group.failure
        outer = outer.group.step.scope if outer.group is not None else None
    raise AssertionError(f"scope {scope.path!r} of run {run.run_id!r} stopped without a reason")


def _end_run(run: RunState, library: Library) -> list[Draft]:
    if run.sessions:
        return []
    if run.cancellation is not None:
        request = {"requestId": run.cancellation["requestId"]}
        if run.cancellation.get("reason") == "timeout":
            assert run.error is not None
            return [Draft(run.run_id, "RunFailed", {"error": run.error})]
        return [Draft(run.run_id, "RunCancelled", request)]
    assert run.root is not None and run.plan is not None
    if run.root.failure is not None:
        error, path = run.root.failure
        payload = {"error": error, "failedStepPath": error.get("failedStepPath", path)}
        return [Draft(run.run_id, "RunFailed", payload)]
    output = scope_output(run.root)
    path = scope_output_path(run.root)
    problem = check_run_output(run.plan, library.value(output))
    if problem is not None:
        error = make_error("OutputSchemaError", problem, "step_schema_error")
        return [Draft(run.run_id, "RunFailed", {"error": error, "failedStepPath": path})]
    done = {**write_field("output", output), "terminalStepPath": path}
    return [Draft(run.run_id, "RunCompleted", done)]


def _end_group(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    group = run.groups[owed[1]]
    payload: dict[str, Any] = {"stepPath": owed[1], "attempt": group.step.attempt}
    if group.failure is None and not group.is_halted:
        return [Draft(run.run_id, "ParallelGroupCompleted", payload)]
    payload["error"] = group.failure or _scope_error(run, group.step.scope)
    return [Draft(run.run_id, "ParallelGroupFailed", payload)]


def _finish_group(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    group = run.groups[owed[1]]
    step = group.step
    if group.failure is not None or group.is_halted:
        error = dict(group.failure or _scope_error(run, step.scope))
        error["message"] = shorten(f"parallel {step.plan.id!r} failed: {error['message']}")
        return [_fail(run, step, error)]
    order = range(len(group.keys))
    indexes = sorted(order, key=lambda i: group.keys[i]) if step.plan.order_by_key else order
    output: list[Json] = []
    for index in indexes:
        status, value = group.results[index]
        entry: dict[str, Any] = {"itemKey": group.keys[index], "status": status}
        entry["output" if status == "completed" else "error"] = library.value(value)
        output.append(entry)
    problem = check_output(step.plan, output)
    if problem is not None:
        return [_fail(run, step, make_error("OutputSchemaError", problem, "step_schema_error"))]
    done = {**_identify(step), "attempt": step.attempt, "output": output}
    return [Draft(run.run_id, "StepCompleted", done)]


def _settle_session(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    session = run.sessions[owed[1]]
    assert session.finish is not None
    outcome, value, _ = session.finish
    if run.cancellation is None and any(
        call.effect in FAIL_CLOSED for call in session.open_calls.values()
    ):
        return _hold_session(run, owed, detail, now, library)
    drafts = close_calls(run, session, "its session ended before its outcome was recorded")
    if outcome == "succeeded":
        problem = check_output(session.step.plan, library.value(value))
        if problem is None:
            done = {"usage": dict(session.usage)}
            return [*drafts, Draft(run.run_id, "harness.session.completed", done, session.id)]
        error = make_error("OutputSchemaError", problem, "step_schema_error")
    else:
        error = value
    failed = {"error": error, "usage": dict(session.usage)}
    return [*drafts, Draft(run.run_id, "harness.session.failed", failed, session.id)]


def _close_session(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    session = run.sessions[owed[1]]
    failed = Draft(
        run.run_id,
        "harness.session.failed",
        {"error": detail, "usage": dict(session.usage)},
        session.id,
    )
    return [*close_calls(run, session, detail["message"]), failed]


def _hold_session(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
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
        if call.effect in FAIL_CLOSED
    ]


def _interrupt(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Says that a run can't move on: an effect is unknown and nothing else is left to do."""
    can_move = any(not session.is_held for session in run.sessions.values())
    if len(run.owed) > 1 or can_move or run.backoffs:
        return []
    session = next(s for s in run.sessions.values() if s.is_held)
    call = next(c for c in session.unknown_calls if c.effect in FAIL_CLOSED)
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


def _finish_step(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    session, failed = detail
    step = session.step
    if failed is not None:
        error = {"retriable": True, "causeCode": "step_failed", **failed}
        return [_fail(run, step, error)]
    _, value, metadata = session.finish
    payload = {**_identify(step), "attempt": step.attempt, **write_field("output", value)}
    if metadata:
        payload["metadata"] = metadata
    return [Draft(run.run_id, "StepCompleted", payload)]


def _plan_retry(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    step = run.steps[owed[1]]
    following = step.attempt + 1
    due_at = step.failed_at + step.plan.retry.delay_before(following) * 1_000
    payload = {"stepPath": step.path, "nextAttempt": following, "dueAt": due_at}
    return [Draft(run.run_id, "StepRetryScheduled", payload)]


_HANDLERS: dict[str, Handler] = {
    "start_run": _start_run,
    "start": _start_step,
    "skip": _skip_step,
    "open_session": _open_session,
    "decide": _decide,
    "open_group": _open_group,
    "branch": _start_branch,
    "end_scope": _end_scope,
    "end_group": _end_group,
    "finish_group": _finish_group,
    "settle_session": _settle_session,
    "close_session": _close_session,
    "hold_session": _hold_session,
    "interrupt": _interrupt,
    "finish_step": _finish_step,
    "plan_retry": _plan_retry,
}
