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
from planaria.protocol.payloads import write_field

from .context import evaluate, make_roots, unwrap_value
from .drafts import fail_attempt, identify_step, make_error
from .fold_groups import evaluate_items
from .outputs import check_output, check_run_output, scope_output, scope_output_path
from .owed_sessions import (
    close_session,
    finish_step,
    hold_session,
    interrupt,
    open_session,
    settle_session,
)
from .owed_sub_runs import answer_call, call_workflow, finish_call, request_sub_run
from .owed_waits import (
    abandon,
    finish_approval,
    finish_wait,
    request_approval,
    start_wait,
    take_signal,
)
from .plan import KERNEL_KINDS
from .planning import finish_plan, register_plan
from .run_state import (
    Error,
    Library,
    Now,
    Owed,
    RunState,
    ScopeState,
    StepState,
)

# What a paused run leaves undone; what runs already ends and is recorded.
_PAUSED = frozenset({"start_run", "start", "fix", "branch", "request_sub_run", "call_workflow"})
KEY_CHARS_MAX = 200  # an item key stands in every path below its branch
Handler = Callable[[RunState, Owed, Any, Now, Library], list[Draft]]


def advance(run: RunState, now: Now, library: Library) -> list[Draft]:
    """Returns the events of the first follow-up that can be done now; empty: nothing is owed."""
    for owed, detail in run.owed.items():
        if run.is_paused and owed[0] in _PAUSED and run.cancellation is None:
            continue
        drafts = _HANDLERS[owed[0]](run, owed, detail, now, library)
        if drafts:
            return drafts
    return []


def _start_run(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    assert run.plan is not None
    payload: dict[str, Any] = {
        "workflowVersionId": run.plan.version_id,
        "inputHash": run.admission["inputHash"],
    }
    if run.admission.get("deadlineMs") is not None:
        payload["deadline"] = now.at + run.admission["deadlineMs"] * 1_000
    return [Draft(run.run_id, "RunStarted", payload)]


def start_attempt(run: RunState, step: StepState, fix_attempt: int = 0) -> list[Draft]:
    """Returns the start of a step's next attempt; with a `fix_attempt`, a fixer's."""
    attempt = step.attempt + 1
    payload = {**identify_step(step), "uses": step.plan.kind, "attempt": attempt}
    if fix_attempt:
        payload["fixAttempt"] = fix_attempt
    if run.inherited is not None and run.inherited.step(step.path) is not None:
        payload["isInherited"] = True
    elif step.plan.kind not in KERNEL_KINDS:
        payload["sessionId"] = session_id(run.run_id, step.path, attempt)
    return [Draft(run.run_id, "StepAttemptStarted", payload)]


def _start_step(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    return start_attempt(run, run.steps[owed[1]])


def _start_fix(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    step = run.steps[owed[1]]
    return start_attempt(run, step, step.fix_attempt + 1)


def _inherit_step(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    """Completes a step of a fork with what the other run has recorded of it."""
    step = run.steps[owed[1]]
    found = run.inherited.step(step.path) if run.inherited is not None else None
    assert found is not None
    payload = {**identify_step(step), "attempt": step.attempt}
    if "chosen" in found:
        payload["chosen"] = found["chosen"]
    else:
        payload.update(write_field("output", unwrap_value(found["output"])))
        payload["metadata"] = {"isInherited": True}
    return [Draft(run.run_id, "StepCompleted", payload)]


def _skip_step(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    step = run.steps[owed[1]]
    payload = {"stepPath": owed[1], "stepId": step.plan.id, "because": detail}
    return [Draft(run.run_id, "StepSkipped", payload)]


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
        return [fail_attempt(run, step, make_error("ExpressionError", message, "step_failed"))]
    payload = {**identify_step(step), "attempt": step.attempt, "chosen": chosen}
    return [Draft(run.run_id, "StepCompleted", payload)]


def _holds(value: Json) -> bool:
    """Says whether a condition holds: null, false, 0 and what is empty don't."""
    return bool(value)


def _open_group(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    step = run.steps[owed[1]]
    try:
        keys = _make_keys(run, step, library)
    except (ExpressionError, ValueError) as error:
        message = f"parallel {step.plan.id!r}: {error}"
        return [fail_attempt(run, step, make_error(type(error).__name__, message, "step_failed"))]
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
        return _end_root(run, library)
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


def _end_root(run: RunState, library: Library) -> list[Draft]:
    """Ends the run, or its planning."""
    if run.sessions or run.awaits_sub_runs:
        return []
    if run.cancellation is not None:
        request = {"requestId": run.cancellation["requestId"]}
        if run.cancellation.get("reason") == "timeout":
            assert run.error is not None
            return [Draft(run.run_id, "RunFailed", {"error": run.error})]
        return [Draft(run.run_id, "RunCancelled", request)]
    assert run.plan is not None
    if run.root is None:
        return finish_plan(run)
    if run.root.failure is not None:
        error, path = run.root.failure
        payload = {"error": error, "failedStepPath": error.get("failedStepPath", path)}
        return [Draft(run.run_id, "RunFailed", payload)]
    output = scope_output(run.root)
    if run.is_planning:
        return register_plan(run, output, library)
    output_path = scope_output_path(run.root)
    problem = check_run_output(run.plan, library.value(output))
    if problem is not None:
        error = make_error("OutputSchemaError", problem, "step_schema_error")
        return [Draft(run.run_id, "RunFailed", {"error": error, "failedStepPath": output_path})]
    done = {**write_field("output", output), "terminalStepPath": output_path}
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
        return [fail_attempt(run, step, error)]
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
        return [
            fail_attempt(run, step, make_error("OutputSchemaError", problem, "step_schema_error"))
        ]
    done = {**identify_step(step), "attempt": step.attempt, "output": output}
    return [Draft(run.run_id, "StepCompleted", done)]


def _plan_retry(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    step = run.steps[owed[1]]
    following = step.attempt + 1
    due_at = step.failed_at + step.plan.retry.delay_before(following) * 1_000
    payload = {"stepPath": step.path, "nextAttempt": following, "dueAt": due_at}
    return [Draft(run.run_id, "StepRetryScheduled", payload)]


_HANDLERS: dict[str, Handler] = {
    "start_run": _start_run,
    "start": _start_step,
    "fix": _start_fix,
    "inherit": _inherit_step,
    "skip": _skip_step,
    "open_session": open_session,
    "decide": _decide,
    "open_group": _open_group,
    "branch": _start_branch,
    "end_scope": _end_scope,
    "end_group": _end_group,
    "finish_group": _finish_group,
    "settle_session": settle_session,
    "close_session": close_session,
    "hold_session": hold_session,
    "interrupt": interrupt,
    "finish_step": finish_step,
    "plan_retry": _plan_retry,
    "request_approval": request_approval,
    "finish_approval": finish_approval,
    "start_wait": start_wait,
    "take_signal": take_signal,
    "finish_wait": finish_wait,
    "abandon": abandon,
    "call_workflow": call_workflow,
    "finish_call": finish_call,
    "request_sub_run": request_sub_run,
    "answer_call": answer_call,
}
