"""Forking: what a new run takes over of another one at a checkpoint. Pure."""

import copy
from typing import Any

from planaria.protocol.codec import hash_jcs
from planaria.protocol.effects import strip_attempts
from planaria.protocol.errors import ConflictError, UsageError

from .context import wrap_value
from .fold_groups import completed_branches
from .inheritance import Inheritance
from .run_state import COMPLETED, SETTLED, RunState, ScopeState


def inherit(run: RunState) -> Inheritance:
    """Returns what a fork inherits of a run, folded up to the checkpoint.

    Raises:
        ConflictError: an effect is in flight there: whether it happened stands behind it.
    """
    assert run.plan is not None
    _refuse_in_flight(run)
    steps: dict[str, dict[str, Any]] = {}
    branches: dict[str, dict[str, Any]] = {}
    if run.root is not None and not run.is_planning:
        _collect(run.root, steps, branches)
    performed = {
        path: {key: wrap_value(value) for key, value in results.items()}
        for path, results in run.performed.items()
    }
    earlier = run.inherited or Inheritance()
    return Inheritance(
        {**earlier.steps, **steps},
        {**earlier.branches, **branches},
        performed,
        (*earlier.origins, (run.run_id, run.plan.version_id)),
    )


def _refuse_in_flight(run: RunState) -> None:
    calls = [call for session in run.sessions.values() for call in session.open_calls.values()]
    calls += run.unknown_effects.values()
    names = [call.tool_name for call in calls if call.effect != "read"]
    names += [f"sub-run {sub.id}" for sub in run.sub_runs.values()]
    if names:
        raise ConflictError(
            message=f"run {run.run_id!r} can't be forked at sequence {run.sequence}: "
            f"{', '.join(sorted(names)[:5])} is in flight there, and a fork would do it again. "
            "Fork at an earlier sequence, or at one behind its outcome"
        )


def _collect(
    scope: ScopeState, steps: dict[str, dict[str, Any]], branches: dict[str, dict[str, Any]]
) -> None:
    for step in scope.steps:
        prefix = f"{scope.path}." if scope.path else ""
        for index, output in enumerate(step.outputs):
            visit = f".visit[{index}]" if step.plan.multi else ""
            path = strip_attempts(f"{prefix}{step.plan.id}{visit}")
            if step.plan.kind == "decision":
                assert isinstance(output, dict)
                steps[path] = {"chosen": output["chosen"]}
            else:
                steps[path] = {"output": wrap_value(output)}
        if step.status == COMPLETED:
            continue
        kept = dict(step.kept)
        if step.group is not None:
            kept.update(completed_branches(step.group))
            for branch in step.group.live.values():
                _collect(branch, steps, branches)
        if kept:
            done = {key: wrap_value(value) for key, (_, value) in kept.items()}
            branches[strip_attempts(step.path)] = done


def has_failed_step(run: RunState) -> bool:
    """Says whether a retry of the run would find anything to do again."""
    return run.root is None or any(step.status not in SETTLED for step in run.root.steps)


def change_lock(lock: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns a lock with another model in a slot, other instructions, or another output schema.

    Raises:
        UsageError: there is no such slot, or nothing that has instructions.
    """
    changed: dict[str, Any] = copy.deepcopy(lock)
    for slot, model in (changes.get("models") or {}).items():
        if slot not in changed["models"]:
            listed = ", ".join(sorted(changed["models"])) or "none"
            raise UsageError(message=f"there is no model slot {slot!r}; there are: {listed}")
        described = {"kind": "name", "model": str(model)}
        changed["models"][slot] = {"model": str(model), "descriptorHash": hash_jcs(described)}
    document = changed.get("lwir", changed.get("definition"))
    assert isinstance(document, dict)
    if "instructions" in changes:
        agents = [changed[role] for role in ("planner", "orchestrator") if role in changed]
        agents += _find_agents(document.get("steps", []))
        if not agents:
            raise UsageError(message="nothing in this workflow has instructions to be changed")
        for agent in agents:
            agent["instructions"] = changes["instructions"]
    if "outputSchema" in changes:
        document.setdefault("output", {})["schema"] = changes["outputSchema"]
    return changed


def _find_agents(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the `with` of every `ai.generate` step, at every level."""
    found = []
    for step in steps:
        if step["uses"] == "ai.generate":
            found.append(step["with"])
        found.extend(_find_agents(step.get("steps", [])))
    return found
