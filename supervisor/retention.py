"""Which runs may go: those that ended long ago, each with its whole family or not at all.

A family is a run with its sub-runs, theirs, and so on; the runs of an outer loop's cycles are one
family with it, and stay as long as the loop isn't finished. Forks are independent: what they
inherited is their own.
"""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.protocol.errors import IntegrityError, PlanariaError
from planaria.protocol.events import encode_event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.outer_loops import parse_manifest

from .log_pruning import RetentionReader
from .run_rows import ENDED, STATUS_BY_TYPE


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """A run that goes; `payload` is that of the event that records it."""

    run_id: str
    workflow_id: str
    status: str
    ended_at: int
    bytes: int
    payload: dict[str, Any]

    @property
    def events(self) -> int:
        """Returns how many events it has."""
        count: int = self.payload["events"]
        return count


class _Families:
    """Sets of runs and loops that stay together, joined pair by pair."""

    def __init__(self) -> None:
        self._leaders: dict[str, str] = {}
        self._kept: set[str] = set()

    def leader(self, name: str) -> str:
        path = []
        while (above := self._leaders.setdefault(name, name)) != name:
            path.append(name)
            name = above
        for passed in path:
            self._leaders[passed] = name
        return name

    def join(self, one: str, other: str) -> None:
        self._leaders[self.leader(one)] = self.leader(other)

    def keep(self, name: str) -> None:
        self._kept.add(name)
        self.leader(name)

    def prunable(self, runs: list[str]) -> list[tuple[str, ...]]:
        kept = {self.leader(name) for name in self._kept}
        members: dict[str, list[str]] = {}
        for run_id in runs:
            leader = self.leader(run_id)
            if leader not in kept:
                members.setdefault(leader, []).append(run_id)
        return [tuple(family) for family in members.values()]


def find_families(
    reader: RetentionReader, loops: Path, cutoff_at: int
) -> Generator[None, None, list[tuple[str, ...]]]:
    """Returns the families whose runs have all ended before `cutoff_at`, by the list of runs.

    Yields now and then, between short reads. The list is a projection: `read_family` has the say.
    """
    families = _Families()
    runs: list[str] = []
    seen_loops: set[str] = set()
    after = ""
    while page := reader.row_page(after):
        for row in page:
            after = row.run_id
            if row.run_id == SYSTEM_RUN_ID:
                continue
            runs.append(row.run_id)
            if row.ended_at is None or row.ended_at >= cutoff_at or row.status not in ENDED:
                families.keep(row.run_id)
            admission = _read_admission(reader, row.run_id)
            if admission is None:
                families.keep(row.run_id)
                continue
            parent, loop_id = admission.get("parentRunId"), admission.get("outerLoopId")
            if parent is not None:
                families.join(row.run_id, parent)
            if loop_id is not None:
                name = f"loop:{loop_id}"  # no id of a run has a colon
                families.join(row.run_id, name)
                if loop_id not in seen_loops and not is_finished(loops / f"{loop_id}.json"):
                    families.keep(name)
                seen_loops.add(loop_id)
        yield
    return families.prunable(runs)


def read_family(
    reader: RetentionReader, run_ids: tuple[str, ...], cutoff_at: int
) -> list[PrunedRun] | None:
    """Returns what goes of a family, read from its events; None if one of its runs may not go.

    Raises:
        IntegrityError: a chain is broken; such a run is evidence, and stays.
    """
    family = [_read_run(reader, run_id) for run_id in run_ids]
    may_go = [run for run in family if run is not None and run.ended_at < cutoff_at]
    return may_go if len(may_go) == len(run_ids) else None


def is_finished(manifest: Path) -> bool:
    """Says whether an outer loop is over for good; one whose manifest can't be read isn't."""
    found = read_loop(manifest)
    if found is None:
        return False
    is_exhausted = "pendingCycleRunId" not in found and len(found["cycles"]) >= found["maxCycles"]
    return "result" in found or is_exhausted


def read_loop(manifest: Path) -> dict[str, Any] | None:
    """Returns the manifest of an outer loop, or None if it is missing or damaged."""
    try:
        return parse_manifest(manifest.stem, manifest.read_bytes())
    except (OSError, PlanariaError):
        return None


def _read_admission(reader: RetentionReader, run_id: str) -> dict[str, Any] | None:
    try:
        for _, event in reader.read_run(run_id, limit=1):
            return event.payload if event.type == "RunAdmitted" else None
    except IntegrityError:
        pass
    return None


def _read_run(reader: RetentionReader, run_id: str) -> PrunedRun | None:
    """Reads and verifies a run; None if it isn't there, or hasn't ended."""
    payload: dict[str, Any] = {"prunedRunId": run_id, "events": 0}
    workflow_id, status, ended_at, size = "", "", 0, 0
    for position, event in reader.read_run(run_id):
        payload.setdefault("firstPosition", position)
        payload["lastPosition"] = position
        payload["events"] = event.sequence
        size += len(encode_event(event))
        status = STATUS_BY_TYPE.get(event.type, status)
        if STATUS_BY_TYPE.get(event.type) in ENDED:
            ended_at = event.at
        if event.type == "RunAdmitted":
            workflow_id = event.payload["workflowId"]
            for name in ("definitionRef", "outerLoopId"):
                if name in event.payload:
                    payload[name] = event.payload[name]
        elif event.type == "WorkflowVersionRegistered":
            payload["workflowVersionId"] = event.payload["workflowVersionId"]
            payload["lockRef"] = event.payload["lockRef"]
    if status not in ENDED:
        return None
    payload["lastHash"] = "sha256:" + reader.hash_of(run_id, payload["events"]).hex()
    return PrunedRun(run_id, workflow_id, status, ended_at, size, payload)
