"""The manifests of outer loops against the events that they follow from, and made anew from these.

The derivation shares no code with the kernel, so that a mistake there can't hide itself: only the
form of the file's bytes (`dump_manifest`) is the protocol's.

What the kernel may have left when it was killed is no finding: the id of a run that it was about
to admit, and a manifest from before the last cycle was completed. It goes on from either.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.protocol.errors import RunFailedError
from planaria.protocol.ids import check_id, derive_id
from planaria.protocol.outer_loops import dump_manifest, parse_manifest

from .checker_facts import Fact
from .data_directory import replace_file
from .ordinary_files import read_ordinary_file

MANIFEST_BYTES_MAX = 256 << 20  # an output inline has at most 256 KiB, and cycles are few
LOOKS_MAX = 5  # how often a manifest is looked at that a living supervisor is moving
_STATUS = {"RunCompleted": "completed", "RunFailed": "failed", "RunCancelled": "cancelled"}


@dataclass(slots=True)
class _Run:
    """What the manifest will say of a cycle's run, if its cycle ends with it."""

    loop_id: str
    version_id: str = ""
    status: str = ""
    output: dict[str, Any] = field(default_factory=dict)  # {"output": …} or {"outputRef": …}


@dataclass(slots=True)
class _Loop:
    """One loop as its events have it; `started` is OuterLoopStarted, None in older logs."""

    id: str
    started: dict[str, Any] | None = None
    cycles: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    pending_run: str | None = None
    openings: int = 0  # runs of the open cycle
    has_live_run: bool = False  # the newest of them hasn't ended


class LoopHistories:
    """What the events say of every outer loop; they come in the order of the log."""

    def __init__(self) -> None:
        self.loops: dict[str, _Loop] = {}
        self.pruned: set[str] = set()  # loops of which a manifest may have been left
        self._runs: dict[str, _Run] = {}

    def take(self, fact: Fact) -> None:
        """Takes the next event; its payload holds what its type has."""
        kind, payload = fact.type, fact.payload
        run = self._runs.get(fact.run_id)
        if kind == "OuterLoopStarted":
            self._find(payload["outerLoopId"]).started = payload
        elif kind == "RunPruned":
            if "outerLoopId" in payload:
                self.pruned.add(payload["outerLoopId"])
                self.loops.pop(payload["outerLoopId"], None)
        elif kind == "RunAdmitted" and "outerLoopId" in payload:
            run = self._runs[fact.run_id] = _Run(payload["outerLoopId"])
            if "definitionRef" in payload:
                run.version_id = payload["definitionRef"]["sha256"]  # until there is a version
            loop = self._find(run.loop_id)
            loop.pending_run, loop.openings = fact.run_id, loop.openings + 1
            loop.has_live_run = True
        elif run is None:
            return
        elif kind == "WorkflowVersionRegistered":
            run.version_id = payload["workflowVersionId"]
        elif kind in _STATUS:
            run.status = _STATUS[kind]
            run.output = _copy_output(payload) if kind == "RunCompleted" else {"output": None}
            self._note_run(fact.run_id, run, is_live=False)
        elif kind == "RunReopened":
            self._note_run(fact.run_id, run, is_live=True)
        elif kind == "OuterLoopCycleCompleted":
            self._complete(fact, run)

    def _find(self, loop_id: str) -> _Loop:
        return self.loops.setdefault(loop_id, _Loop(loop_id))

    def _note_run(self, run_id: str, run: _Run, *, is_live: bool) -> None:
        loop = self._find(run.loop_id)
        if loop.pending_run == run_id:
            loop.has_live_run = is_live

    def _complete(self, fact: Fact, run: _Run) -> None:
        loop, said = self._find(run.loop_id), fact.payload["supervise"]
        if loop.pending_run != fact.run_id:
            return  # the checker reports it
        cycle: dict[str, Any] = {
            "cycleNumber": len(loop.cycles) + 1,
            "runId": fact.run_id,
            "workflowVersionId": run.version_id,
            "status": run.status,
            **run.output,
        }
        if said.get("promptNote") is not None:
            cycle["summary"] = said["promptNote"]
        loop.cycles.append(cycle)
        loop.pending_run, loop.openings = None, 0
        del self._runs[fact.run_id]
        if said.get("kind") == "done":
            loop.result = _copy_output(fact.payload)


def _copy_output(payload: dict[str, Any]) -> dict[str, Any]:
    if "outputRef" in payload:
        return {"outputRef": payload["outputRef"]}
    return {"output": payload.get("output")}


@dataclass(frozen=True, slots=True)
class Finding:
    """A manifest that isn't as the events have it; `anew` is what it has to be, if they say."""

    loop_id: str
    problem: str
    anew: bytes | None

    def __str__(self) -> str:
        advice = "'planaria verify --repair' makes it anew"
        if self.anew is None:
            advice = "the events don't hold enough to make it anew: restore a backup"
        return f"outer loop {self.loop_id!r}: its manifest {self.problem}; {advice}"


def find_loop_findings(
    folder: Path, histories: LoopHistories, read_on: Callable[[], None]
) -> list[Finding]:
    """Compares each manifest in `outer-loops/` with the events, and looks for those that miss.

    `read_on` gives the histories what a living supervisor has written meanwhile. Each manifest is
    read before the events, so these are never behind it.
    """
    names = {path.stem for path in folder.glob("*.json")} - histories.pruned
    names |= histories.loops.keys()
    findings = []
    for loop_id in sorted(names):
        data = read_ordinary_file(folder / f"{loop_id}.json", MANIFEST_BYTES_MAX)
        for _ in range(LOOKS_MAX):
            read_on()
            finding = _compare(loop_id, data, histories.loops.get(loop_id))
            if finding is None:
                break
            again = read_ordinary_file(folder / f"{loop_id}.json", MANIFEST_BYTES_MAX)
            if again == data:
                findings.append(finding)
                break
            data = again
    return findings


def repair(folder: Path, finding: Finding) -> str:
    """Puts the manifest that the events give in its place, and says what was done."""
    assert finding.anew is not None, "what can't be made anew isn't repaired"
    folder.mkdir(mode=0o700, exist_ok=True)
    replace_file(folder / f"{check_id(finding.loop_id, 'outer loop id')}.json", finding.anew)
    return f"outer loop {finding.loop_id!r}: its manifest {finding.problem}; made anew from events"


def _compare(loop_id: str, data: bytes | None, loop: _Loop | None) -> Finding | None:
    manifest: dict[str, Any] | None = None
    problem = "is missing"
    if data is not None:
        try:
            manifest = parse_manifest(loop_id, data)
        except RunFailedError:
            problem = "is torn, or not this loop's"
    if loop is None or (loop.started is None and not loop.cycles and not loop.openings):
        return _check_unknown(loop_id, manifest, problem)
    if manifest is None:
        anew = None if loop.started is None else _dump(_derive(loop, _describe(loop)))
        return Finding(loop_id, problem, anew)
    told = manifest if loop.started is None else _describe(loop)
    if data in _list_acceptable(loop, told):
        return None
    derived = _derive(loop, told)
    changed = sorted(
        name for name in manifest.keys() | derived.keys() if manifest.get(name) != derived.get(name)
    )
    shown = f"differs from the events in {', '.join(changed) or 'its bytes'}"
    return Finding(loop_id, shown, _dump(derived))


def _check_unknown(loop_id: str, manifest: dict[str, Any] | None, problem: str) -> Finding | None:
    """Judges a manifest of which no event tells: one from before the first commit of its loop."""
    if manifest is None:
        return Finding(loop_id, problem, None)
    first = derive_id("run_", loop_id, 1, 0)
    if manifest["cycles"] or "result" in manifest:
        return Finding(loop_id, "tells of cycles that have no events", None)
    if manifest.get("pendingCycleRunId", first) != first:
        return Finding(loop_id, "names a run that isn't its first cycle's", None)
    return None


def _describe(loop: _Loop) -> dict[str, Any]:
    """Returns the fields that stay the same over a loop's whole life."""
    assert loop.started is not None, "of an older loop only its manifest tells them"
    return {name: loop.started[name] for name in ("goal", "maxCycles", "inputHash")}


def _derive(
    loop: _Loop, told: dict[str, Any], *, pending: str | None = None, before_last: bool = False
) -> dict[str, Any]:
    """Returns the manifest that the events give; `told` has what may stand in no event.

    `pending` is a run that isn't admitted yet; `before_last` leaves the last completion out.
    """
    made: dict[str, Any] = {"outerLoopId": loop.id, "cycles": loop.cycles}
    made.update({n: told[n] for n in ("goal", "maxCycles", "inputHash") if n in told})
    if before_last:
        made["cycles"], pending = loop.cycles[:-1], loop.cycles[-1]["runId"]
    elif loop.result is not None:
        made["result"] = loop.result
    pending = pending or loop.pending_run
    if pending is not None:
        made["pendingCycleRunId"] = pending
    return made


def _list_acceptable(loop: _Loop, told: dict[str, Any]) -> list[bytes | None]:
    """Returns the bytes that a manifest may have: as derived, or as a killed kernel left it."""
    acceptable = [_derive(loop, told)]
    number = len(loop.cycles) + 1
    if loop.result is None and number <= told["maxCycles"] and not loop.has_live_run:
        following = derive_id("run_", loop.id, number, loop.openings)
        acceptable.append(_derive(loop, told, pending=following))
    if loop.cycles and not loop.openings:
        acceptable.append(_derive(loop, told, before_last=True))
    return [_dump(manifest) for manifest in acceptable]


def _dump(manifest: dict[str, Any]) -> bytes | None:
    """Returns the bytes of a manifest, or None if it holds what no JSON file can."""
    try:
        return dump_manifest(manifest)
    except (TypeError, ValueError, RecursionError):
        return None
