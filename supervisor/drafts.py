"""Events that several follow-ups make: how a step is named, how it fails, what an error is."""

from typing import Any

from planaria.protocol.errors import shorten
from planaria.protocol.events import Draft

from .run_state import Error, RunState, StepState


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
