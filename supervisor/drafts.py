"""Events that several follow-ups make: how a step is named, how it fails, what an error is."""

from typing import Any

from planaria.protocol.errors import shorten
from planaria.protocol.events import Draft

from .run_state import Error, Library, RunState, StepState


def make_error(name: str, message: str, cause: str, *, retriable: bool = False) -> Error:
    """Returns the error of a step or run as it stands in events."""
    text = shorten(message)
    return {"name": name, "message": text, "causeCode": cause, "retriable": retriable}


def identify_step(step: StepState) -> dict[str, Any]:
    """Returns what names a visit of a step in the payload of its events."""
    payload: dict[str, Any] = {
        "stepPath": step.path,
        "stepId": step.plan.id,
        "visitIndex": step.visit_index,
    }
    if step.scope.path:
        payload["branchPath"] = step.scope.path
    return payload


def fail_attempt(run: RunState, step: StepState, error: Error) -> Draft:
    """Returns the failure of a step's running attempt."""
    payload = {**identify_step(step), "attempt": step.attempt, "error": error}
    return Draft(run.run_id, "StepFailed", payload)


def admit_run(
    run_id: str,
    *,
    workflow_id: str,
    definition_hash: str,
    version_id: str | None,
    lock_ref: dict[str, Any],
    trigger: str,
    input: dict[str, Any],
    input_hash: str,
    source: dict[str, Any],
    library: Library,
    details: dict[str, Any],
    blobs: tuple[bytes, ...] = (),
) -> list[Draft]:
    """Returns the first events of a run; without a `version_id` its steps are still to be planned.

    `input` is {"input": value} or {"inputRef": reference}, `details` further fields of its
    admission; `blobs` have to be stored before.
    """
    admitted = {
        "workflowId": workflow_id,
        "workflowDefinitionHash": definition_hash,
        "trigger": trigger,
        **input,
        "inputHash": input_hash,
        "source": source,
        **details,
    }
    if version_id is None:
        admitted["definitionRef"] = lock_ref
        return [Draft(run_id, "RunAdmitted", admitted, blobs=blobs)]
    version = register_version(run_id, version_id, lock_ref, library)
    return [Draft(run_id, "RunAdmitted", admitted, blobs=blobs), version]


def register_version(
    run_id: str, version_id: str, lock_ref: dict[str, Any], library: Library
) -> Draft:
    """Returns the registration of the version that a run executes."""
    payload = {
        "workflowVersionId": version_id,
        "lwirHash": library.plan(version_id, lock_ref).lwir_hash,
        "lockRef": lock_ref,
        "lockHash": lock_ref["sha256"],
    }
    return Draft(run_id, "WorkflowVersionRegistered", payload)
