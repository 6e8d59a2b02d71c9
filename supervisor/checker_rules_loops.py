"""The invariants of outer loops, I22 and I23, over the logs of all their cycles' runs."""

from dataclasses import dataclass
from typing import Any

from planaria.protocol.ids import derive_id

from .checker_facts import Fact, Report

_TERMINAL = frozenset({"RunCompleted", "RunFailed", "RunCancelled"})
_CHANGES = _TERMINAL | {"RunReopened"}
_PASSED_ON = frozenset({"cancelled", "timeout", "capability_drift"})  # causes that burn no cycle


@dataclass(slots=True)
class _Loop:
    """A loop of which OuterLoopStarted may be missing: older manifests have none."""

    is_started: bool = False
    cycles_max: int | None = None
    input_hash: str | None = None
    definition_hash: str | None = None
    completed: int = 0
    openings: int = 0  # runs of the open cycle
    pending_run: str | None = None  # the newest of them
    has_ended: bool = False  # that run
    is_passed_on: bool = False  # it ended in a way that supervise isn't asked about
    is_done: bool = False


class LoopRules:
    """Checks all outer loops; keeps a line of each."""

    def __init__(self) -> None:
        self._loops: dict[str, _Loop] = {}
        self._runs: dict[str, tuple[str, int]] = {}  # pending runs -> loop, cycle

    def take(self, fact: Fact, report: Report) -> None:
        """Takes an event of any run, the system's too."""
        kind, payload = fact.type, fact.payload
        if kind == "OuterLoopStarted":
            self._start(payload, report)
        elif kind == "RunPruned":
            self._loops.pop(payload.get("outerLoopId", ""), None)  # it went as a whole
        elif kind == "RunAdmitted":
            if "outerLoopId" in payload:
                self._admit(fact, report)
        elif kind == "OuterLoopCycleCompleted":
            self._complete(fact, report)
        elif fact.run_id in self._runs and kind in _CHANGES:
            loop = self._loops[self._runs[fact.run_id][0]]
            if kind in _TERMINAL:
                cause = (payload.get("error") or {}).get("causeCode")
                loop.has_ended = True
                loop.is_passed_on = kind == "RunCancelled" or cause in _PASSED_ON
            else:
                loop.has_ended = loop.is_passed_on = False

    def _start(self, payload: dict[str, Any], report: Report) -> None:
        name = payload["outerLoopId"]
        loop = self._loops.setdefault(name, _Loop())
        if loop.is_started or loop.openings or loop.completed:
            report("I23", f"outer loop {name!r} was started twice, or after its first cycle")
            return
        loop.is_started = True
        loop.cycles_max, loop.input_hash = payload["maxCycles"], payload["inputHash"]

    def _admit(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        name, number = payload["outerLoopId"], payload.get("cycleNumber") or 0
        loop = self._loops.setdefault(name, _Loop())
        if number != loop.completed + 1:
            report("I22", f"cycle {number} of {name!r} was begun after {loop.completed} cycles")
        elif loop.cycles_max is not None and number > loop.cycles_max:
            report("I22", f"cycle {number} of {name!r} was begun; at most {loop.cycles_max} may be")
        elif loop.is_done:
            report("I22", f"cycle {number} of {name!r} was begun after one that is done")
        elif loop.pending_run is not None and not loop.is_passed_on:
            report("I22", f"cycle {number} of {name!r} was begun beside run {loop.pending_run!r}")
        elif fact.run_id != derive_id("run_", name, number, loop.openings):
            report("I22", f"its id isn't that of run {loop.openings} of cycle {number}")
        for what, value in (
            ("input_hash", payload["inputHash"]),
            ("definition_hash", payload["workflowDefinitionHash"]),
        ):
            known = getattr(loop, what)
            if known is not None and known != value:
                report("I23", f"outer loop {name!r} has another {what}, {value!r}, than before")
            setattr(loop, what, known or value)
        loop.openings += 1
        self._runs.pop(loop.pending_run or "", None)
        loop.pending_run, loop.has_ended, loop.is_passed_on = fact.run_id, False, False
        self._runs[fact.run_id] = (name, loop.completed + 1)

    def _complete(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        name, number = payload["outerLoopId"], payload["cycleNumber"]
        own = self._runs.get(fact.run_id)
        loop = self._loops.get(name)
        if loop is None or own != (name, number) or loop.pending_run != fact.run_id:
            report(
                "I22", f"cycle {number} of {name!r} was completed; it isn't this run's, or again"
            )
            return
        if not loop.has_ended or loop.is_passed_on:
            report("I22", f"cycle {number} of {name!r} was completed before its run, or without it")
        said = payload["supervise"].get("kind")
        has_output = "output" in payload or "outputRef" in payload
        if said not in ("done", "continue") or has_output != (said == "done"):
            report("I22", f"cycle {number} of {name!r} was completed with {str(said)[:40]!r}")
        loop.completed, loop.openings, loop.pending_run = number, 0, None
        loop.is_done = said == "done"
        del self._runs[fact.run_id]
