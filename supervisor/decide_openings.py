"""How runs begin: admitted, joined, opened again, or forked from another one. Pure."""

from typing import Any

from planaria.protocol.errors import (
    CapabilityDriftError,
    ConflictError,
    InputSchemaError,
    PlanariaError,
    RunInputMismatchError,
    RunNotFoundError,
)
from planaria.protocol.events import Draft
from planaria.protocol.schemas import validate_value

from .decision import Decision
from .drafts import admit_run
from .drift import describe_changes, find_drift
from .forking import has_failed_step
from .kernel_messages import AdmitRun, Answer, ForkRun, RetryRun
from .run_state import Library, Now, RunState
from .system_state import SystemState


def decide_admission(system: SystemState, message: AdmitRun, library: Library) -> Decision:
    run = system.runs.get(message.run_id)
    if run is not None:
        return _attach(run, message, library)
    is_planned = "planner" in message.lock
    plan = library.plan(message.version_id, message.lock_ref)
    schema = plan.document.get("input", {}).get("schema")
    value = message.input.get("input")
    if schema and "input" in message.input:
        findings = validate_value(schema, value)
        if findings:
            reason = "; ".join(f"{f.path}: {f.message}" for f in findings[:5])
            error = InputSchemaError(name=message.workflow_id, reason=reason)
            return Decision([], [Answer(message.client, error=error)])
    drafts = admit_run(
        message.run_id,
        workflow_id=message.workflow_id,
        definition_hash=message.definition_hash,
        version_id=None if is_planned else message.version_id,
        lock_ref=message.lock_ref,
        trigger=message.trigger,
        input=message.input,
        input_hash=message.input_hash,
        source=message.source,
        library=library,
        details=message.options,
    )
    result = {"runId": message.run_id, "attached": False}
    return Decision(drafts, [Answer(message.client, result=result)])


def _attach(run: RunState, message: AdmitRun, library: Library) -> Decision:
    """Same id, same input, same definition: the caller joins the run. Otherwise nothing happens."""
    if run.admission.get("workflowId") != message.workflow_id:
        mismatch = RunInputMismatchError(run_id=run.run_id, what="workflow")
        return Decision([], [Answer(message.client, error=mismatch)])
    if run.admission.get("inputHash") != message.input_hash:
        mismatch = RunInputMismatchError(run_id=run.run_id, what="input")
        return Decision([], [Answer(message.client, error=mismatch)])
    assert run.plan is not None
    changes = find_drift(run, message, library)
    if changes:
        drift = CapabilityDriftError(
            run_id=run.run_id, changes=describe_changes(changes), fields_changed=changes
        )
        return Decision([], [Answer(message.client, error=drift)])
    result = {
        "runId": run.run_id,
        "attached": True,
        "isEnded": run.is_ended,
        "modulesRef": run.admission["source"].get("modulesRef"),
    }
    return Decision([], [Answer(message.client, result=result)])


def decide_retry(system: SystemState, message: RetryRun, now: Now) -> Decision:
    """Opens a run again: its failed step gets another attempt, and what follows its turn."""
    run = system.runs.get(message.run_id)
    if run is None:
        return _answer_error(message.client, RunNotFoundError(run_id=message.run_id))
    refusal = _why_not_retried(run)
    if refusal is not None:
        text = f"run {run.run_id!r} can't be retried: {refusal}"
        return _answer_error(message.client, ConflictError(message=text))
    payload: dict[str, Any] = {
        "by": message.by,
        "reason": message.reason,
        "fromSequence": run.sequence,
    }
    if message.source is not None:
        payload["source"] = message.source
    if run.admission.get("deadlineMs") is not None and run.is_started:
        payload["deadline"] = now.at + run.admission["deadlineMs"] * 1_000
    result = {"runId": run.run_id, "status": "running"}
    answer = Answer(message.client, result=result)
    return Decision([Draft(run.run_id, "RunReopened", payload)], [answer])


def _why_not_retried(run: RunState) -> str | None:
    if not run.is_ended:
        return f"it is {run.status}"
    if run.status == "completed":
        return "it has completed; 'planaria fork' makes another run of it"
    if run.plan is None:
        return "it ended before it had a version"
    if run.unknown_effects:
        call = next(iter(run.unknown_effects.values()))
        return (
            f"whether {call.tool_name!r} (class {call.effect}, idempotency key "
            f"{call.idempotency_key}) has happened is unknown, and a retry might do it again"
        )
    if not has_failed_step(run):
        return "no step of it has failed: its output doesn't fit. 'planaria fork' makes another run"
    return None


def decide_fork(system: SystemState, message: ForkRun, library: Library) -> Decision:
    admission = message.admission
    if admission.run_id in system.runs:
        text = f"there is a run {admission.run_id!r} already: choose another id for the fork"
        return _answer_error(admission.client, ConflictError(message=text))
    decision = decide_admission(system, admission, library)
    if not decision.drafts:
        return decision
    payload = {
        "fromRunId": message.from_run_id,
        "atSequence": message.at_sequence,
        "by": message.by,
        "changes": message.changes,
        "inheritedRef": message.inherited_ref,
    }
    drafts = [*decision.drafts, Draft(admission.run_id, "RunForked", payload)]
    return Decision(drafts, decision.actions)


def _answer_error(client: Any, error: PlanariaError) -> Decision:
    return Decision([], [Answer(client, error=error)])
