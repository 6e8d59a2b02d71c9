"""Planning: how a planner's draft becomes the version that a run executes, once and for all."""

from typing import Any

from planaria.protocol.blobs import blob_ref
from planaria.protocol.codec import Json, canonical_bytes
from planaria.protocol.events import Draft
from planaria.protocol.locks import check_draft, make_planned_lock, make_version_id

from .drafts import register_version
from .plan import Plan
from .run_state import Library, RunState, Value

FINDINGS_SHOWN = 5


def describe_draft_findings(plan: Plan, document: Json) -> str | None:
    """Returns what is wrong with a draft, as a sentence, or None.

    The planner's process has asked this already; its word isn't taken for it.
    """
    findings = check_draft(plan.lock, document)
    if not findings:
        return None
    listed = "; ".join(f"{f.code} at {f.path}: {f.message}" for f in findings[:FINDINGS_SHOWN])
    return f"the planner's last draft has {len(findings)} finding(s): {listed}"


def register_plan(run: RunState, output: Value, library: Library) -> list[Draft]:
    """Registers the version that the draft makes; from here on the run never plans again."""
    assert run.plan is not None
    document = library.value(output)
    assert isinstance(document, dict), "a draft is checked when its session ends"
    lock = make_planned_lock(run.plan.lock, document)
    data = canonical_bytes(lock)
    library.keep(data)
    registered = register_version(run.run_id, make_version_id(lock), blob_ref(data), library)
    return [Draft(run.run_id, registered.type, registered.payload, blobs=(data,))]


def finish_plan(run: RunState) -> list[Draft]:
    """Ends a run that was only to make a version: its output says which."""
    assert run.plan is not None
    output: dict[str, Any] = {"workflowVersionId": run.plan.version_id, "lockRef": run.lock_ref}
    return [Draft(run.run_id, "RunCompleted", {"output": output})]
