"""The fold of a run's openings: reopened for another attempt, or begun as the fork of another."""

from planaria.protocol.events import Event
from planaria.protocol.payloads import Ref

from .context import unwrap_value
from .fold_sessions import Handler
from .illegal import refuse_unless
from .inheritance import load_inheritance
from .run_state import (
    DECIDED,
    FAILED,
    PENDING,
    READY,
    Library,
    RunState,
    ScopeState,
)
from .scope_flow import check_end, examine


def _reopen(run: RunState, event: Event, library: Library) -> None:
    refuse_unless(run.status in ("failed", "cancelled"), event, f"while it is {run.status}")
    refuse_unless(run.plan is not None, event, "before it has a version")
    run.status = "running" if run.is_started else "admitted"
    run.error = run.failed_step_path = run.cancellation = None
    run.ended_at = 0
    run.deadline = event.payload.get("deadline")
    if "source" in event.payload:
        run.admission = {**run.admission, "source": event.payload["source"]}
    if run.root is not None:
        _revive(run, run.root)
    elif run.admission.get("planOnly"):
        run.owe("end_scope", "")
    else:
        run.owe("start_run")


def _revive(run: RunState, scope: ScopeState) -> None:
    """Gives the failed steps of a scope another attempt, and those behind them their turn."""
    scope.failure, scope.failure_rank, scope.is_halted = None, DECIDED, False
    scope.running = 0
    for step in scope.steps:
        if step.status == FAILED:
            step.status = READY
            step.attempts_before, step.fix_attempt, step.fixes = step.attempt, 0, []
            run.steps[step.path] = step
            run.owe("start", step.path)
    for step in scope.steps:
        if step.status == PENDING:
            examine(run, scope, step.plan.index)
    check_end(run, scope)


def _fork(run: RunState, event: Event, library: Library) -> None:
    is_new = run.status == "admitted" and run.inherited is None and not run.is_started
    refuse_unless(is_new, event, "once it has begun")
    dumped = library.value(Ref(event.payload["inheritedRef"]))
    run.inherited = load_inheritance(dumped)
    run.forked_from = {name: event.payload[name] for name in ("fromRunId", "atSequence")}
    for path, results in run.inherited.performed.items():
        known = run.performed.setdefault(path, {})
        known.update({key: unwrap_value(value) for key, value in results.items()})


OPENING_HANDLERS: dict[str, Handler] = {"RunReopened": _reopen, "RunForked": _fork}
