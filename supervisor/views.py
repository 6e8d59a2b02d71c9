"""Views: what a run or process looks like to people and programs, as JSON. Pure."""

from collections.abc import Callable
from typing import Any

from planaria.protocol.events import Event
from planaria.protocol.moments import format_moment
from planaria.protocol.payloads import write_field
from planaria.protocol.usage import Usage, copy_usage, sum_models

from .blocking import (
    describe_approval,
    describe_effect,
    describe_wait,
    find_blocks,
    is_interrupted,
)
from .explaining import explain
from .run_rows import RunRow
from .run_state import (
    GroupState,
    RunState,
    ScopeState,
    StepState,
    SubRunState,
)
from .system_state import SystemState

STEPS_SHOWN_MAX = 2_000


Cost = Callable[[Usage], float | None]  # in USD; None: a model has no known price


def describe_outcome(run: RunState, cost: Cost | None = None) -> dict[str, Any]:
    """Returns how a run stands: status, output or error, usage; what `wait` answers.

    `costUsd` is null where a price isn't known, and missing without `cost`.
    """
    outcome: dict[str, Any] = {
        "runId": run.run_id,
        "status": run.status,
        "usage": sum_models(run.usage),
        "usageByModel": copy_usage(run.usage),
        "workflowId": run.admission.get("workflowId"),
    }
    if cost is not None and run.usage:
        outcome["costUsd"] = cost(run.usage)
    if run.status == "completed":
        outcome.update(write_field("output", run.output))
    elif run.status in ("failed", "cancelled"):
        outcome["error"] = run.error
        outcome["failedStepPath"] = run.failed_step_path
    elif run.status == "interrupted":
        outcome["interrupted"] = [describe_effect(call) for call in run.unknown_effects.values()]
    return outcome


def describe_run(
    run: RunState, system: SystemState | None = None, cost: Cost | None = None
) -> dict[str, Any]:
    """Returns a run with its steps as a tree; with the processes that serve it, if it is open."""
    runs = system.runs if system is not None else {}
    blocks = find_blocks(runs, run)
    shown: dict[str, Any] = {
        **describe_outcome(run, cost),
        "versionId": run.plan.version_id if run.plan else None,
        "definitionHash": run.admission.get("workflowDefinitionHash"),
        "inputHash": run.admission.get("inputHash"),
        "admittedAt": run.admitted_at,
        "endedAt": run.ended_at or None,
        "deadline": run.deadline,
        "cancellationRequested": run.cancellation is not None,
        "source": run.admission.get("source"),
        "events": run.sequence,
        "waitsFor": explain(runs, run),
        "unknownEffects": [describe_effect(call) for call in run.unknown_effects.values()],
        "approvals": [describe_approval(run, approval) for approval in run.approvals.values()],
        "waits": [describe_wait(wait) for wait in run.waits.values()],
        "isPaused": run.is_paused,
        "isBlocked": blocks is not None,
        "isInterrupted": is_interrupted(blocks),
        "isPlanning": run.is_planning,
        "steps": [],
    }
    names = "parentRunId parentStepPath parentCallId outerLoopId cycleNumber budget"
    shown.update({n: run.admission[n] for n in names.split() if n in run.admission})
    if run.planning_usage:
        shown["planningUsage"] = copy_usage(run.planning_usage)
    if run.inherited is not None:
        shown["forkedFrom"] = run.forked_from
    if run.sub_runs:
        shown["subRuns"] = [_describe_sub_run(sub_run, system) for sub_run in run.sub_runs.values()]
    if run.root is not None:
        left = [STEPS_SHOWN_MAX]
        shown["steps"] = _describe_scope(run.root, left, system)
        shown["stepsLeftOut"] = max(0, -left[0])
    return shown


def _describe_sub_run(sub_run: SubRunState, system: SystemState | None) -> dict[str, Any]:
    run = system.runs.get(sub_run.id) if system is not None else None
    described: dict[str, Any] = {
        "subRunId": sub_run.id,
        "workflowId": sub_run.workflow_id,
        "status": run.status if run is not None else "open",
    }
    if sub_run.step_path is not None:
        described["stepPath"] = sub_run.step_path
    return described


def _describe_scope(
    scope: ScopeState, left: list[int], system: SystemState | None
) -> list[dict[str, Any]]:
    shown = []
    for step in scope.steps:
        left[0] -= 1
        if left[0] >= 0:
            shown.append(_describe_step(step, left, system))
    return shown


def _describe_step(step: StepState, left: list[int], system: SystemState | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "stepId": step.plan.id,
        "path": step.path,
        "uses": step.plan.kind,
        "status": "held" if step.session is not None and step.session.is_held else step.status,
        "visits": len(step.outputs),
        "attempt": step.attempt,
    }
    if step.usage:
        entry["usage"] = copy_usage(step.usage)
    if step.error is not None:
        entry["error"] = step.error
    if step.due_at is not None:
        entry["dueAt"] = step.due_at
    if step.chosen is not None:
        entry["chosen"] = step.chosen
    if step.fix_attempt:
        entry["fixAttempt"] = step.fix_attempt
    if step.sub_run_id is not None:
        entry["subRunId"] = step.sub_run_id
    session = step.session
    if session is not None:
        entry["session"] = {
            "sessionId": session.id,
            "role": session.role,
            "usage": copy_usage(session.usage),
            "incarnation": session.incarnation,
            "isLive": session.is_live,
            "openCalls": [call.tool_name or call.kind for call in session.open_calls.values()],
        }
        process = system.processes.get(system.bound.get(session.id, "")) if system else None
        if process is not None:
            entry["session"]["pid"] = process.pid
    if step.group is not None:
        entry["branches"] = _describe_group(step.group, left, system)
    return entry


def _describe_group(
    group: GroupState, left: list[int], system: SystemState | None
) -> dict[str, Any]:
    done = [status for status, _ in group.results.values()]
    return {
        "total": len(group.keys),
        "completed": done.count("completed"),
        "failed": done.count("failed"),
        "live": [
            {
                "itemKey": group.keys[index],
                "path": branch.path,
                "steps": _describe_scope(branch, left, system),
            }
            for index, branch in group.live.items()
        ],
    }


def describe_processes(system: SystemState) -> list[dict[str, Any]]:
    """Returns the living children, in the order of their launch."""
    return [
        {
            "processId": process.id,
            "pid": process.pid or None,  # 0: it is being launched
            "kind": process.kind,
            "status": process.status,
            "runId": process.run_id,
            "sessionId": process.session_id,
            "stepPath": process.step_path or None,
            "incarnation": process.incarnation,
        }
        for process in system.processes.values()
    ]


def describe_event(position: int, event: Event) -> dict[str, Any]:
    """Returns an event as people and programs see it; `at` also as text."""
    shown: dict[str, Any] = {
        "position": position,
        "runId": event.run_id,
        "sequence": event.sequence,
        "schemaVersion": event.schema_version,
        "type": event.type,
        "at": format_moment(event.at),
        "epoch": event.epoch,
        "payload": event.payload,
    }
    if event.session_id is not None:
        shown["sessionId"] = event.session_id
    if event.incarnation is not None:
        shown["incarnation"] = event.incarnation
    return shown


def describe_row(row: RunRow) -> dict[str, Any]:
    """Returns a run as lists show it."""
    return {
        "runId": row.run_id,
        "status": row.status,
        "workflowId": row.workflow_id,
        "admittedAt": row.admitted_at,
        "endedAt": row.ended_at,
    }
