"""The invariants of a run's steps, visits, branches and groups: I17 to I19 and I24."""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from .checker_documents import ScopeDocument
from .checker_facts import Fact, Report
from .checker_rules_calls import EffectOutcomes
from .checker_rules_sub_runs import SubRunRules
from .checker_rules_waits import WaitRules

_VISIT = re.compile(r"\.visit\[\d+\]")
_ROOT_STEP = re.compile(r"[^.\[@]+(\.visit\[\d+\])?")


@dataclass(slots=True)
class Step:
    """One step of an open scope: how many of its visits are completed, and the open one.

    `goes_on` says that the run was opened again, which gives a failed visit another attempt.
    """

    completed: int = 0
    path: str = ""  # of the open visit
    attempt: int = 0  # of the open visit, the newest
    is_running: bool = False
    uses: str = ""
    session_id: str | None = None
    has_session: bool = False
    retry: tuple[int, int] | None = None  # (next attempt, due) as scheduled
    chosen: str | None = None
    fixes: int = 0  # attempts of a fixer, since the run was opened last
    is_inherited: bool = False
    goes_on: bool = False


@dataclass(slots=True)
class Scope:
    path: str
    document: ScopeDocument | None
    steps: dict[str, Step] = field(default_factory=dict)


@dataclass(slots=True)
class Group:
    attempt: int
    keys: list[str]
    inner: ScopeDocument | None
    last_index: int = -1
    live: dict[str, int] = field(default_factory=dict)  # branch path -> index
    outcome: str = ""  # Completed | Failed


class StepRules:
    """Checks the steps of one run; keeps what is open of it, and a number per step of a scope."""

    def __init__(self, open_sessions: Container[str | None], sub_runs: SubRunRules) -> None:
        self.outcomes: dict[str, EffectOutcomes] = {}  # by the path of a top-level step
        self.is_forked = False
        self.waits: WaitRules | None = None
        self._open_sessions = open_sessions
        self._sub_runs = sub_runs
        self._scopes = {"": Scope("", None)}
        self._visits: dict[str, tuple[Scope, str]] = {}  # open visits: path -> scope, step id
        self._groups: dict[str, Group] = {}

    def take(self, fact: Fact, report: Report) -> None:
        """Checks an event of a step, branch or group, and applies it."""
        if (handle := _HANDLERS.get(fact.type)) is not None:
            handle(self, fact, report)

    def open_root(self, document: ScopeDocument | None) -> None:
        """Begins the run's steps, or those before them, with nothing done."""
        self._scopes = {"": Scope("", document)}
        self._visits.clear()

    def reopen(self) -> None:
        """Gives the failed steps another attempt: the run goes on after its end."""
        for step in self._scopes[""].steps.values():
            if step.path and not step.is_running:
                step.goes_on, step.retry, step.fixes = True, None, 0

    def has_completed(self, name: str) -> bool:
        """Says whether a step of the run's own scope has completed a visit."""
        step = self._scopes[""].steps.get(name)
        return step is not None and step.completed > 0

    def list_open(self) -> list[str]:
        """Returns what is running or open, as texts."""
        running = [path for path in self._visits if (s := self.find(path)) and s.is_running]
        return [
            *(f"step {path!r}" for path in running),
            *(f"group {path!r}" for path in self._groups),
            *(f"branch {path!r}" for path in self._scopes if path),
        ]

    def list_unfinished(self) -> list[str]:
        """Returns the paths of visits that were begun and haven't completed."""
        return list(self._visits)

    def find_outcomes(self, step_path: str) -> EffectOutcomes:
        """Returns what is kept of effects for the top-level step of a path."""
        return self.outcomes.setdefault(_root_path(step_path), {})

    def is_running(self, path: str, uses: str) -> bool:
        """Says whether an attempt of a step of this kind is open."""
        step = self.find(path)
        return step is not None and step.is_running and step.uses == uses

    def abandon(self, path: str) -> None:
        """Ends the attempt of a step that only waited: its scope was stopped."""
        step = self.find(path)
        if step is not None:
            step.is_running = False

    def find(self, path: str) -> Step | None:
        """Returns the step that has an open visit with this path, or None."""
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
        step = scope.steps.setdefault(name, Step())
        if step.path and step.path != path:
            report("I18", f"{path!r} was started before visit {step.path!r} was completed")
        elif step.is_running:
            report("I17", f"attempt {attempt} of {path!r} was started while another one is open")
        elif attempt != step.attempt + 1 or not _is_due(step, payload):
            report("I17", f"attempt {attempt} of {path!r} wasn't due after {step.attempt}")
        elif step.retry is not None and fact.at < step.retry[1]:
            report("I24", f"attempt {attempt} of {path!r} was started before {step.retry[1]} µs")
        self._check_visit(scope, step, fact, report)
        self._check_kind_of_attempt(scope, step, fact, report)
        step.path, step.attempt, step.is_running, step.has_session = path, attempt, True, False
        step.uses, step.session_id, step.retry = payload["uses"], payload.get("sessionId"), None
        step.fixes = payload.get("fixAttempt") or 0
        step.is_inherited, step.goes_on = bool(payload.get("isInherited")), False
        self._visits[path] = (scope, name)

    def _check_kind_of_attempt(self, scope: Scope, step: Step, fact: Fact, report: Report) -> None:
        """Fixes count from 1 and have a fixer; what is inherited has no session."""
        payload = fact.payload
        path, name, fix = payload["stepPath"], payload["stepId"], payload.get("fixAttempt")
        if fix is not None:
            if fix != step.fixes + 1:
                report("I17", f"fix {fix} of {path!r} was started after {step.fixes}")
            if scope.document is not None:
                most = scope.document.fixes_max.get(name, 0)
                if fix > most:
                    report("I17", f"fix {fix} of {path!r} was started; at most {most} are allowed")
        if payload.get("isInherited"):
            if not self.is_forked:
                report("I17", f"{path!r} is inherited in a run that was forked from none")
            if payload.get("sessionId") is not None:
                report("I17", f"{path!r} is inherited and has a session")

    def _check_visit(self, scope: Scope, step: Step, fact: Fact, report: Report) -> None:
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
        is_unchosen = step.attempt == 0 and _is_chosen(scope, name) is False
        # A decision that goes back to a step lets it run, whatever the others had chosen.
        if is_unchosen and not any(other.chosen == name for other in scope.steps.values()):
            report("I19", f"{path!r} was started, but no decision chose it")

    def _skip(self, fact: Fact, report: Report) -> None:
        path, name = fact.payload["stepPath"], fact.payload["stepId"]
        scope = self._scopes.get(_scope_path(path, name))
        if scope is None:
            report("I17", f"{path!r} was skipped in a branch that isn't open")
            return
        step = scope.steps.setdefault(name, Step())
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
        if not step.is_inherited:
            self._close_group(path, "Completed", step, report)
        scope.steps[name] = Step(completed=step.completed + 1, chosen=chosen)
        if not scope.path:
            self.outcomes.pop(path, None)

    def _fail(self, fact: Fact, report: Report) -> None:
        step = self._close_attempt(fact, report)
        if step is not None:
            step.is_running = False
            self._close_group(fact.payload["stepPath"], "Failed", step, report)

    def _close_attempt(self, fact: Fact, report: Report) -> Step | None:
        """Returns the step whose running attempt an event ends; None: there is none."""
        payload = fact.payload
        path, attempt = payload["stepPath"], payload["attempt"]
        step = self.find(path)
        if step is None or not step.is_running or step.attempt != attempt:
            report("I17", f"{fact.type} of attempt {attempt} of {path!r}, which isn't open")
            return None
        if payload["visitIndex"] != step.completed:
            report("I18", f"{fact.type} of visit {payload['visitIndex']}, not {step.completed}")
        if step.session_id in self._open_sessions:
            report("I17", f"{path!r} ended while its session {step.session_id!r} is open")
        elif step.session_id is not None and not step.has_session:
            report("I17", f"{path!r} ended without its session {step.session_id!r}")
        if step.uses == "workflow.call" and not step.is_inherited:
            self._sub_runs.check_step_end(fact, report)
        if step.uses in ("approval", "wait") and not step.is_inherited and self.waits is not None:
            self.waits.check_step_end(fact, report)
        return step

    def _schedule_retry(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        step = self.find(payload["stepPath"])
        is_due = step is not None and not step.is_running and step.retry is None and not step.fixes
        if step is None or not is_due or payload["nextAttempt"] != step.attempt + 1:
            report("I17", f"a retry of {payload['stepPath']!r} was scheduled without a failure")
            return
        step.retry = (payload["nextAttempt"], payload["dueAt"])

    # -- groups and branches ---------------------------------------------------------------

    def _start_group(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path = payload["stepPath"]
        step = self.find(path)
        is_running = step is not None and step.is_running and step.uses == "parallel"
        if step is None or not is_running or step.attempt != payload["attempt"]:
            report("I17", f"group {path!r} was started without its step's attempt")
            return
        if path in self._groups:
            report("I17", f"group {path!r} was started twice")
        scope, name = self._visits[path]
        inner = scope.document.inner.get(name) if scope.document is not None else None
        self._groups[path] = Group(payload["attempt"], payload["itemKeys"], inner)

    def _start_branch(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path, branch, index = payload["stepPath"], payload["branchPath"], payload["branchIndex"]
        group = self._groups.get(path)
        if group is None or group.outcome or not branch.startswith(path):
            report("I17", f"branch {branch!r} was started in a group that isn't open")
            return
        # A group leaves out the branches that an earlier attempt, or the run that this one was
        # forked from, has completed.
        may_skip = group.attempt > 1 or self.is_forked
        is_next = index == group.last_index + 1 or (may_skip and index > group.last_index)
        if not is_next or index >= len(group.keys) or branch in self._scopes:
            report("I18", f"branch {index} of {path!r} was started after {group.last_index}")
        elif group.keys[index] != payload["itemKey"]:
            report("I18", f"branch {branch!r} has the key of another item")
        group.last_index = max(index, group.last_index)
        group.live[branch] = index
        self._scopes[branch] = Scope(branch, group.inner)

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

    def _close_group(self, path: str, outcome: str, step: Step, report: Report) -> None:
        """Checks that a parallel step ends after its group, and forgets the group."""
        group = self._groups.pop(path, None)
        ended = group.outcome if group is not None else ""
        # What can't be made into items fails before there is a group; an output that doesn't fit
        # fails after the group has completed.
        if outcome == "Completed" and step.uses == "parallel" and ended != "Completed":
            report("I17", f"{path!r} completed, but its group didn't")
        elif outcome == "Failed" and group is not None and not ended:
            report("I17", f"{path!r} failed while its group is open")


def _is_due(step: Step, payload: dict[str, Any]) -> bool:
    """Says whether a step may have another attempt: its first, a retry, a fix, or a new opening."""
    if payload.get("fixAttempt") is not None:
        return step.attempt > 0 and step.retry is None
    return step.goes_on or (step.retry is None) == (step.attempt == 0)


def _is_chosen(scope: Scope, name: str) -> bool | None:
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


_HANDLERS: dict[str, Callable[[StepRules, Fact, Report], None]] = {
    "StepAttemptStarted": StepRules._start_attempt,
    "StepSkipped": StepRules._skip,
    "StepCompleted": StepRules._complete,
    "StepFailed": StepRules._fail,
    "StepRetryScheduled": StepRules._schedule_retry,
    "ParallelGroupStarted": StepRules._start_group,
    "ParallelBranchScheduled": StepRules._start_branch,
    "ParallelBranchCompleted": StepRules._end_branch,
    "ParallelBranchFailed": StepRules._end_branch,
    "ParallelGroupCompleted": StepRules._end_group,
    "ParallelGroupFailed": StepRules._end_group,
}
