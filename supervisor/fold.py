"""The fold: what each event makes of the state of its run.

`fold(run, event, library)` first checks that the event is legal where the run is (and raises
IllegalEventError, leaving the run as it was), then applies it. It reads no clock and does no I/O.
The handlers for steps are here; `scope_flow` holds how scopes and loops move on, `fold_sessions`
the handlers for sessions, calls and processes.
"""

from collections.abc import Callable
from typing import Any

from planaria.protocol.errors import ALWAYS_FAIL_RUN, NEVER_RETRIED
from planaria.protocol.events import Event, check_payload
from planaria.protocol.payloads import read_field

from .context import evaluate
from .fold_sessions import SESSION_HANDLERS
from .illegal import refuse_unless
from .run_state import (
    BACKOFF,
    COMPLETED,
    DECIDED,
    FAILED,
    READY,
    RUNNING,
    SKIPPED,
    GroupState,
    Library,
    RunState,
    StepState,
    find_step,
    visible_visits,
)
from .scope_flow import (
    check_end,
    check_group_end,
    fail_scope,
    halt,
    halt_group,
    open_scope,
    rank_failure,
    rerun,
    sessions_below,
    settle,
)

Handler = Callable[[RunState, Event, Library], None]


def fold(run: RunState, event: Event, library: Library) -> RunState:
    """Applies one event to the run and returns the run.

    Raises:
        IllegalEventError: the event can't come here; the run is unchanged.
        ProtocolError: its payload doesn't have the fields of its type.
    """
    check_payload(event.type, event.payload)
    refuse_unless(event.sequence == run.sequence + 1, event, f"after sequence {run.sequence}")
    refuse_unless(not run.is_ended, event, "after the run's end")
    _HANDLERS[event.type](run, event, library)
    run.sequence = event.sequence
    return run


def _admit(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.status == "new", event, "twice")
    run.status = "admitted"
    run.admission = event.payload
    run.admitted_at = event.at
    run.input = read_field(event.payload, "input")


def _register(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.status == "admitted" and run.plan is None, event, "now")
    run.plan = library.plan(event.payload["workflowVersionId"], event.payload["lockRef"])
    run.owe("start_run")


def _start(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.status == "admitted" and run.plan is not None, event, "now")
    assert run.plan is not None
    run.owed.pop(("start_run",), None)
    run.status = "running"
    run.deadline = event.payload.get("deadline")
    run.root = open_scope(run, "", run.plan.root, None, 0)


def _skip_step(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    refuse_unless(("skip", path) in run.owed, event, f"for {path!r}")
    del run.owed[("skip", path)]
    step = run.steps.pop(path)
    step.status = SKIPPED
    settle(run, step)


def _start_attempt(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    path, attempt = payload["stepPath"], payload["attempt"]
    step = run.steps.get(path)
    legal = step is not None and step.status in (READY, BACKOFF) and attempt == step.attempt + 1
    refuse_unless(legal, event, f"for {path!r} attempt {attempt}")
    assert step is not None
    run.owed.pop(("start", path), None)
    run.backoffs.pop(path, None)
    if step.status == READY:
        step.scope.running += 1
    step.status = RUNNING
    step.attempt = attempt
    step.attempt_started_at = event.at
    step.due_at = None
    step.context = tuple(
        (reference.step_id, found, visible_visits(step, found))
        for reference in step.plan.references
        if reference.step_id is not None
        and (found := find_step(step.scope, reference.step_id)) is not None
    )
    if step.plan.timeout_ms is not None:
        run.timed[path] = step
    if "sessionId" in payload:
        run.owe("open_session", path, detail=payload["sessionId"])
    elif step.plan.kind == "parallel":
        run.owe("open_group", path)
    else:
        run.owe("decide", path)


def _complete_step(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    step = _close_attempt(run, event)
    run.steps.pop(path)
    run.groups.pop(path, None)
    step.group = None
    step.status = COMPLETED
    step.attempt = 0
    step.error = None
    step.kept = {}
    chosen = event.payload.get("chosen")
    if step.plan.kind == "decision":
        step.chosen = chosen
        step.outputs.append({"chosen": chosen})
        graph = step.scope.plan.graph
        target = graph.ids.index(chosen) if chosen != "end" else -1
        loop = graph.loop_of(step.plan.index, target)
        if loop is not None and not step.scope.is_halted:
            rerun(run, step.scope, loop)
            return
    else:
        step.outputs.append(read_field(event.payload, "output"))
    settle(run, step)


def _fail_step(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    step = _close_attempt(run, event, keep_running=True)
    error = event.payload["error"]
    step.error = error
    step.failed_at = event.at
    may_retry = (
        error["retriable"]
        and error["causeCode"] not in NEVER_RETRIED
        and step.attempt < step.plan.retry.attempts_max
        and not step.scope.is_halted
    )
    if may_retry:
        step.status = BACKOFF
        if step.group is not None:
            step.kept = _completed_branches(step.group)
            run.groups.pop(path, None)
            step.group = None
        run.owe("plan_retry", path)
        return
    step.status = FAILED
    step.scope.running -= 1
    run.steps.pop(path)
    run.groups.pop(path, None)
    step.group = None  # or the halt below would owe the end of a group that has ended
    fail_scope(run, step, error, path)


def _close_attempt(run: RunState, event: Event, *, keep_running: bool = False) -> StepState:
    """Checks that the event ends the running attempt that it names, and returns the step."""
    payload = event.payload
    path = payload["stepPath"]
    step = run.steps.get(path)
    legal = step is not None and step.status == RUNNING and payload["attempt"] == step.attempt
    refuse_unless(legal, event, f"for {path!r} attempt {payload['attempt']}")
    assert step is not None
    open_session = step.session is not None and step.session.id in run.sessions
    refuse_unless(not open_session, event, f"while a session of {path!r} is open")
    if not keep_running:
        step.scope.running -= 1
    step.session = None
    run.timed.pop(path, None)
    for what in ("finish_step", "decide", "open_group", "end_group", "finish_group"):
        run.owed.pop((what, path), None)
    return step


def _completed_branches(group: GroupState) -> dict[str, tuple[str, Any]]:
    return {
        group.keys[index]: result
        for index, result in group.results.items()
        if result[0] == "completed"
    }


def _schedule_retry(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    refuse_unless(("plan_retry", path) in run.owed, event, f"for {path!r}")
    del run.owed[("plan_retry", path)]
    step = run.steps[path]
    step.due_at = event.payload["dueAt"]
    run.backoffs[path] = step


def _note(run: RunState, event: Event, library: Library) -> None:
    """Records that change nothing: they are for people."""


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


def _request_cancellation(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.cancellation is None, event, "twice")
    run.cancellation = event.payload
    if run.status == "interrupted":
        run.status = "running"
    reason = event.payload.get("reason")
    cause = "timeout" if reason == "timeout" else "cancelled"
    text = "the run's deadline passed" if cause == "timeout" else "the run was cancelled"
    error = {"name": "Cancelled", "message": text, "causeCode": cause, "retriable": False}
    run.error = error
    if run.root is None:
        run.owed.pop(("start_run",), None)
        run.owe("end_scope", "")
        return
    run.root.failure, run.root.failure_rank = (error, ""), DECIDED
    halt(run, run.root)
    for session in run.sessions.values():
        if not session.is_live:
            run.waiting.pop(session.id, None)
            run.owe("close_session", session.id, detail=error)
    check_end(run, run.root)


def _end_run(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(("end_scope", "") in run.owed, event, "while something of the run is open")
    refuse_unless(not run.sessions, event, "while a session is open")
    run.owed.clear()
    run.ended_at = event.at
    if event.type == "RunCompleted":
        run.status = "completed"
        run.output = read_field(event.payload, "output")
    elif event.type == "RunFailed":
        run.status = "failed"
        run.error = event.payload["error"]
        run.failed_step_path = event.payload.get("failedStepPath")
    else:
        run.status = "cancelled"


def _interrupt(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.status == "running", event, "now")
    run.status = "interrupted"
    run.owed.pop(("interrupt",), None)


_HANDLERS: dict[str, Handler] = {
    "RunAdmitted": _admit,
    "WorkflowVersionRegistered": _register,
    "RunStarted": _start,
    "StepSkipped": _skip_step,
    "StepAttemptStarted": _start_attempt,
    "StepRetryScheduled": _schedule_retry,
    "StepRepairAttempted": _note,
    "StepCompleted": _complete_step,
    "StepFailed": _fail_step,
    "ParallelGroupStarted": _start_group,
    "ParallelBranchScheduled": _start_branch,
    "ParallelBranchCompleted": _end_branch,
    "ParallelBranchFailed": _end_branch,
    "ParallelGroupCompleted": _end_group,
    "ParallelGroupFailed": _end_group,
    "ParallelGroupTimedOut": _time_out_group,
    "CancellationRequested": _request_cancellation,
    "RunInterrupted": _interrupt,
    "RunCompleted": _end_run,
    "RunFailed": _end_run,
    "RunCancelled": _end_run,
    "SupervisorStarted": _note,
    "SupervisorStopped": _note,
    "RunRecorded": _note,
    **SESSION_HANDLERS,
}
