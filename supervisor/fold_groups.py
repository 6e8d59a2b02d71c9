"""The fold of `parallel` groups: their branches, failures and ends."""

from typing import Any

from planaria.protocol.errors import ALWAYS_FAIL_RUN
from planaria.protocol.events import Event
from planaria.protocol.payloads import read_field

from .context import evaluate
from .fold_sessions import Handler
from .illegal import refuse_unless
from .run_state import DECIDED, GroupState, Library, RunState, StepState
from .scope_flow import (
    check_group_end,
    halt_group,
    open_scope,
    rank_failure,
    sessions_below,
)


def completed_branches(group: GroupState) -> dict[str, tuple[str, Any]]:
    """Returns the results of a group's completed branches by their keys."""
    return {
        group.keys[index]: result
        for index, result in group.results.items()
        if result[0] == "completed"
    }


def _start_group(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    refuse_unless(("open_group", path) in run.owed, event, f"for {path!r}")
    del run.owed[("open_group", path)]
    step = run.steps[path]
    keys = list(event.payload["itemKeys"])
    group = GroupState(step, keys, evaluate_items(run, step, library))
    kept = step.kept
    group.results = {i: kept[key] for i, key in enumerate(keys) if key in kept}
    step.group = group
    run.groups[path] = group
    _move_group(run, group)


def evaluate_items(run: RunState, step: StepState, library: Library) -> list[Any]:
    """Returns the items of a `parallel` step as its expressions give them at its attempt's start.

    Raises:
        ExpressionError: the expression can't be evaluated, or gives no list.
    """
    assert step.plan.items is not None
    return list(evaluate(run, step, step.plan.items, library))


def _move_group(run: RunState, group: GroupState) -> None:
    """Notes that the group owes a branch, or its end."""
    path = group.step.path
    while group.next_index < len(group.keys) and group.next_index in group.results:
        group.next_index += 1
    stopped = group.is_halted or (group.failure is not None and group.step.plan.fail_fast)
    has_more = group.next_index < len(group.keys) and not stopped
    if has_more and len(group.live) < group.step.plan.concurrency_max:
        run.owe("branch", path)
    elif stopped:
        run.owed.pop(("branch", path), None)  # owed before this branch's failure
    check_group_end(run, group)


def _start_branch(run: RunState, event: Event, library: Library) -> None:
    path, index = event.payload["stepPath"], event.payload["branchIndex"]
    group = run.groups.get(path)
    legal = group is not None and ("branch", path) in run.owed and index == group.next_index
    refuse_unless(legal, event, f"for {path!r} branch {index}")
    assert group is not None and group.step.plan.branch is not None
    del run.owed[("branch", path)]
    group.next_index += 1
    branch = open_scope(run, event.payload["branchPath"], group.step.plan.branch, group, index)
    group.live[index] = branch
    run.branches[branch.path] = branch
    _move_group(run, group)


def _end_branch(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["branchPath"]
    branch = run.branches.get(path)
    refuse_unless(branch is not None and ("end_scope", path) in run.owed, event, f"for {path!r}")
    assert branch is not None and branch.group is not None
    del run.owed[("end_scope", path)]
    del run.branches[path]
    group = branch.group
    del group.live[branch.branch_index]
    if event.type == "ParallelBranchCompleted":
        group.results[branch.branch_index] = ("completed", read_field(event.payload, "output"))
    else:
        error = event.payload["error"]
        group.results[branch.branch_index] = ("failed", error)
        _note_branch_failure(run, group, error, branch.branch_index)
    _move_group(run, group)


def _note_branch_failure(
    run: RunState, group: GroupState, error: dict[str, Any], branch_index: int
) -> None:
    is_fatal = error["causeCode"] in ALWAYS_FAIL_RUN
    rank = rank_failure(error, branch_index)
    is_first = group.failure is None or rank < group.failure_rank
    if is_first and (is_fatal or group.step.plan.fail_fast):
        group.failure, group.failure_rank = error, rank
    if is_fatal:
        halt_group(run, group)


def _end_group(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    refuse_unless(("end_group", path) in run.owed, event, f"for {path!r}")
    del run.owed[("end_group", path)]
    run.owe("finish_group", path)


def _time_out_group(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    group = run.groups.get(path)
    refuse_unless(group is not None, event, f"for {path!r}")
    assert group is not None
    run.timed.pop(path, None)
    text = f"parallel {group.step.plan.id!r} ran longer than {group.step.plan.timeout_ms} ms"
    error = {"name": "StepTimeout", "message": text, "causeCode": "step_timeout"}
    group.failure, group.failure_rank = {**error, "retriable": True}, DECIDED
    for session in sessions_below(group):
        run.waiting.pop(session.id, None)
        run.owe("close_session", session.id, detail={**group.failure, "retriable": False})
    halt_group(run, group)


GROUP_HANDLERS: dict[str, Handler] = {
    "ParallelGroupStarted": _start_group,
    "ParallelBranchScheduled": _start_branch,
    "ParallelBranchCompleted": _end_branch,
    "ParallelBranchFailed": _end_branch,
    "ParallelGroupCompleted": _end_group,
    "ParallelGroupFailed": _end_group,
    "ParallelGroupTimedOut": _time_out_group,
}
