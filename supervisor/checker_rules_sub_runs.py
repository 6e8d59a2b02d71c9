"""The invariant of sub-runs, I21: asked for, admitted, ended, settled, answered; in this order.

`SubRunRules` checks what stands in the log of the run that asks, `SubRunLinks` what stands in two
logs: a request and the admission that it leads to, an end and the settlement that tells of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from planaria.protocol.ids import sub_run_id

from .checker_facts import Fact, Report, pack_value

# The tools of an orchestrator whose outcome the supervisor itself records.
SUB_RUN_TOOLS = frozenset({"plan_workflow", "run_workflow", "start_workflow"})
_STATUS = {"RunCompleted": "completed", "RunFailed": "failed", "RunCancelled": "cancelled"}

Place = tuple[str | int, ...]  # (call id) or (step path, attempt)


@dataclass(slots=True)
class _SubRun:
    id: str
    is_awaited: bool
    is_plan_only: bool
    is_settled: bool = False
    status: str = ""
    output: bytes = b""  # digest, once it has settled


@dataclass(slots=True)
class SubRunRules:
    """Checks the sub-runs of one run; keeps the open ones, and those whose asker is open."""

    run_id: str
    open: dict[str, _SubRun] = field(default_factory=dict)
    _by_place: dict[str, _SubRun] = field(default_factory=dict)  # call id or step path

    def request(self, fact: Fact, place: Place | None, report: Report) -> None:
        """Takes a request; `place` is the open call or attempt that it names, None: there is none.

        The id has to follow from that place, so that whoever asks again asks for the same run.
        """
        payload = fact.payload
        name = payload["subRunId"]
        if place is None:
            report("I21", f"sub-run {name!r} was requested by no open call or step")
            return
        if str(place[0]) in self._by_place:
            report("I21", f"a sub-run of {place[0]!r} was requested twice")
            return
        if name != sub_run_id(self.run_id, *place):
            report("I21", f"sub-run {name!r} has not the id of its place {place!r}")
        made = _SubRun(name, payload["wait"], bool(payload.get("planOnly")))
        self.open[name] = self._by_place[str(place[0])] = made

    def settle(self, fact: Fact, report: Report) -> None:
        """Takes the outcome of a sub-run as its parent has it."""
        payload = fact.payload
        sub_run = self.open.pop(payload["subRunId"], None)
        if sub_run is None:
            report("I21", f"sub-run {payload['subRunId']!r} was settled, but it isn't open here")
            return
        sub_run.is_settled, sub_run.status = True, payload["status"]
        sub_run.output = _digest_field(payload, "output")

    def check_step_end(self, fact: Fact, report: Report) -> None:
        """Checks the end of a `workflow.call` step against what its sub-run came to."""
        path = fact.payload["stepPath"]
        sub_run = self._by_place.pop(path, None)
        has_completed = fact.type == "StepCompleted"
        if sub_run is None:
            if has_completed:
                report("I21", f"{path!r} completed without a sub-run")
        elif sub_run.is_awaited and not sub_run.is_settled:
            report("I21", f"{path!r} ended before sub-run {sub_run.id!r} was settled")
        elif sub_run.is_awaited and has_completed:
            if sub_run.status != "completed":
                report("I21", f"{path!r} completed, but sub-run {sub_run.id!r} {sub_run.status}")
            elif sub_run.output != _digest_field(fact.payload, "output"):
                report("I21", f"{path!r} has another output than sub-run {sub_run.id!r}")

    def check_answer(self, fact: Fact, report: Report) -> None:
        """Checks the outcome of an orchestrator's call that asked for a sub-run."""
        call, result = fact.payload["callId"], fact.payload.get("result")
        sub_run = self._by_place.pop(call, None)
        if fact.type != "harness.tool_call.succeeded":
            return  # its session ended before the sub-run
        if fact.incarnation is not None:
            report(
                "I21", f"call {call!r} was answered by a process; its sub-run is the supervisor's"
            )
        elif sub_run is None:
            if not isinstance(result, dict) or result.get("status") != "refused":
                report("I21", f"call {call!r} was answered, but it asked for no sub-run")
        elif not sub_run.is_settled:
            report("I21", f"call {call!r} was answered before sub-run {sub_run.id!r} was settled")
        elif isinstance(result, dict) and not _is_outcome(sub_run, result):
            report("I21", f"call {call!r} has another outcome than sub-run {sub_run.id!r}")

    def list_awaited(self) -> list[str]:
        """Returns the open sub-runs that the run waits for, as texts."""
        return [f"sub-run {name!r}" for name, sub in self.open.items() if sub.is_awaited]


@dataclass(slots=True)
class _Link:
    parent: str
    facts: tuple[Any, ...]  # workflow, call, step path, whether it only plans
    is_admitted: bool = False
    is_settled: bool = False
    calls: int = 0  # reserved by it and by what it has started
    outcome: tuple[str, bytes, bytes] | None = None  # status, digests of output and error


class SubRunLinks:
    """Checks sub-runs over the logs of parent and child; keeps a line for each sub-run."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}

    def take(self, fact: Fact, report: Report) -> None:
        """Takes an event of any run."""
        kind, payload = fact.type, fact.payload
        if kind == "SubRunRequested":
            facts = tuple(payload.get(n) for n in ("workflowId", "callId", "stepPath"))
            made = _Link(fact.run_id, (*facts, bool(payload.get("planOnly"))))
            self._links.setdefault(payload["subRunId"], made)
        elif kind == "RunAdmitted":
            self._admit(fact, report)
        elif kind == "SubRunSettled":
            self._settle(fact, report)
            self._count_calls(fact.run_id, payload.get("spent"))
        elif kind == "BudgetReserved":
            self._count_calls(fact.run_id, payload)
        elif kind in _STATUS and (link := self._links.get(fact.run_id)) is not None:
            digests = (_digest_field(payload, "output"), _digest_field(payload, "error"))
            link.outcome = (_STATUS[kind], *digests)

    def finish(self, report: Callable[[str, str], None], is_closed: Callable[[str], bool]) -> None:
        """Reports (run, message) of what is missing at the end of a log (a commit's end)."""
        for name, link in self._links.items():
            if not link.is_admitted:
                report(link.parent, f"sub-run {name!r} was requested and never admitted")
            elif is_closed(name) and not link.is_settled and not is_closed(link.parent):
                report(link.parent, f"sub-run {name!r} has ended and isn't settled")

    def _count_calls(self, run_id: str, amount: Any) -> None:
        link = self._links.get(run_id)
        if link is not None and isinstance(amount, dict) and type(amount.get("calls")) is int:
            link.calls += amount["calls"]

    def _admit(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        parent, link = payload.get("parentRunId"), self._links.get(fact.run_id)
        if link is None:
            if parent is not None:
                report("I21", f"it was admitted, but run {parent!r} hasn't requested it before")
            return
        link.is_admitted = True
        names = ("workflowId", "parentCallId", "parentStepPath")
        facts = (*(payload.get(n) for n in names), bool(payload.get("planOnly")))
        if parent != link.parent or facts != link.facts:
            report("I21", f"its admission isn't the one that run {link.parent!r} has requested")

    def _settle(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        link = self._links.get(payload["subRunId"])
        if link is None or link.parent != fact.run_id or link.is_settled:
            return  # SubRunRules has reported it
        link.is_settled = True
        spent = payload.get("spent")
        if isinstance(spent, dict) and spent.get("calls") != link.calls:
            name, calls = payload["subRunId"], spent.get("calls")
            report(
                "I29", f"sub-run {name!r} reserved {link.calls} calls and was settled at {calls}"
            )
        if link.outcome is None:
            report("I21", f"sub-run {payload['subRunId']!r} was settled before it had ended")
            return
        status, output, error = link.outcome
        is_same = payload["status"] == status and _digest_field(payload, "output") == output
        if status == "failed":
            is_same = is_same and _digest_field(payload, "error") == error
        if not is_same:
            report("I21", f"sub-run {payload['subRunId']!r} was settled as what it hasn't ended as")


def _is_outcome(sub_run: _SubRun, result: dict[str, Any]) -> bool:
    """Says whether a call's result tells what its sub-run came to."""
    if sub_run.is_plan_only and sub_run.status == "completed":
        return isinstance(result.get("workflowVersionId"), str)
    if (result.get("subRunId"), result.get("status")) != (sub_run.id, sub_run.status):
        return False
    if sub_run.status != "completed" or _is_ref(sub_run.output):
        return True
    return sub_run.output == _digest_field(result, "output")


def _is_ref(digest: bytes) -> bool:
    return digest.startswith(b"ref:")


def _digest_field(payload: dict[str, Any], name: str) -> bytes:
    """Returns what a value field can be compared by: a digest of it, or the blob that it is in."""
    if (ref := payload.get(f"{name}Ref")) is not None:
        return f"ref:{ref['sha256']}".encode()
    return sha256(pack_value(payload.get(name))).digest()
