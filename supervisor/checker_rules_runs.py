"""The invariants of a run's steps, visits, branches and end: I17 to I20, I24 and I28."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .checker_documents import ScopeDocument
from .checker_facts import Fact, Report
from .checker_rules_calls import EffectOutcomes
from .checker_rules_sessions import SessionRules, belongs_to_session

TERMINAL = frozenset({"RunCompleted", "RunFailed", "RunCancelled"})
_OPENING = ("RunAdmitted", "WorkflowVersionRegistered", "RunStarted")
# What no run starts any more once its cancellation is recorded. A process may still report calls
# that it made before the request reached it.
_STARTS = frozenset(
    "StepAttemptStarted StepRetryScheduled ParallelGroupStarted ParallelBranchScheduled "
    "harness.session.started ProcessStarted".split()
)
_VISIT = re.compile(r"\.visit\[\d+\]")
_ROOT_STEP = re.compile(r"[^.\[@]+(\.visit\[\d+\])?")


@dataclass(slots=True)
class _Step:
    """One step of an open scope: how many of its visits are completed, and the open one."""

    completed: int = 0
    path: str = ""  # of the open visit
    attempt: int = 0  # of the open visit, the newest
    is_running: bool = False
    uses: str = ""
    session_id: str | None = None
    has_session: bool = False
    retry: tuple[int, int] | None = None  # (next attempt, due) as scheduled
    chosen: str | None = None


@dataclass(slots=True)
class _Scope:
    path: str
    document: ScopeDocument | None
    steps: dict[str, _Step] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    attempt: int
    keys: list[str]
    inner: ScopeDocument | None
    last_index: int = -1
    live: dict[str, int] = field(default_factory=dict)  # branch path -> index
    outcome: str = ""  # Completed | Failed


class RunRules:
    """Checks one run; keeps only what is open of it, and a number per step of an open scope."""

    def __init__(self, run_id: str, read_document: Callable[[Fact], ScopeDocument | None]) -> None:
        """`read_document` returns the document that a WorkflowVersionRegistered pins."""
        self.sessions = SessionRules(run_id, self._find_outcomes)
        self.is_ended = False
        self._read_document = read_document
        self._opened = 0  # events of _OPENING so far
        self._is_cancelled = False
        self._scopes = {"": _Scope("", None)}
        self._visits: dict[str, tuple[_Scope, str]] = {}  # open visits: path -> scope, step id
        self._groups: dict[str, _Group] = {}
        self._outcomes: dict[str, EffectOutcomes] = {}  # by the path of a top-level step

    def take(self, fact: Fact, report: Report) -> None:
        """Checks the run's next event, and applies it."""
        kind = fact.type
        is_of_session = belongs_to_session(kind)
        if is_of_session != (fact.session_id is not None):
            report("I3", f"{kind} {'lacks' if is_of_session else 'has'} a session in its envelope")
            return
        if self._is_cancelled and kind in _STARTS:
            report("I28", f"{kind} after the run's cancellation was requested")
        self._check_opening(fact, report)
        if kind == "harness.session.started":
            self._check_session(fact, report)
        if is_of_session:
            self.sessions.take(fact, report)
        elif kind in TERMINAL:
            self._end(fact, report)
        elif (handle := _HANDLERS.get(kind)) is not None:
            handle(self, fact, report)

    def finish(self, report: Report) -> None:
        """Checks what must not be left open at the end of the log."""
        self.sessions.finish(report)

    def _find_outcomes(self, step_path: str) -> EffectOutcomes:
        return self._outcomes.setdefault(_root_path(step_path), {})

    def _check_opening(self, fact: Fact, report: Report) -> None:
        """A run opens once: admitted, its version registered, started; then the rest."""
        kind = fact.type
        if kind in _OPENING:
            if self._opened >= len(_OPENING) or kind != _OPENING[self._opened]:
                report("I20", f"{kind} can't come after {self._opened} of the run's 3 first events")
            self._opened = max(self._opened, _OPENING.index(kind) + 1)
            if kind == "WorkflowVersionRegistered":
                self._scopes[""].document = self._read_document(fact)
        elif self._opened < len(_OPENING) and kind != "CancellationRequested":
            if kind not in TERMINAL or kind == "RunCompleted":
                report("I20", f"{kind} before the run was started")

    def _check_session(self, fact: Fact, report: Report) -> None:
        path = fact.payload["stepPath"]
        step = self._find_visit(path)
        is_its = (
            step is not None
            and step.is_running
            and (step.session_id, step.attempt) == (fact.session_id, fact.payload["attempt"])
        )
        if step is None or not is_its:
            report(
                "I6", f"session {fact.session_id!r} isn't the one of an open attempt of {path!r}"
            )
        elif step.has_session and fact.session_id not in self.sessions.open:
            report("I6", f"session {fact.session_id!r} was started again after its end")
        else:
            step.has_session = True

    def _find_visit(self, path: str) -> _Step | None:
        found = self._visits.get(path)
        return None if found is None else found[0].steps[found[1]]

    # -- steps -----------------------------------------------------------------------------

    def _start_attempt(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path, name, attempt = payload["stepPath"], payload["stepId"], payload["attempt"]
        scope = self._scopes.get(payload.get("branchPath") or "")
        if scope is None:
            report("I17", f"{path!r} was started in a branch that isn't open")
            return
        step = scope.steps.setdefault(name, _Step())
        if step.path and step.path != path:
            report("I18", f"{path!r} was started before visit {step.path!r} was completed")
        elif step.is_running:
            report("I17", f"attempt {attempt} of {path!r} was started while another one is open")
        elif attempt != step.attempt + 1 or (step.retry is None) != (attempt == 1):
            report("I17", f"attempt {attempt} of {path!r} wasn't due after {step.attempt}")
        elif step.retry is not None and fact.at < step.retry[1]:
            report("I24", f"attempt {attempt} of {path!r} was started before {step.retry[1]} µs")
        self._check_visit(scope, step, fact, report)
        step.path, step.attempt, step.is_running, step.has_session = path, attempt, True, False
        step.uses, step.session_id, step.retry = payload["uses"], payload.get("sessionId"), None
        self._visits[path] = (scope, name)

    def _check_visit(self, scope: _Scope, step: _Step, fact: Fact, report: Report) -> None:
        path, name, visit = (fact.payload[n] for n in ("stepPath", "stepId", "visitIndex"))
        prefix = f"{scope.path}.{name}" if scope.path else name
        if path != f"{prefix}.visit[{visit}]" and (path, visit) != (prefix, 0):
            report("I18", f"{path!r} is no path of visit {visit} of step {name!r}")
        elif visit != step.completed:
            report("I18", f"visit {visit} of {prefix!r} after {step.completed} completed ones")
        if scope.document is None:
            return
        if scope.document.kinds.get(name) != fact.payload["uses"]:
            report("I19", f"the document has no {fact.payload['uses']} step {name!r} there")
        elif visit >= scope.document.visits_max.get(name, visit + 1):
            report("I18", f"visit {visit} of {prefix!r} is over its maxVisits")
        if step.attempt == 0 and _is_chosen(scope, name) is False:
            report("I19", f"{path!r} was started, but no decision chose it")

    def _skip(self, fact: Fact, report: Report) -> None:
        path, name = fact.payload["stepPath"], fact.payload["stepId"]
        scope = self._scopes.get(_scope_path(path, name))
        if scope is None:
            report("I17", f"{path!r} was skipped in a branch that isn't open")
            return
        step = scope.steps.setdefault(name, _Step())
        if step.path:
            report("I18", f"{path!r} was skipped while its visit is open")
        if fact.payload["because"] == "not_chosen" and _is_chosen(scope, name):
            report("I19", f"{path!r} was skipped, but a decision chose it")
        step.chosen = None

    def _complete(self, fact: Fact, report: Report) -> None:
        step = self._close_attempt(fact, report)
        path, chosen = fact.payload["stepPath"], fact.payload.get("chosen")
        if step is None:
            return
        if (chosen is not None) != (step.uses == "decision"):
            report("I19", f"{path!r} is a {step.uses} step and chose {chosen!r}")
        scope, name = self._visits.pop(path)
        if scope.document is not None and chosen is not None:
            if chosen not in scope.document.targets.get(name, ()):
                report("I19", f"decision {path!r} chose {chosen!r}, which is no target of it")
        self._close_group(path, "Completed", step, report)
        scope.steps[name] = _Step(completed=step.completed + 1, chosen=chosen)
        if not scope.path:
            self._outcomes.pop(path, None)

    def _fail(self, fact: Fact, report: Report) -> None:
        step = self._close_attempt(fact, report)
        if step is not None:
            step.is_running = False
            self._close_group(fact.payload["stepPath"], "Failed", step, report)

    def _close_attempt(self, fact: Fact, report: Report) -> _Step | None:
        """Returns the step whose running attempt an event ends; None: there is none."""
        payload = fact.payload
        path, attempt = payload["stepPath"], payload["attempt"]
        step = self._find_visit(path)
        if step is None or not step.is_running or step.attempt != attempt:
            report("I17", f"{fact.type} of attempt {attempt} of {path!r}, which isn't open")
            return None
        if payload["visitIndex"] != step.completed:
            report("I18", f"{fact.type} of visit {payload['visitIndex']}, not {step.completed}")
        if step.session_id in self.sessions.open:
            report("I17", f"{path!r} ended while its session {step.session_id!r} is open")
        elif step.session_id is not None and not step.has_session:
            report("I17", f"{path!r} ended without its session {step.session_id!r}")
        return step

    def _schedule_retry(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        step = self._find_visit(payload["stepPath"])
        is_due = step is not None and not step.is_running and step.retry is None
        if step is None or not is_due or payload["nextAttempt"] != step.attempt + 1:
            report("I17", f"a retry of {payload['stepPath']!r} was scheduled without a failure")
            return
        step.retry = (payload["nextAttempt"], payload["dueAt"])

    # -- groups and branches ---------------------------------------------------------------

    def _start_group(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path = payload["stepPath"]
        step = self._find_visit(path)
        is_running = step is not None and step.is_running and step.uses == "parallel"
        if step is None or not is_running or step.attempt != payload["attempt"]:
            report("I17", f"group {path!r} was started without its step's attempt")
            return
        if path in self._groups:
            report("I17", f"group {path!r} was started twice")
        scope, name = self._visits[path]
        inner = scope.document.inner.get(name) if scope.document is not None else None
        self._groups[path] = _Group(payload["attempt"], payload["itemKeys"], inner)

    def _start_branch(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path, branch, index = payload["stepPath"], payload["branchPath"], payload["branchIndex"]
        group = self._groups.get(path)
        if group is None or group.outcome or not branch.startswith(path):
            report("I17", f"branch {branch!r} was started in a group that isn't open")
            return
        # A retried group leaves out the branches that an earlier attempt completed.
        is_next = index == group.last_index + 1 or (group.attempt > 1 and index > group.last_index)
        if not is_next or index >= len(group.keys) or branch in self._scopes:
            report("I18", f"branch {index} of {path!r} was started after {group.last_index}")
        elif group.keys[index] != payload["itemKey"]:
            report("I18", f"branch {branch!r} has the key of another item")
        group.last_index = max(index, group.last_index)
        group.live[branch] = index
        self._scopes[branch] = _Scope(branch, group.inner)

    def _end_branch(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        branch = payload["branchPath"]
        group = self._groups.get(payload["stepPath"])
        if group is None or group.live.get(branch) != payload["branchIndex"]:
            report("I17", f"{fact.type} of {branch!r}, which isn't open")
            return
        del group.live[branch]
        for step in self._scopes.pop(branch).steps.values():
            if step.is_running or (step.path and fact.type == "ParallelBranchCompleted"):
                report("I17", f"{fact.type} of {branch!r} while {step.path!r} is open")
            self._visits.pop(step.path, None)

    def _end_group(self, fact: Fact, report: Report) -> None:
        path = fact.payload["stepPath"]
        group = self._groups.get(path)
        if group is None or group.outcome or group.attempt != fact.payload["attempt"]:
            report("I17", f"{fact.type} of {path!r}, which isn't open")
            return
        if group.live:
            report("I17", f"{fact.type} of {path!r} while {len(group.live)} branches are open")
        group.outcome = fact.type.removeprefix("ParallelGroup")

    def _close_group(self, path: str, outcome: str, step: _Step, report: Report) -> None:
        """Checks that a parallel step ends after its group, and forgets the group."""
        group = self._groups.pop(path, None)
        ended = group.outcome if group is not None else ""
        # What can't be made into items fails before there is a group; an output that doesn't fit
        # fails after the group has completed.
        if outcome == "Completed" and step.uses == "parallel" and ended != "Completed":
            report("I17", f"{path!r} completed, but its group didn't")
        elif outcome == "Failed" and group is not None and not ended:
            report("I17", f"{path!r} failed while its group is open")

    # -- the run ---------------------------------------------------------------------------

    def _cancel(self, fact: Fact, report: Report) -> None:
        if self._is_cancelled:
            report("I28", "the run's cancellation was requested twice")
        self._is_cancelled = True

    def _interrupt(self, fact: Fact, report: Report) -> None:
        session, call = fact.payload["sessionId"], fact.payload["callId"]
        if not self.sessions.is_unknown(session, call):
            report("I16", f"the run was interrupted by call {call!r}, which isn't unknown")

    def _end(self, fact: Fact, report: Report) -> None:
        running = [path for path in self._visits if (s := self._find_visit(path)) and s.is_running]
        is_open = [
            *(f"session {name!r}" for name in self.sessions.open),
            *(f"step {path!r}" for path in running),
            *(f"group {path!r}" for path in self._groups),
            *(f"branch {path!r}" for path in self._scopes if path),
        ]
        if not is_open and fact.type == "RunCompleted" and self._visits:
            is_open = [f"failed step {path!r}" for path in self._visits]
        if is_open:
            listed = ", ".join(is_open[:5])
            report("I20", f"{fact.type} while {len(is_open)} things are open: {listed}")
        if fact.type == "RunCancelled" and not self._is_cancelled:
            report("I28", "the run was cancelled without a request")
        self.is_ended = True


def _is_chosen(scope: _Scope, name: str) -> bool | None:
    """Says whether a decision's latest choice is the step; None: no decision has a say in it."""
    choosers = scope.document.choosers.get(name) if scope.document is not None else None
    if not choosers:
        return None
    return any(d in scope.steps and scope.steps[d].chosen == name for d in choosers)


def _scope_path(path: str, step_id: str) -> str:
    """Returns the path of the scope in which a step has this path."""
    base = path
    if path.endswith("]") and (found := list(_VISIT.finditer(path))):
        last = found[-1]
        base = path[: last.start()] if last.end() == len(path) else path
    return base.removesuffix(step_id).removesuffix(".")


def _root_path(path: str) -> str:
    """Returns the path of the top-level step that a step's path lies in."""
    match = _ROOT_STEP.match(path)
    return match[0] if match is not None else path


_HANDLERS: dict[str, Callable[[RunRules, Fact, Report], None]] = {
    "StepAttemptStarted": RunRules._start_attempt,
    "StepSkipped": RunRules._skip,
    "StepCompleted": RunRules._complete,
    "StepFailed": RunRules._fail,
    "StepRetryScheduled": RunRules._schedule_retry,
    "ParallelGroupStarted": RunRules._start_group,
    "ParallelBranchScheduled": RunRules._start_branch,
    "ParallelBranchCompleted": RunRules._end_branch,
    "ParallelBranchFailed": RunRules._end_branch,
    "ParallelGroupCompleted": RunRules._end_group,
    "ParallelGroupFailed": RunRules._end_group,
    "CancellationRequested": RunRules._cancel,
    "RunInterrupted": RunRules._interrupt,
}
