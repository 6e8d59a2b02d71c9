"""The invariants of a run's opening, planning, cancellation and end: I20 and I28.

What it does between these is checked by the rules of steps, sessions, sub-runs and budgets.
"""

from collections.abc import Callable
from typing import Any

from .checker_documents import PLAN_STEP, ScopeDocument, make_single_step
from .checker_facts import Fact, Report
from .checker_manifests import find_manifest_problems
from .checker_payloads import TASKS
from .checker_rules_budgets import BudgetRules
from .checker_rules_sessions import EITHER, SessionRules, belongs_to_session
from .checker_rules_steps import Step, StepRules
from .checker_rules_sub_runs import Place, SubRunRules
from .checker_rules_waits import HELD, WaitRules

TERMINAL = frozenset({"RunCompleted", "RunFailed", "RunCancelled"})
# What no run starts any more once its cancellation is recorded. A process may still report calls
# that it made before the request reached it.
_STARTS = frozenset(
    "StepAttemptStarted StepRetryScheduled ParallelGroupStarted ParallelBranchScheduled "
    "SubRunRequested harness.session.started ProcessStarted".split()
)
# Stages of a run's opening, in their order.
_NEW, _ADMITTED, _REGISTERED, _STARTED = range(4)
_ROLES = {"plan": "planner", "orchestrate": "orchestrator"}  # of the steps that aren't a worker's


class RunRules:
    """Checks one run; keeps only what is open of it, and a number per step of an open scope."""

    def __init__(self, run_id: str, read_document: Callable[[Fact], ScopeDocument | None]) -> None:
        """`read_document` returns the document that a WorkflowVersionRegistered pins."""
        self.sessions = SessionRules(run_id, lambda path: self._steps.find_outcomes(path))
        self.terminal = ""  # type of the run's terminal event, while it is the last of an opening
        self._read_document = read_document
        self._sub_runs = SubRunRules(run_id)
        self._steps = StepRules(self.sessions.open, self._sub_runs)
        self._budget = BudgetRules()
        self._waits = WaitRules(self._steps.is_running, self._steps.abandon)
        self._steps.waits = self._waits
        self._admission: dict[str, Any] = {}
        self._stage = _NEW
        self._version_id: str | None = None
        self._is_cancelled = False

    def take(self, fact: Fact, report: Report) -> None:
        """Checks the run's next event, and applies it."""
        kind = fact.type
        is_of_session = belongs_to_session(kind)
        may_be_either = kind in EITHER and fact.session_id is not None
        if not may_be_either and is_of_session != (fact.session_id is not None):
            report("I3", f"{kind} {'lacks' if is_of_session else 'has'} a session in its envelope")
            return
        if kind == "EffectResolved":
            self.sessions.resolve(fact, report)
            return
        if self.terminal or kind == "RunReopened":
            self._go_on(fact, report)
            return
        self._waits.check_start(fact, report, is_cancelled=self._is_cancelled)
        if self._is_cancelled and kind in _STARTS:
            report("I28", f"{kind} after the run's cancellation was requested")
        if kind in HELD:
            self._take_held(fact, report)
            return
        self._check_opening(fact, report)
        self._budget.take(fact, report)
        if kind == "harness.session.started":
            self._check_session(fact, report)
        if is_of_session:
            if self.sessions.answers_request(fact):
                self._sub_runs.check_answer(fact, report)
            self.sessions.take(fact, report)
        elif kind in TERMINAL:
            self._end(fact, report)
        elif (handle := _HANDLERS.get(kind)) is not None:
            handle(self, fact, report)
        else:
            self._steps.take(fact, report)

    def finish(self, report: Report) -> None:
        """Checks what must not be left open at the end of the log."""
        self.sessions.finish(report)
        self._budget.finish(report)

    def _take_held(self, fact: Fact, report: Report) -> None:
        """Takes what is said to a run, at any time of it; of a session its history counts it."""
        if self._stage == _NEW:
            report("I20", f"{fact.type} before the run was admitted")
        self._waits.take(fact, report)
        if fact.session_id is not None:
            self.sessions.take(fact, report)

    # -- opening ---------------------------------------------------------------------------

    def _check_opening(self, fact: Fact, report: Report) -> None:
        """A run opens once: admitted, maybe planned, its version registered, started; the rest."""
        kind = fact.type
        if (open_stage := _OPENING.get(kind)) is not None:
            open_stage(self, fact, report)
        elif self._stage == _STARTED or (kind == "CancellationRequested" and self._stage != _NEW):
            return
        elif kind in TERMINAL and self._stage != _NEW:
            if kind == "RunCompleted" and not self._has_planned_only():
                report("I20", "RunCompleted before the run was started")
        elif not self._is_planning() or fact.payload.get("stepPath", PLAN_STEP) != PLAN_STEP:
            report("I20", f"{kind} before the run was started")

    def _is_planning(self) -> bool:
        return self._stage == _ADMITTED and "definitionRef" in self._admission

    def _has_planned_only(self) -> bool:
        return self._stage == _REGISTERED and bool(self._admission.get("planOnly"))

    def _admit(self, fact: Fact, report: Report) -> None:
        if self._stage != _NEW:
            report("I20", "the run was admitted twice")
        self._stage = max(self._stage, _ADMITTED)
        self._admission = fact.payload
        self._budget.limits = fact.payload.get("budget")
        if "definitionRef" in fact.payload:
            self._steps.open_root(make_single_step(PLAN_STEP, "plan"))

    def _register(self, fact: Fact, report: Report) -> None:
        if self._stage != _ADMITTED:
            report("I20", "a version was registered twice, or before the run was admitted")
        elif self._is_planning() and not self._steps.has_completed(PLAN_STEP):
            report("I20", "a version was registered before its planning had completed")
        self._stage = max(self._stage, _REGISTERED)
        self._version_id = fact.payload["workflowVersionId"]
        self._steps.open_root(self._read_document(fact))

    def _start(self, fact: Fact, report: Report) -> None:
        if self._stage != _REGISTERED or self._admission.get("planOnly"):
            report("I20", "the run was started twice, without a version, or was only to be planned")
        elif fact.payload["workflowVersionId"] != self._version_id:
            report("I20", f"another version was started than the registered {self._version_id!r}")
        elif fact.payload["inputHash"] != self._admission.get("inputHash"):
            report("I20", "the run was started with another input than it was admitted with")
        self._stage = _STARTED

    def _fork(self, fact: Fact, report: Report) -> None:
        if self._stage not in (_ADMITTED, _REGISTERED) or self._steps.is_forked:
            report("I20", "RunForked can't come here: the run has begun, or is a fork already")
        self._steps.is_forked = True

    def _go_on(self, fact: Fact, report: Report) -> None:
        """Takes what comes after the run's end: it may be opened again if it didn't complete."""
        kind = fact.type
        if kind == "OuterLoopCycleCompleted":
            return  # the rules of outer loops check it
        if kind != "RunReopened":
            report("I20", f"{kind} after the run's terminal event")
            return
        if not self.terminal or self.terminal == "RunCompleted":
            report("I20", "the run was opened again, but it hasn't failed or been cancelled")
        elif fact.payload["fromSequence"] != fact.sequence - 1:
            report("I20", f"it says that it comes after event {fact.payload['fromSequence']}")
        self.terminal, self._is_cancelled = "", False
        self._steps.reopen()

    # -- sessions and sub-runs ---------------------------------------------------------------

    def _check_session(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path = payload["stepPath"]
        step = self._steps.find(path)
        is_its = (
            step is not None
            and step.is_running
            and (step.session_id, step.attempt) == (fact.session_id, payload["attempt"])
        )
        if step is None or not is_its:
            report(
                "I6", f"session {fact.session_id!r} isn't the one of an open attempt of {path!r}"
            )
            return
        if step.has_session and fact.session_id not in self.sessions.open:
            report("I6", f"session {fact.session_id!r} was started again after its end")
        step.has_session = True
        role = _role_of(step)
        if (payload["role"], payload["task"]) != (role, TASKS[role]):
            report("I6", f"{path!r} is carried out by a {payload['role']}, not by a {role}")
            return
        for problem in find_manifest_problems(
            payload,
            definition_hash=self._admission.get("workflowDefinitionHash", ""),
            version_id=self._version_id,
            is_cycle="outerLoopId" in self._admission,
        ):
            report("I6", problem)

    def _request_sub_run(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path, call = payload.get("stepPath"), payload.get("callId")
        place: Place | None = None
        if path is not None:
            step = self._steps.find(path)
            if step is not None and step.is_running and step.uses == "workflow.call":
                place = None if step.is_inherited else (path, step.attempt)
        elif call is not None:
            asker = (payload.get("sessionId") or "", call, payload["subRunId"])
            place = (call,) if self.sessions.may_request(*asker) else None
        self._sub_runs.request(fact, place, report)

    def _settle_sub_run(self, fact: Fact, report: Report) -> None:
        self._sub_runs.settle(fact, report)

    # -- cancellation and end --------------------------------------------------------------

    def _cancel(self, fact: Fact, report: Report) -> None:
        if self._is_cancelled:
            report("I28", "the run's cancellation was requested twice")
        self._is_cancelled = True

    def _interrupt(self, fact: Fact, report: Report) -> None:
        session, call = fact.payload["sessionId"], fact.payload["callId"]
        if not self.sessions.is_unknown(session, call):
            report("I16", f"the run was interrupted by call {call!r}, which isn't unknown")

    def _end_early(self, fact: Fact, report: Report) -> None:
        report("I20", f"{fact.type} before the run's terminal event")

    def _end(self, fact: Fact, report: Report) -> None:
        is_open = [
            *(f"session {name!r}" for name in self.sessions.open),
            *self._steps.list_open(),
            *self._sub_runs.list_awaited(),
            *self._waits.list_open(),
        ]
        if not is_open and fact.type == "RunCompleted":
            is_open = [f"failed step {path!r}" for path in self._steps.list_unfinished()]
        if is_open:
            listed = ", ".join(is_open[:5])
            report("I20", f"{fact.type} while {len(is_open)} things are open: {listed}")
        if fact.type == "RunCancelled" and not self._is_cancelled:
            report("I28", "the run was cancelled without a request")
        self.terminal = fact.type


def _role_of(step: Step) -> str:
    return "fixer" if step.fixes else _ROLES.get(step.uses, "worker")


_OPENING: dict[str, Callable[[RunRules, Fact, Report], None]] = {
    "RunAdmitted": RunRules._admit,
    "WorkflowVersionRegistered": RunRules._register,
    "RunStarted": RunRules._start,
    "RunForked": RunRules._fork,
}
_HANDLERS: dict[str, Callable[[RunRules, Fact, Report], None]] = {
    "CancellationRequested": RunRules._cancel,
    "RunInterrupted": RunRules._interrupt,
    "SubRunRequested": RunRules._request_sub_run,
    "SubRunSettled": RunRules._settle_sub_run,
    "OuterLoopCycleCompleted": RunRules._end_early,
}
