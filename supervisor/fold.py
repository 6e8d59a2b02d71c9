"""The fold: what each event makes of the state of its run.

`fold(run, event, library)` first checks that the event is legal where the run is (and raises
IllegalEventError, leaving the run as it was), then applies it. It reads no clock and does no I/O.
The handlers for runs and steps are here, those for groups, sub-runs and sessions in `fold_groups`,
`fold_sub_runs` and `fold_sessions`; `scope_flow` holds how scopes and loops move on.
"""

from planaria.protocol.effects import strip_attempts
from planaria.protocol.errors import NEVER_FIXED, NEVER_RETRIED, shorten
from planaria.protocol.events import Event, check_payload
from planaria.protocol.payloads import read_field

from .context import unwrap_value
from .fold_groups import GROUP_HANDLERS, completed_branches
from .fold_openings import OPENING_HANDLERS
from .fold_sessions import SESSION_HANDLERS, Handler
from .fold_sub_runs import SUB_RUN_HANDLERS
from .fold_waits import WAIT_HANDLERS
from .illegal import refuse_unless
from .run_state import (
    BACKOFF,
    COMPLETED,
    DECIDED,
    FAILED,
    READY,
    RUNNING,
    SKIPPED,
    Error,
    Library,
    RunState,
    StepState,
    find_step,
    visible_visits,
)
from .scope_flow import (
    check_end,
    fail_scope,
    halt,
    open_scope,
    rerun,
    settle,
)

_AFTER_END = frozenset({"RunReopened", "OuterLoopCycleCompleted"})
_EITHER = frozenset({"EffectResolved"})
# What the start of an attempt that needs no process owes.
_FIRST = {
    "decision": "decide",
    "parallel": "open_group",
    "workflow.call": "call_workflow",
    "approval": "request_approval",
    "wait": "start_wait",
}
# What the running attempt of a step may owe.
_ENDS = (
    "finish_step decide open_group end_group finish_group call_workflow finish_call inherit "
    "request_approval finish_approval start_wait finish_wait"
).split()


def fold(run: RunState, event: Event, library: Library) -> RunState:
    """Applies one event to the run and returns the run.

    Raises:
        IllegalEventError: the event can't come here; the run is unchanged.
        ProtocolError: its payload doesn't have the fields of its type.
    """
    check_payload(event.type, event.payload)
    refuse_unless(event.sequence == run.sequence + 1, event, f"after sequence {run.sequence}")
    refuse_unless(
        event.type in _EITHER or run.is_ended == (event.type in _AFTER_END),
        event,
        "after the run's end" if run.is_ended else "before the run's end",
    )
    _HANDLERS[event.type](run, event, library)
    run.sequence = event.sequence
    return run


def _admit(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.status == "new", event, "twice")
    run.status = "admitted"
    run.admission = event.payload
    run.admitted_at = event.at
    run.input = read_field(event.payload, "input")
    run.budget = event.payload.get("budget")
    if "cycle" in event.payload or "cycleRef" in event.payload:
        run.cycle = read_field(event.payload, "cycle")
    definition = event.payload.get("definitionRef")
    if definition is not None:
        run.is_planning = True
        run.plan = library.plan(definition["sha256"], definition)
        run.root = open_scope(run, "", run.plan.root, None, 0)


def _register(run: RunState, event: Event, library: Library) -> None:
    is_drafted = run.is_planning and ("end_scope", "") in run.owed
    refuse_unless(run.status == "admitted" and (run.plan is None or is_drafted), event, "now")
    run.plan = library.plan(event.payload["workflowVersionId"], event.payload["lockRef"])
    run.lock_ref = event.payload["lockRef"]
    if is_drafted and run.root is not None:
        run.planning_usage = run.root.steps[0].usage
    run.is_planning = False
    run.root = None
    run.owed.pop(("end_scope", ""), None)
    if run.admission.get("planOnly"):
        run.owe("end_scope", "")
    else:
        run.owe("start_run")


def _start(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.status == "admitted" and ("start_run",) in run.owed, event, "now")
    assert run.plan is not None
    del run.owed[("start_run",)]
    run.status = "running"
    run.is_started = True
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
    run.owed.pop(("fix", path), None)
    run.backoffs.pop(path, None)
    if step.status == READY:
        step.scope.running += 1
    step.status = RUNNING
    step.attempt = attempt
    step.fix_attempt = payload.get("fixAttempt", 0)
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
    if run.inherited is not None and not step.kept:
        kept = run.inherited.branches.get(strip_attempts(path), {})
        step.kept = {key: ("completed", unwrap_value(value)) for key, value in kept.items()}
    if payload.get("isInherited"):
        run.owe("inherit", path)
    elif "sessionId" in payload:
        run.owe("open_session", path, detail=payload["sessionId"])
    elif step.plan.kind in _FIRST:
        run.owe(_FIRST[step.plan.kind], path)
    else:
        raise AssertionError(f"nothing carries a step of kind {step.plan.kind!r}")


def _complete_step(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    step = _close_attempt(run, event)
    run.steps.pop(path)
    run.groups.pop(path, None)
    step.group = None
    step.status = COMPLETED
    step.attempt = step.attempts_before = step.fix_attempt = 0
    step.error = None
    step.kept = {}
    step.fixes = []
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
    failed = run.steps[path].session if path in run.steps else None
    step = _close_attempt(run, event, keep_running=True)
    error = event.payload["error"]
    if step.fix_attempt:
        _, _, metadata = (failed and failed.finish) or ("", None, {})
        step.fixes.append({"source": metadata.get("fixedSource"), "error": error})
    else:
        step.error = error
    step.failed_at = event.at
    run.groups.pop(path, None)
    if step.group is not None:
        step.kept = completed_branches(step.group)
        step.group = None  # or the halt below would owe the end of a group that has ended
    if _may_retry(step, error):
        step.status = BACKOFF
        run.owe("plan_retry", path)
        return
    if _may_fix(step, error):
        step.status = BACKOFF
        run.owe("fix", path)
        return
    step.status = FAILED
    step.scope.running -= 1
    run.steps.pop(path)
    fail_scope(run, step, _final_error(step, error), path)


def _may_retry(step: StepState, error: Error) -> bool:
    return (
        error["retriable"]
        and error["causeCode"] not in NEVER_RETRIED
        and step.attempt - step.attempts_before < step.plan.retry.attempts_max
        and not step.fix_attempt
        and not step.scope.is_halted
    )


def _may_fix(step: StepState, error: Error) -> bool:
    fixer = step.plan.fixer
    return (
        fixer is not None
        and error["causeCode"] not in NEVER_FIXED
        and step.fix_attempt < fixer["maxAttempts"]
        and not step.scope.is_halted
    )


def _final_error(step: StepState, error: Error) -> Error:
    """Returns why a step failed: after fixes in vain, its own failure, and the last fix's."""
    if not step.fix_attempt or step.error is None or error["causeCode"] in NEVER_FIXED:
        return error
    text = f"{step.error['message']} ({step.fix_attempt} fix(es) failed, the last one with: "
    return {**step.error, "message": shorten(f"{text}{error['message']})")}


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
    refuse_unless(step.sub_run_id not in run.sub_runs, event, "while its sub-run is open")
    step.session = step.sub_run_id = None
    run.timed.pop(path, None)
    for what in _ENDS:
        run.owed.pop((what, path), None)
    return step


def _schedule_retry(run: RunState, event: Event, library: Library) -> None:
    path = event.payload["stepPath"]
    refuse_unless(("plan_retry", path) in run.owed, event, f"for {path!r}")
    del run.owed[("plan_retry", path)]
    step = run.steps[path]
    step.due_at = event.payload["dueAt"]
    run.backoffs[path] = step


def _note(run: RunState, event: Event, library: Library) -> None:
    """Records that change nothing: they are for people."""


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
    refuse_unless(not run.awaits_sub_runs, event, "while a sub-run is open")
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


def _complete_cycle(run: RunState, event: Event, library: Library) -> None:
    legal = run.cycle_completed is None and "outerLoopId" in run.admission
    refuse_unless(legal, event, "for this run")
    run.cycle_completed = event.payload


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
    "CancellationRequested": _request_cancellation,
    "RunInterrupted": _interrupt,
    "RunCompleted": _end_run,
    "RunFailed": _end_run,
    "RunCancelled": _end_run,
    "OuterLoopCycleCompleted": _complete_cycle,
    "OuterLoopStarted": _note,
    "SupervisorStarted": _note,
    "SupervisorStopped": _note,
    "RunRecorded": _note,
    "RunPruned": _note,
    **OPENING_HANDLERS,
    **GROUP_HANDLERS,
    **WAIT_HANDLERS,
    **SUB_RUN_HANDLERS,
    **SESSION_HANDLERS,
}
