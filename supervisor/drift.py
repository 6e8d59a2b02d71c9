"""Drift: what a definition in hand would do otherwise than the one a run was admitted with. Pure.

The manifests of both are made from their locks and compared field by field, each role and step
path with itself only. Nothing of the user's is loaded, and nothing is recorded.
"""

from typing import Any

from planaria.protocol.locks import make_planned_lock
from planaria.protocol.manifests import compare_manifests

from .kernel_messages import AdmitRun
from .plan import Plan, ScopePlan, make_plan
from .run_state import Library, RunState

Change = dict[str, Any]  # {manifest, field, old, new}
CHANGES_SHOWN = 20
Manifests = dict[str, dict[str, Any]]


def find_drift(run: RunState, message: AdmitRun, library: Library) -> list[Change]:
    """Returns every field in which the caller's definition differs from the run's."""
    old_hash = run.admission["workflowDefinitionHash"]
    changes: list[Change] = []
    if old_hash != message.definition_hash:
        changes.append(_change("", "workflowDefinitionHash", old_hash, message.definition_hash))
    old, new = _describe_run(run, library), _describe_caller(run, message, library)
    for name in sorted(old.keys() & new.keys()):
        for field, before, after in compare_manifests(old[name], new[name]):
            changes.append(_change(name, field, before, after))
    for name in sorted(old.keys() ^ new.keys()):
        before, after = ("there", None) if name in old else (None, "there")
        changes.append(_change(name, "stepPath", before, after))
    if not changes:
        changes.extend(_compare_versions(run, message))
    return changes


def describe_changes(changes: list[Change]) -> str:
    """Returns the changes as a text: each field with its old and its new value."""
    shown = [
        f"{c['manifest']}: {c['field']}: {c['old']} → {c['new']}".removeprefix(": ")
        for c in changes[:CHANGES_SHOWN]
    ]
    left = len(changes) - len(shown)
    return "; ".join(shown) + (f"; and {left} more" if left > 0 else "")


def _change(manifest: str, field: str, old: Any, new: Any) -> Change:
    return {"manifest": manifest, "field": field, "old": old, "new": new}


def _describe_run(run: RunState, library: Library) -> Manifests:
    assert run.plan is not None
    described = _describe_plan(run.plan)
    definition = run.admission.get("definitionRef")
    if definition is not None and not run.is_planning:
        described.update(_describe_plan(library.plan(definition["sha256"], definition)))
    return described


def _describe_caller(run: RunState, message: AdmitRun, library: Library) -> Manifests:
    assert run.plan is not None
    if "planner" not in message.lock:
        return _describe_plan(library.plan(message.version_id, message.lock_ref))
    planned = library.plan(message.lock_ref["sha256"], message.lock_ref)
    described = _describe_plan(planned)
    if not run.is_planning and "lwir" in run.plan.lock:
        try:
            made = make_planned_lock(planned.lock, run.plan.document)
        except KeyError:
            return described  # a tool or slot is gone: the planner's manifest says so
        described.update(_describe_plan(make_plan("", made)))
    return described


def _describe_plan(plan: Plan) -> Manifests:
    """Returns the fields that the sessions of each role and step would have, by their place."""
    found: Manifests = {}
    _collect(plan.root, "", found)
    return found


def _collect(scope: ScopePlan, prefix: str, found: Manifests) -> None:
    for step in scope.steps:
        path = f"{prefix}{step.id}"
        if step.role == "worker":
            found[f"worker {path!r}"] = step.manifest
        else:
            found[step.role] = step.manifest
        if step.fixer is not None:
            found[f"fixer {path!r}"] = step.fixer_manifest
        if step.branch is not None:
            _collect(step.branch, f"{path}[].", found)


def _compare_versions(run: RunState, message: AdmitRun) -> list[Change]:
    """Returns the change of what stands in no manifest by itself, such as a tool nobody uses."""
    definition = run.admission.get("definitionRef")
    if definition is not None:
        old, new = definition["sha256"], message.lock_ref["sha256"]
        return [_change("planner", "lock", old, new)] if old != new else []
    assert run.plan is not None
    old, new = run.plan.version_id, message.version_id
    return [_change("", "workflowVersionId", old, new)] if old != new else []
