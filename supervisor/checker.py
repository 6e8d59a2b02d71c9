"""The checker: which invariants a log breaks, found without the code that wrote it.

`LogChecker` takes the rows of all runs in the order of the log, one at a time; of a run that has
completed it keeps a summary only, of one that may be opened again its steps too. The rules of
runs, steps, sessions, calls, sub-runs, budgets and outer loops stand in `checker_rules_*`; here
are those of the log as a whole: chains, order, epochs, blobs (I1 to I5, I31, I32).

Not checked, for no event states it yet: I27 (schedules); nor what needs
a witness outside the log (I30, I33 to I35).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.limits import BLOB_BYTES_MAX

from .checker_documents import ScopeDocument, read_lock
from .checker_facts import Fact, Row, Violation, decode_row
from .checker_payloads import find_payload_problems, find_refs
from .checker_rules_loops import LoopRules
from .checker_rules_prunes import PruneRules
from .checker_rules_runs import RunRules
from .checker_rules_sub_runs import SubRunLinks

__all__ = ["LogChecker", "Row", "RunSummary", "Violation", "check_log"]

VIOLATIONS_MAX = 1_000  # a log broken at its start would be listed whole
_SYSTEM = frozenset(
    "SupervisorStarted SupervisorStopped RunRecorded RunPruned OuterLoopStarted".split()
)
_STATUS = {
    "RunAdmitted": "admitted",
    "RunStarted": "running",
    "RunReopened": "running",
    "RunInterrupted": "interrupted",
    "RunCompleted": "completed",
    "RunFailed": "failed",
    "RunCancelled": "cancelled",
}
_ENDED = frozenset({"completed", "failed", "cancelled"})

ReadBlob = Callable[[str], bytes | None]  # path below the store ("sha256/ab/…") -> bytes


@dataclass(slots=True)
class RunSummary:
    """What a list shows of a run, counted anew from its events; and where its chain stands."""

    sequence: int = 0
    events: int = 0
    digest: bytes | None = None  # of its last event
    status: str | None = None  # None: nothing that a list shows (the system's run)
    workflow_id: str | None = None
    admitted_at: int | None = None
    ended_at: int | None = None
    is_closed: bool = False  # its last opening has had its terminal event


def check_log(
    rows: Iterable[Row],
    *,
    database_id: str | None = None,
    read_blob: ReadBlob | None = None,
    canaries: Sequence[bytes] = (),
    with_system: bool = True,
) -> list[Violation]:
    """Returns the invariants that a log breaks; `rows` in the order of their positions.

    The log has to end where a commit ended. `database_id` (hex) is what each chain starts from;
    without it the first hash of each run is believed. `read_blob` gives blobs and pinned
    documents; without it neither is checked. `canaries` are secrets that must not be in the log.
    `with_system=False` is for logs of the bare kernel: nobody wrote `run_system` there.
    """
    checker = LogChecker(
        database_id=database_id, read_blob=read_blob, canaries=canaries, with_system=with_system
    )
    for row in rows:
        checker.take(row)
    checker.finish()
    return checker.violations


class LogChecker:
    """Checks a log row by row; see `check_log` for what the arguments mean.

    `observe` is told each event whose bytes hold what its type has.
    """

    def __init__(
        self,
        *,
        database_id: str | None = None,
        read_blob: ReadBlob | None = None,
        canaries: Sequence[bytes] = (),
        with_system: bool = True,
        observe: Callable[[Fact], None] | None = None,
    ) -> None:
        self.violations: list[Violation] = []
        self.left_out = 0  # violations beyond VIOLATIONS_MAX
        self.position = 0
        self.summaries: dict[str, RunSummary] = {}
        self.blobs: set[str] = set()  # paths of the blobs that events name
        self.pins: dict[str, str] = {}  # hash of pinned modules -> a run that was admitted on it
        self._chain_start = bytes.fromhex(database_id) if database_id is not None else None
        self._read_blob = read_blob
        self._canaries = tuple(canaries)
        self._with_system = with_system
        self._observe = observe
        self._rules: dict[str, RunRules] = {}  # open runs, and those that may be opened again
        self._links = SubRunLinks()
        self._loops = LoopRules()
        self.prunes = PruneRules()
        self._epoch = 0
        self._mono = 0
        self._is_open_epoch = False
        self._unrecorded: dict[str, str] = {}  # admitted run -> hash of its admission
        self._recorded: dict[str, str] = {}  # the same as run_system has it, before the run came
        self._documents: dict[str, ScopeDocument | None] = {}
        self._row = Row(0, "", 0, None, "", b"", b"")

    def take(self, row: Row) -> None:
        """Checks the next row."""
        self._row = row
        if row.position <= self.position:
            self._report("I1", f"position {row.position} stands after {self.position}")
        elif row.position > self.position + 1:
            self.prunes.note_hole(self.position + 1, row.position - 1)
        self.position = max(row.position, self.position)
        run = self.summaries.get(row.run_id)
        if run is None:
            run = self.summaries[row.run_id] = RunSummary()
        is_first = self._check_chain(run, row)
        fact = decode_row(row)
        if isinstance(fact, str):
            self._report("I3", fact)
            return
        envelope = (fact.run_id, fact.sequence, fact.type, fact.session_id)
        if envelope != (row.run_id, row.sequence, row.type, row.session_id):
            self._report("I2", "its bytes are those of another event than its row names")
            return
        self._check_clocks(fact)
        for canary in self._canaries:
            if canary in fact.body:
                self._report("I32", "it contains a planted secret")
        problems = list(find_payload_problems(fact))
        for invariant, message in problems:
            self._report(invariant, message)
        if any(invariant == "I3" for invariant, _ in problems):
            return
        self._check_blobs(fact)
        if self._observe is not None:
            self._observe(fact)
        if not run.is_closed or fact.type == "RunReopened":
            self._summarize(run, fact)
        if fact.type in _SYSTEM or fact.run_id == SYSTEM_RUN_ID:
            self._check_system(fact)
            return
        if is_first and self._with_system:
            self._note_admission(row)
        self._check_run(run, fact)

    def finish(self) -> None:
        """Checks what must not be left open where a log ends."""
        for run_id, rules in self._rules.items():
            self._stand_at(run_id, self.summaries[run_id].sequence)
            rules.finish(self._report)
        self._links.finish(self._report_link, self._is_closed)
        for run_id in self._unrecorded:
            self._stand_at(run_id, 1)
            self._report("I2", f"its admission isn't recorded in {SYSTEM_RUN_ID!r}")
        for run_id in self._recorded:
            self._stand_at(run_id, 0)
            self._report("I2", f"{SYSTEM_RUN_ID!r} records its admission, but it has no events")
        self._stand_at(SYSTEM_RUN_ID, 0)
        self.prunes.finish(self._report)

    def _stand_at(self, run_id: str, sequence: int) -> None:
        """Names the place of violations that no row at hand shows."""
        self._row = Row(0, run_id, sequence, None, "", b"", b"")

    def _report_link(self, run_id: str, message: str) -> None:
        self._stand_at(run_id, self.summaries[run_id].sequence)
        self._report("I21", message)

    def _is_closed(self, run_id: str) -> bool:
        run = self.summaries.get(run_id)
        return run is not None and run.is_closed

    def _report(self, invariant: str, message: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            row = self._row
            self.violations.append(Violation(invariant, row.run_id, row.sequence, message))
        else:
            self.left_out += 1

    def _check_chain(self, run: RunSummary, row: Row) -> bool:
        """Checks that the row continues its run, and says whether it is its first one."""
        is_first = run.events == 0
        previous = self._chain_start if is_first else run.digest
        if row.sequence != run.sequence + 1:
            self._report("I1", f"sequence {row.sequence} stands after {run.sequence}")
        elif previous is not None and sha256(previous + row.body).digest() != row.hash:
            self._report("I2", "its hash isn't that of the one before it and its bytes")
        run.sequence, run.digest = row.sequence, row.hash
        run.events += 1
        return is_first

    def _check_clocks(self, fact: Fact) -> None:
        """Checks epochs and the monotonic clock, over all runs."""
        if fact.type == "SupervisorStarted":
            if fact.epoch != self._epoch + 1:
                self._report("I4", f"epoch {fact.epoch} was started after {self._epoch}")
            self._epoch, self._mono, self._is_open_epoch = fact.epoch, fact.mono, True
        elif self._with_system and (fact.epoch != self._epoch or not self._is_open_epoch):
            now = f"{self._epoch} is open" if self._is_open_epoch else "none is open"
            self._report("I4", f"it is of epoch {fact.epoch}, but {now}")
        elif fact.epoch != self._epoch:
            self._epoch, self._mono = fact.epoch, fact.mono
        if fact.mono < self._mono:
            self._report("I5", f"its clock is at {fact.mono} µs, after {self._mono} µs")
        self._mono = max(fact.mono, self._mono)

    def _check_system(self, fact: Fact) -> None:
        kind, payload = fact.type, fact.payload
        if kind not in _SYSTEM or fact.run_id != SYSTEM_RUN_ID:
            self._report("I4", f"{kind} doesn't belong into run {fact.run_id!r}")
        elif kind == "OuterLoopStarted":
            self._loops.take(fact, self._report)
        elif not self._with_system:
            return
        elif kind == "RunPruned":
            run_id = payload["prunedRunId"]
            was_recorded = self._recorded.pop(run_id, None) is not None
            self.prunes.take(fact, run_id in self.summaries, was_recorded, self._report)
            self._loops.take(fact, self._report)
        elif kind == "RunRecorded":
            run_id = payload["admittedRunId"]
            recorded = payload["admissionHash"].removeprefix("sha256:")
            if run_id not in self.summaries:
                self._recorded[run_id] = recorded
                return
            if recorded != self._unrecorded.pop(run_id, None):
                self._report("I2", f"it isn't the hash of the admission of {run_id!r}, or the 2nd")
        else:
            if payload["epoch"] != fact.epoch:
                self._report("I4", f"it says epoch {payload['epoch']} in epoch {fact.epoch}")
            if kind == "SupervisorStopped":
                self._is_open_epoch = False

    def _note_admission(self, row: Row) -> None:
        recorded = self._recorded.pop(row.run_id, None)
        if recorded is None:
            self._unrecorded[row.run_id] = row.hash.hex()
        elif recorded != row.hash.hex():
            self._report("I2", f"{SYSTEM_RUN_ID!r} records another hash of this admission")

    def _check_run(self, run: RunSummary, fact: Fact) -> None:
        self._links.take(fact, self._report)
        self._loops.take(fact, self._report)
        rules = self._rules.get(fact.run_id)
        if rules is None:
            if run.is_closed:
                if fact.type != "OuterLoopCycleCompleted":
                    self._report("I20", f"{fact.type} after the run's terminal event")
                return
            rules = self._rules[fact.run_id] = RunRules(fact.run_id, self._read_document)
        if fact.type == "RunForked":
            self._check_origin(fact)
        rules.take(fact, self._report)
        run.is_closed = bool(rules.terminal)
        if rules.terminal == "RunCompleted":
            del self._rules[fact.run_id]  # nothing opens it again

    def _check_origin(self, fact: Fact) -> None:
        """Checks that the run that another one was forked from had come as far as that says."""
        origin, sequence = fact.payload["fromRunId"], fact.payload["atSequence"]
        if origin not in self.summaries or self.summaries[origin].sequence < sequence:
            self.prunes.note_origin(fact.run_id, origin, sequence)

    def _summarize(self, run: RunSummary, fact: Fact) -> None:
        status = _STATUS.get(fact.type)
        if status is None:
            return
        run.status = status
        run.ended_at = fact.at if status in _ENDED else None
        if fact.type == "RunAdmitted":
            run.workflow_id, run.admitted_at = fact.payload["workflowId"], fact.at
            pin = fact.payload["source"].get("modulesRef")
            if isinstance(pin, str):
                self.pins.setdefault(pin, fact.run_id)

    def _check_blobs(self, fact: Fact) -> None:
        for name, ref in find_refs(fact):
            if ref["size"] > BLOB_BYTES_MAX:
                self._report("I32", f"{name}: a blob of {ref['size']} bytes")
            if self._read_blob is None or ref["ref"] in self.blobs:
                continue
            self.blobs.add(ref["ref"])
            problem = self.find_blob_problem(ref)
            if problem is not None:
                self._report("I31", f"{name}: {problem}")

    def find_blob_problem(self, ref: dict[str, Any]) -> str | None:
        """Returns what is wrong with the blob that a reference names, or None."""
        assert self._read_blob is not None, "blobs are checked with a reader of them only"
        data = self._read_blob(ref["ref"])
        if data is None:
            return f"blob {ref['ref']!r} is missing"
        if len(data) != ref["size"] or sha256(data).hexdigest() != ref["sha256"][7:]:
            return f"blob {ref['ref']!r} isn't what was stored ({len(data)} bytes)"
        if any(canary in data for canary in self._canaries):
            self._report("I32", f"blob {ref['ref']!r} contains a planted secret")
        return None

    def _read_document(self, fact: Fact) -> ScopeDocument | None:
        """Returns the document that a run is pinned to, once for all runs of a version."""
        ref = fact.payload["lockRef"]
        if fact.payload["lockHash"] != ref["sha256"]:
            self._report("I2", "lockHash isn't the hash of the lock that lockRef names")
        if self._read_blob is None:
            return None
        if ref["ref"] not in self._documents:
            data = self._read_blob(ref["ref"])
            self._documents[ref["ref"]] = document = read_lock(data) if data is not None else None
            if data is not None and document is None:
                self._report("I31", f"no document can be read from the lock {ref['ref']!r}")
        return self._documents[ref["ref"]]
