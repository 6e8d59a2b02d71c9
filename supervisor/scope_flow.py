"""How a scope moves on: which steps become ready or are skipped, loops, failure, and its end.

The rules stand in `planaria.protocol.graph`. All of this is called by the fold only.
"""

from typing import Any

from planaria.protocol.errors import ALWAYS_FAIL_RUN
from planaria.protocol.graph import Loop

from .plan import WAITING_KINDS, ScopePlan
from .run_state import (
    BACKOFF,
    COMPLETED,
    FAILED,
    PENDING,
    READY,
    RUNNING,
    SETTLED,
    FailureRank,
    GroupState,
    RunState,
    ScopeState,
    SessionState,
    StepState,
    SubRunState,
)


def open_scope(
    run: RunState, path: str, plan: ScopePlan, group: GroupState | None, branch_index: int
) -> ScopeState:
    """Returns a new scope whose first steps are ready."""
    scope = ScopeState(path=path, plan=plan, group=group, branch_index=branch_index)
    scope.steps = [StepState(scope=scope, plan=step) for step in plan.steps]
    scope.unsettled = len(scope.steps)
    for index, deps in enumerate(plan.graph.deps):
        if not deps:
            examine(run, scope, index)
    return scope


def settle(run: RunState, step: StepState) -> None:
    """Lets those that waited for a completed or skipped step move on, and maybe the scope end."""
    scope = step.scope
    scope.unsettled -= 1
    if not scope.is_halted:
        for watcher in scope.plan.graph.watchers[step.plan.index]:
            examine(run, scope, watcher)
    check_end(run, scope)


def rerun(run: RunState, scope: ScopeState, loop: Loop) -> None:
    """Puts a loop's members back on the to-do list: its decision has just chosen its target."""
    scope.unsettled += len(loop.members) - 1  # all but the decision, which isn't counted yet
    scope.loop_visits[(loop.decision, loop.target)] = {
        index: len(scope.steps[index].outputs) for index in loop.members
    }
    for index in loop.members:
        scope.steps[index].status = PENDING
        scope.steps[index].chosen = None
    scope.steps[loop.target].is_called_back = True
    examine(run, scope, loop.target)


def examine(run: RunState, scope: ScopeState, index: int) -> None:
    """Makes a pending step ready or owes its skip, once all that it waits for is settled."""
    step = scope.steps[index]
    if step.status != PENDING:
        return
    graph, steps = scope.plan.graph, scope.steps
    for dep in graph.deps[index]:
        if steps[dep].status not in SETTLED:
            return
    for decision in graph.exits[index]:
        if steps[decision].status not in SETTLED:
            return
    path = step.path
    if path in run.steps:
        return
    choosers, needs = graph.choosers[index], graph.needs[index]
    is_chosen = step.is_called_back or any(steps[d].chosen == step.plan.id for d in choosers)
    step.is_called_back = False
    if choosers and not is_chosen:
        run.steps[path] = step
        run.owe("skip", path, detail="not_chosen")
    elif needs and not any(steps[n].status == COMPLETED for n in needs):
        run.steps[path] = step
        run.owe("skip", path, detail="needs_skipped")
    elif step.visit_index >= step.plan.visits_max:
        fail_scope(run, step, _too_many_visits(step), path)
    else:
        step.status = READY
        step.attempt = step.attempts_before = 0
        run.steps[path] = step
        run.owe("start", path)


def _too_many_visits(step: StepState) -> dict[str, Any]:
    limit, advice = f"maxVisits is {step.plan.visits_max}", "Raise it, or leave the loop earlier"
    if step.plan.kind == "decision":
        limit = f"the steps on loops beside it have {step.plan.visits_max - 1} visits together"
        advice = "Its loop skips the steps that it should run: let it choose one of them, or leave"
    return {
        "name": "MaxVisitsExceeded",
        "message": f"step {step.plan.id!r} would start visit {step.visit_index}, but {limit}. "
        f"{advice}",
        "causeCode": "max_visits_exceeded",
        "retriable": False,
    }


def fail_scope(run: RunState, step: StepState, error: dict[str, Any], path: str) -> None:
    """Lets a step's scope fail: what runs in it finishes, nothing of it starts any more."""
    scope = step.scope
    rank = rank_failure(error, step.plan.index)
    if scope.failure is None or rank < scope.failure_rank:
        scope.failure, scope.failure_rank = (error, path), rank
    halt(run, scope)
    check_end(run, scope)


def rank_failure(error: dict[str, Any], place: int) -> FailureRank:
    """Returns what says which of several failures beside each other counts: the lowest.

    Not the first one, or a result would hang on timing: one that fails the run whatever is around
    it, else the one with the first place in the document or among the branches.
    """
    return error["causeCode"] not in ALWAYS_FAIL_RUN, place


def halt(run: RunState, scope: ScopeState) -> None:
    """Stops everything in a scope, and in the branches inside it, from starting."""
    scope.is_halted = True
    for step in scope.steps:
        if step.status == READY or (step.status == PENDING and step.path in run.steps):
            path = step.path
            run.owed.pop(("start", path), None)
            run.owed.pop(("skip", path), None)
            run.steps.pop(path, None)
            step.status = PENDING
        elif step.status == BACKOFF:
            path = step.path
            run.owed.pop(("plan_retry", path), None)
            run.owed.pop(("fix", path), None)
            run.backoffs.pop(path, None)
            run.steps.pop(path, None)
            step.status = FAILED
            scope.running -= 1
        elif step.group is not None:
            halt_group(run, step.group)
        elif step.status == RUNNING and step.plan.kind in WAITING_KINDS:
            run.owe("abandon", step.path)


def halt_group(run: RunState, group: GroupState) -> None:
    """Stops a group: no branch of it starts, and its live ones start nothing more."""
    group.is_halted = True
    run.owed.pop(("branch", group.step.path), None)
    for branch in group.live.values():
        halt(run, branch)
        check_end(run, branch)
    check_group_end(run, group)


def check_end(run: RunState, scope: ScopeState) -> None:
    """Owes the end of a scope once nothing of it runs and nothing of it can start."""
    if scope.unsettled == 0 or (scope.is_halted and scope.running == 0):
        run.owe("end_scope", scope.path)


def check_group_end(run: RunState, group: GroupState) -> None:
    """Owes the end of a group once no branch is live and none will start."""
    stopped = group.is_halted or (group.failure is not None and group.step.plan.fail_fast)
    if not group.live and (stopped or group.next_index >= len(group.keys)):
        run.owe("end_group", group.step.path)


def sessions_below(group: GroupState) -> list[SessionState]:
    """Returns the open sessions of everything inside a group's live branches."""
    found: list[SessionState] = []
    for branch in group.live.values():
        for step in branch.steps:
            if step.session is not None:
                found.append(step.session)
            if step.group is not None:
                found.extend(sessions_below(step.group))
    return found


def sub_runs_below(run: RunState, group: GroupState) -> list[SubRunState]:
    """Returns the open sub-runs of everything inside a group's live branches."""
    return [
        sub_run
        for sub_run in run.sub_runs.values()
        if any(
            (sub_run.step_path or "").startswith(f"{branch.path}.")
            for branch in group.live.values()
        )
    ]
