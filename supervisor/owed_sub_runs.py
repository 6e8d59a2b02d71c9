"""What sub-runs owe: their start, in the commit that asks for them, and their outcome's way back.

A sub-run is a run like any other, with its own log. It is asked for by a `workflow.call` step or
by a call of an orchestrator; its id follows from that place, so whoever asks again asks for the
same run.
"""

from typing import Any

from planaria.protocol.blobs import blob_ref
from planaria.protocol.codec import Json, canonical_bytes, hash_bytes
from planaria.protocol.errors import PlanariaError
from planaria.protocol.events import Draft
from planaria.protocol.expressions import ExpressionError
from planaria.protocol.ids import sub_run_id
from planaria.protocol.limits import SUB_RUN_DEPTH_MAX
from planaria.protocol.payloads import read_field, write_field
from planaria.protocol.schemas import validate_value
from planaria.protocol.usage import copy_usage

from .budgets import remaining
from .context import evaluate
from .drafts import admit_run, fail_attempt, identify_step, make_error
from .outputs import check_output
from .plan import SubWorkflow
from .run_state import (
    CallState,
    Error,
    Library,
    Now,
    Owed,
    RunState,
    SessionState,
    StepState,
    SubRunState,
)
from .system_state import SystemState

PARENT_STOPPED = "its parent was stopped"


class RefusedError(PlanariaError):
    """A sub-run that can't be started; the text says why."""


def call_workflow(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    """Starts the sub-run of a `workflow.call` step, or fails its attempt."""
    step = run.steps[owed[1]]
    try:
        return _start_for_step(run, step, library)
    except (RefusedError, ExpressionError) as error:
        text = f"workflow.call {step.plan.id!r}: {error}"
        return [fail_attempt(run, step, make_error("SubRunRefused", text, "step_failed"))]


def _start_for_step(run: RunState, step: StepState, library: Library) -> list[Draft]:
    arguments = step.plan.document["with"]
    return _start(
        run,
        sub_run_id(run.run_id, step.path, step.attempt),
        arguments,
        evaluate(run, step, step.plan.templates["input"], library),
        {"stepPath": step.path},
        library,
        is_awaited=arguments.get("wait", True),
    )


def request_sub_run(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    """Starts the sub-run of an orchestrator's call, once one more may run."""
    if run.cancellation is not None:
        return []  # the call ends with its session, which is being stopped
    session = run.sessions[owed[1]]
    call = session.open_calls[owed[2]]
    most = session.step.plan.document["with"]["maxConcurrentSubRuns"]
    if sum(1 for sub in run.sub_runs.values() if sub.session_id == session.id) >= most:
        return []
    try:
        return _start_for_call(run, session, call, library)
    except RefusedError as error:
        refusal = make_error("SubRunRefused", str(error), "step_failed")
        result = {"subRunId": call.sub_run_id, "status": "refused", "error": refusal}
        payload = {"callId": call.call_id, "result": result}
        return [Draft(run.run_id, "harness.tool_call.succeeded", payload, session.id)]


def _start_for_call(
    run: RunState, session: SessionState, call: CallState, library: Library
) -> list[Draft]:
    args = library.value(call.args)
    assert call.sub_run_id is not None
    if not isinstance(args, dict) or args.get("subRunId") != call.sub_run_id:
        raise RefusedError(message="the call doesn't name the run that it starts")
    asked = {"workflow": args.get("workflowId")}
    if call.tool_name == "run_workflow":
        asked = {"workflowVersionId": args.get("workflowVersionId")}
    return _start(
        run,
        call.sub_run_id,
        asked,
        args.get("input"),
        {"sessionId": session.id, "callId": call.call_id},
        library,
        is_plan_only=call.tool_name == "plan_workflow",
    )


def find_sub_runs(system: SystemState, run: RunState, library: Library) -> list[Draft]:
    """Returns what a recovered run's open sub-runs lack: their outcome's way back, or their start.

    Request and admission are one commit, and so are end and settlement: nothing lacks either,
    unless the log was cut between them.
    """
    drafts: list[Draft] = []
    for sub_run in list(run.sub_runs.values()):
        if sub_run.id in system.runs:
            continue
        ended = library.run(sub_run.id)
        if ended is not None:
            drafts.extend(settle_in_parent(system, ended, library))
        elif sub_run.step_path is not None and sub_run.step_path in run.steps:
            drafts.extend(_start_for_step(run, run.steps[sub_run.step_path], library)[1:])
        elif sub_run.session_id in run.sessions:
            session = run.sessions[sub_run.session_id or ""]
            call = session.open_calls[sub_run.call_id or ""]
            drafts.extend(_start_for_call(run, session, call, library)[1:])
    return drafts


def _start(
    run: RunState,
    new_run_id: str,
    asked: dict[str, Any],
    value: Json,
    place: dict[str, Any],
    library: Library,
    *,
    is_awaited: bool = True,
    is_plan_only: bool = False,
) -> list[Draft]:
    assert run.plan is not None
    workflow, lock_ref = _find(run, asked)
    own_id = run.admission["workflowId"]
    call_path = [*run.admission.get("callPath", ()), own_id]
    if workflow.id in call_path:
        shown = " → ".join([*call_path, workflow.id])
        raise RefusedError(message=f"workflow {workflow.id!r} would call itself: {shown}")
    if len(call_path) >= SUB_RUN_DEPTH_MAX:
        raise RefusedError(message=f"calls are nested deeper than {SUB_RUN_DEPTH_MAX}")
    if not is_plan_only:
        _check_input(workflow, value)
    source = dict(run.admission["source"])
    source["within"] = [*source.get("within", ()), workflow.id]
    data = canonical_bytes(value)
    parent: dict[str, Any] = {"parentRunId": run.run_id, "callPath": call_path}
    for name, key in (("parentCallId", "callId"), ("parentStepPath", "stepPath")):
        if key in place:
            parent[name] = place[key]
    if is_plan_only:
        parent["planOnly"] = True
    if run.budget is not None:
        parent["budget"] = remaining(run.budget, run.spent)
    if "onInterrupted" in run.admission:
        parent["onInterrupted"] = run.admission["onInterrupted"]
    requested: dict[str, Any] = {"subRunId": new_run_id, "workflowId": workflow.id, **place}
    requested["wait"] = is_awaited
    if is_plan_only:
        requested["planOnly"] = True
    blobs: tuple[bytes, ...] = ()
    is_planned = workflow.is_planned and lock_ref is None
    if lock_ref is None:
        lock_ref, blobs = blob_ref(workflow.lock_bytes), (workflow.lock_bytes,)
        library.keep(workflow.lock_bytes)
    version_id = None if is_planned else asked.get("workflowVersionId") or workflow.version_id
    admitted = admit_run(
        new_run_id,
        workflow_id=workflow.id,
        definition_hash=workflow.definition_hash,
        version_id=version_id,
        lock_ref=lock_ref,
        trigger="sub_run",
        input={"input": value},
        input_hash=hash_bytes(data),
        source=source,
        library=library,
        details=parent,
        blobs=blobs,
    )
    return [Draft(run.run_id, "SubRunRequested", requested), *admitted]


def _find(run: RunState, asked: dict[str, Any]) -> tuple[SubWorkflow, dict[str, Any] | None]:
    """Returns the workflow, and the lock's reference if a planner has made that version."""
    assert run.plan is not None
    workflows, version_id = run.plan.workflows, asked.get("workflowVersionId")
    if "workflowVersionId" not in asked:
        found = workflows.get(str(asked["workflow"]))
        if found is None:
            listed = ", ".join(sorted(workflows)) or "none"
            name = str(asked["workflow"])[:80]
            raise RefusedError(message=f"there is no workflow {name!r} here; there are: {listed}")
        return found, None
    if isinstance(version_id, str) and version_id in run.planned:
        workflow_id, lock_ref = run.planned[version_id]
        return workflows[workflow_id], lock_ref
    for workflow in workflows.values():
        if workflow.version_id == version_id and not workflow.is_planned:
            return workflow, None
    raise RefusedError(
        message=f"no workflow here has the version {str(version_id)[:80]!r}: plan_workflow gives "
        "the ids of versions"
    )


def _check_input(workflow: SubWorkflow, value: Json) -> None:
    schema = workflow.input_schema
    findings = validate_value(schema, value) if schema else []
    if findings:
        reason = "; ".join(f"{f.path}: {f.message}" for f in findings[:5])
        raise RefusedError(message=f"the input doesn't fit {workflow.id!r}: {reason}")


def finish_call(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Ends a `workflow.call` step whose sub-run has ended, or was only to be started."""
    step = run.steps[owed[1]]
    status = detail["status"]
    if status == "started":
        output: Any = {"output": {"subRunId": detail["subRunId"]}}
    elif status == "completed":
        output = write_field("output", read_field(detail, "output"))
    else:
        return [fail_attempt(run, step, _describe_failure(run, step, detail))]
    problem = check_output(step.plan, library.value(read_field(output, "output")))
    if problem is not None:
        error = make_error("OutputSchemaError", problem, "step_schema_error")
        return [fail_attempt(run, step, error)]
    metadata = {"subRunId": detail["subRunId"]}
    payload = {**identify_step(step), "attempt": step.attempt, **output, "metadata": metadata}
    return [Draft(run.run_id, "StepCompleted", payload)]


def _describe_failure(run: RunState, step: StepState, settled: dict[str, Any]) -> Error:
    """Returns the typed error of a sub-run that didn't complete, as its step's."""
    if run.cancellation is not None:
        assert run.error is not None
        return run.error
    limit = step.plan.timeout_ms
    if limit is not None and settled["at"] >= step.attempt_started_at + limit * 1_000:
        text = f"step {step.plan.id!r} ran longer than {limit} ms"
        return make_error("StepTimeout", text, "step_timeout", retriable=True)
    error = settled.get("error") or {}
    text = f"sub-run {settled['subRunId']} {settled['status']}"
    if error:
        text += f" ({error.get('causeCode')}): {error.get('message')}"
    if error.get("causeCode") == "budget_exceeded":  # it had what is left of this run's own budget
        return make_error("BudgetExceeded", text, "budget_exceeded")
    return make_error("SubRunFailed", text, "step_failed", retriable=True)


def answer_call(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Gives an orchestrator's call its outcome: that of the sub-run that it has started."""
    result: dict[str, Any] = {"subRunId": detail["subRunId"], "status": detail["status"]}
    if detail["status"] == "completed":
        output = library.value(read_field(detail, "output"))
        if detail["isPlanOnly"]:
            assert isinstance(output, dict)
            result = {"workflowVersionId": output["workflowVersionId"]}
        else:
            result["output"] = output
    else:
        result["error"] = detail.get("error") or {"message": "it was cancelled"}
    payload = {"callId": owed[2], "result": result}
    return [Draft(run.run_id, "harness.tool_call.succeeded", payload, owed[1])]


def settle_in_parent(system: SystemState, run: RunState, library: Library) -> list[Draft]:
    """Returns what the end of a run means to the one that has started it."""
    parent = system.runs.get(run.admission.get("parentRunId", ""))
    if parent is None or parent.is_ended or run.run_id not in parent.sub_runs:
        return []
    payload: dict[str, Any] = {"subRunId": run.run_id, "status": run.status}
    if run.status == "completed":
        payload.update(write_field("output", run.output))
    elif run.error is not None:
        payload["error"] = run.error
    payload["usage"] = copy_usage(run.usage)
    if parent.budget is not None:  # with what was reserved for calls that were lost
        spent = run.spent
        amount = {"calls": spent.calls, "tokens": spent.tokens, "costUsd": spent.cost_usd}
        payload["spent"] = amount
    return [Draft(parent.run_id, "SubRunSettled", payload)]


def cancel_sub_runs(system: SystemState, sub_runs: list[SubRunState], why: str) -> list[Draft]:
    """Returns the cancellation of those sub-runs that are open and not being cancelled."""
    drafts = []
    for sub_run in sub_runs:
        run = system.runs.get(sub_run.id)
        if run is not None and not run.is_ended and run.cancellation is None:
            payload = {"requestId": f"parent_{sub_run.id}", "reason": why}
            drafts.append(Draft(sub_run.id, "CancellationRequested", payload))
    return drafts
