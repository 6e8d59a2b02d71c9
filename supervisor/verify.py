"""Verification of a data directory: everything in it against the events, and these by themselves.

Works beside a living supervisor: the log is read by pages, and between two pages no transaction
is held. What the supervisor writes meanwhile is read up to, and then left for the next time.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from planaria.protocol.directories import refuse_empty
from planaria.protocol.errors import DataDirectoryError
from planaria.protocol.limits import BLOB_BYTES_MAX

from .checker import LogChecker, Row, RunSummary, Violation
from .checker_facts import decode_row, pack_value
from .checker_payloads import find_payload_problems
from .data_directory import DataDirectory
from .locks import DirectoryLock
from .log_schema import PAGE_BYTES as WAL_PAGE_BYTES
from .loop_repair import LoopHistories, find_loop_findings, repair
from .ordinary_files import list_names, read_ordinary_file
from .wal_check import classify_wal

PAGE_ROWS = 256
PAGE_BYTES = 8 << 20  # an event may have 2 MiB: a page of rows is bounded by both
BUSY_MS = 2_000
FINDINGS_MAX = 1_000
ARTIFACT_BYTES_MAX = 1 << 20  # of a manifest, not of what it describes
_HEX = frozenset("0123456789abcdef")

_SELECT_PAGE = (
    "SELECT position, run_id, sequence, session_id, type, body, hash FROM events "
    "WHERE position > ? AND position <= ? ORDER BY position LIMIT ?"
)
# One statement sees one moment: the run's row, and the last event that it was made from.
_SELECT_RUNS = (
    "SELECT run_id, status, workflow_id, admitted_at, ended_at, "
    "(SELECT max(sequence) FROM events WHERE events.run_id = runs.run_id) "
    "FROM runs WHERE run_id > ? ORDER BY run_id LIMIT ?"
)
_SELECT_INDEX = "SELECT count(*), max(sequence) FROM events WHERE run_id = ? AND position <= ?"
_SELECT_OPEN = (
    "SELECT (SELECT count(*) FROM runs INDEXED BY runs_open WHERE ended_at IS NULL), "
    "(SELECT count(*) FROM runs NOT INDEXED WHERE ended_at IS NULL)"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was verified, and everything that isn't as it should be.

    `findings` are about what stands beside the events: projections, artifacts, pinned modules,
    manifests of outer loops, the database file; `repaired` are those that aren't any more.
    `unreferenced` blobs are no fault: a process may have died before the event that would have
    named one.
    """

    events: int
    runs: int
    blobs: int
    artifacts: int
    loops: int
    unreferenced: int
    violations: tuple[Violation, ...]
    findings: tuple[str, ...]
    repaired: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Says whether nothing was found."""
        return not self.violations and not self.findings

    def lines(self) -> list[str]:
        """Returns each violation and finding as a line of text."""
        return [*map(str, self.violations), *self.findings]


def verify_directory(
    path: Path,
    *,
    canaries: Sequence[bytes] = (),
    integrity_check: bool = False,
    with_repair: bool = False,
) -> Report:
    """Verifies chains, invariants, blobs, the list of runs, artifacts, modules and outer loops.

    `integrity_check` adds SQLite's own check of every page; it alone holds a read transaction
    for as long as it takes, so that a living supervisor's WAL grows meanwhile. `with_repair` makes
    manifests of outer loops anew from the events, and nothing else; not from a log with violations.

    Raises:
        DataDirectoryError: there is no event log that could be read.
        DataDirLockedError: something is to be repaired, but a supervisor runs.
    """
    root = path.resolve()
    verification = _Verification(root, canaries)
    try:
        if not with_repair:
            verification.run(integrity_check)
            return verification.report()
        directory = DataDirectory(root)
        directory.locks.mkdir(mode=0o700, exist_ok=True)
        lock = DirectoryLock.acquire(directory.supervisor_lock)
        try:
            verification.run(integrity_check, with_repair=True)
        finally:
            lock.release()
        return verification.report()
    finally:
        verification.close()


class _Verification:
    def __init__(self, root: Path, canaries: Sequence[bytes]) -> None:
        self._artifacts_folder = root / "artifacts"
        self._loops_folder = root / "outer-loops"
        self._path = root / "events" / "events.db"
        self._findings: list[str] = []
        self._repaired: list[str] = []
        self._loops = LoopHistories()
        self._loops_position = 0  # up to here the loops' events are read
        self._artifacts = 0
        self._unreferenced = 0
        self._connection = _open_database(self._path)
        self._checker = LogChecker(
            database_id=self._read_database_id(),
            read_blob=self._read_blob,
            canaries=canaries,
            observe=self._loops.take,
        )

    def run(self, integrity_check: bool, *, with_repair: bool = False) -> None:
        """Does all of it; damage that ends the reading of the database is a finding too."""
        checker = self._checker
        self._verify_wal()
        try:
            self._read_events()
            self._verify_loops(with_repair)
            self._verify_runs()
            self._verify_indexes()
            if integrity_check:
                for (text,) in self._connection.execute("PRAGMA integrity_check"):
                    if text != "ok":
                        self._find(f"database: {text}")
        except apsw.Error as error:
            self._find(
                f"database: {str(self._path)!r} can't be read behind position "
                f"{checker.position} ({type(error).__name__}: {error})"
            )
        checker.finish()
        self._verify_pins()
        self._verify_artifacts()
        self._count_unreferenced()

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def report(self) -> Report:
        """Returns what was found."""
        checker = self._checker
        if checker.left_out:
            self._find(f"{checker.left_out} more violations were left out")
        return Report(
            events=sum(run.events for run in checker.summaries.values()),
            runs=sum(1 for run in checker.summaries.values() if run.status is not None),
            blobs=len(checker.blobs),
            artifacts=self._artifacts,
            loops=len(self._loops.loops),
            unreferenced=self._unreferenced,
            violations=tuple(checker.violations),
            findings=tuple(self._findings),
            repaired=tuple(self._repaired),
        )

    def _find(self, text: str) -> None:
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(text)

    # -- the database ----------------------------------------------------------------------

    def _read_database_id(self) -> str | None:
        try:
            found = self._rows("SELECT value FROM meta WHERE name = 'database_id'")
        except apsw.Error as error:
            raise DataDirectoryError(
                message=f"{str(self._path)!r} is no event log that can be read ({error}). "
                "Restore a backup or choose another data directory"
            ) from error
        text = found[0][0] if found else None
        if isinstance(text, str) and len(text) == 32 and set(text) <= _HEX:
            return text
        self._find("database: it has no id, so the start of no chain can be checked")
        return None

    def _rows(self, sql: str, bindings: tuple[str | int, ...] = ()) -> list[Any]:
        return self._connection.execute(sql, bindings).fetchall()

    def _read_events(self) -> None:
        """Checks every event that is there at the start: the log ends with a commit there."""
        last = self._rows("SELECT max(position) FROM events")[0][0] or 0
        while page := self._read_page(self._checker.position, last):
            for row in page:
                self._checker.take(row)
        self._loops_position = self._checker.position

    def _read_on(self) -> None:
        """Gives the outer loops what was written since; the next verification checks it."""
        last = self._rows("SELECT max(position) FROM events")[0][0] or 0
        while page := self._read_page(self._loops_position, last):
            for row in page:
                self._loops_position = row.position
                fact = decode_row(row)
                if not isinstance(fact, str) and not any(find_payload_problems(fact)):
                    self._loops.take(fact)

    def _read_page(self, after: int, last: int) -> list[Row]:
        page: list[Row] = []
        size = 0
        cursor = self._connection.cursor()
        try:
            for fields in cursor.execute(_SELECT_PAGE, (after, last, PAGE_ROWS)):
                row = self._make_row(*fields)
                page.append(row)
                size += len(row.body)
                if size > PAGE_BYTES:
                    break
        finally:
            cursor.close(True)  # a half-read statement would keep its transaction
        return page

    def _make_row(self, position: int, *fields: Any) -> Row:
        """Returns the row; a damaged database may hold anything in its place."""
        run_id, sequence, session_id, kind, body, digest = fields
        texts = (run_id, kind, session_id or "")
        are_bytes = isinstance(body, bytes) and isinstance(digest, bytes)
        if all(isinstance(t, str) for t in texts) and isinstance(sequence, int) and are_bytes:
            return Row(position, run_id, sequence, session_id, kind, body, digest)
        self._find(f"database: the row at position {position} doesn't hold what a row holds")
        return Row(position, str(run_id), 0, None, str(kind), b"", b"")

    def _verify_runs(self) -> None:
        """Compares the list of runs with a recount, for runs that haven't moved on since."""
        if not self._rows("SELECT 1 FROM sqlite_schema WHERE name = 'runs'"):
            return  # a projection may be dropped; the next supervisor makes it again
        counted = {
            run_id: run for run_id, run in self._checker.summaries.items() if run.status is not None
        }
        after = ""
        while page := self._rows(_SELECT_RUNS, (after, PAGE_ROWS)):
            for run_id, status, workflow_id, admitted_at, ended_at, sequence in page:
                after = run_id
                run = counted.pop(run_id, None)
                if run is None:
                    # Either it came after the last page that was read, or it has no event at all.
                    if sequence is None or run_id in self._checker.summaries:
                        self._find(f"runs: {run_id!r} is listed as {status}, without its events")
                elif sequence == run.sequence:
                    self._compare(run_id, run, (status, workflow_id, admitted_at, ended_at))
        for run_id in counted:
            self._find(f"runs: {run_id!r} has events and isn't listed")

    def _compare(self, run_id: str, run: RunSummary, listed: tuple[Any, ...]) -> None:
        expected = (run.status, run.workflow_id, run.admitted_at, run.ended_at)
        names = ("status", "workflow_id", "admitted_at", "ended_at")
        for name, one, other in zip(names, expected, listed, strict=True):
            if one != other:
                self._find(f"runs: {run_id!r} is listed with {name} {other!r}, counted {one!r}")

    def _verify_loops(self, with_repair: bool) -> None:
        """Compares the manifests of outer loops with the events, and makes wrong ones anew."""
        may_repair = with_repair and not self._checker.violations
        for finding in find_loop_findings(self._loops_folder, self._loops, self._read_on):
            if may_repair and finding.anew is not None:
                self._repaired.append(repair(self._loops_folder, finding))
            else:
                self._find(str(finding))

    def _verify_wal(self) -> None:
        """Looks for damage in the write-ahead log, which SQLite takes for a torn end of it.

        Not while it is written to: then its frames can't be told apart from outside.
        """
        path = Path(f"{self._path}-wal")
        before = _describe_file(path)
        if before is None or classify_wal(path, WAL_PAGE_BYTES) != "history_damaged":
            return
        if _describe_file(path) == before:
            self._find(f"database: {str(path)!r} is damaged before its end: commits are lost")

    def _verify_indexes(self) -> None:
        """Compares what the indexes find with what was read in the order of the log."""
        for run_id, run in self._checker.summaries.items():
            found = self._rows(_SELECT_INDEX, (run_id, self._checker.position))[0]
            if found != (run.events, run.sequence):
                self._find(
                    f"database: the index of events finds {found[0]} events of {run_id!r} up to "
                    f"{found[1]}; read in order there are {run.events} up to {run.sequence}"
                )
        if self._rows("SELECT 1 FROM sqlite_schema WHERE name = 'runs_open'"):
            by_index, by_scan = self._rows(_SELECT_OPEN)[0]
            if by_index != by_scan:
                self._find(f"database: the index finds {by_index} open runs of {by_scan}")

    # -- files -----------------------------------------------------------------------------

    def _read_blob(self, ref: str) -> bytes | None:
        """Returns a blob's bytes (one more than it may have, if it is too long), or None."""
        return read_ordinary_file(self._artifacts_folder / "blobs" / ref, BLOB_BYTES_MAX + 1)

    def _verify_pins(self) -> None:
        """Compares the pinned modules of each run with the hash that names them."""
        for pin, run_id in self._checker.pins.items():
            if len(pin) != 64 or not set(pin) <= _HEX:
                self._find(f"modules: run {run_id!r} names {pin[:80]!r}, which is no hash")
                continue
            folder = self._artifacts_folder / "modules" / pin
            if folder.is_dir():
                if _hash_modules(folder) != pin:
                    self._find(f"modules: {pin} (run {run_id!r}) aren't what was pinned")
                continue
            # A definition that came from no file is one blob instead.
            data = self._read_blob(f"sha256/{pin[:2]}/{pin}")
            if data is None:
                self._find(f"modules: {pin} (run {run_id!r}) are missing")
            elif sha256(data).hexdigest() != pin:
                self._find(f"modules: {pin} (run {run_id!r}) isn't what was pinned")
            else:
                self._checker.blobs.add(f"sha256/{pin[:2]}/{pin}")

    def _verify_artifacts(self) -> None:
        """Checks that each artifact's manifest can be read and its content is there."""
        for path in sorted(self._artifacts_folder.glob("*.json")):
            self._artifacts += 1
            data = read_ordinary_file(path, ARTIFACT_BYTES_MAX)
            try:
                manifest = json.loads(data or b"")
                digest, size, run_id = (manifest[n] for n in ("sha256", "size", "runId"))
                name = digest.removeprefix("sha256:")
                ref = {"ref": f"sha256/{name[:2]}/{name}", "sha256": f"sha256:{name}", "size": size}
            except (ValueError, KeyError, TypeError, AttributeError):
                self._find(f"artifacts: {path.name!r} is no manifest of an artifact")
                continue
            if run_id not in self._checker.summaries.keys() | self._checker.prunes.runs:
                self._find(f"artifacts: {path.name!r} is of run {run_id!r}, which has no events")
            if len(name) != 64 or not set(name) <= _HEX:
                self._find(f"artifacts: {path.name!r} names no hash")
                continue
            self._checker.blobs.add(str(ref["ref"]))
            problem = self._checker.find_blob_problem(ref)
            if problem is not None:
                self._find(f"artifacts: {path.name!r}: {problem}")

    def _count_unreferenced(self) -> None:
        store = self._artifacts_folder / "blobs" / "sha256"
        for folder in list_names(store):
            for name in list_names(store / folder):
                if f"sha256/{folder}/{name}" not in self._checker.blobs:
                    self._unreferenced += 1


def _open_database(path: Path) -> apsw.Connection:
    if not path.is_file():
        raise refuse_empty(str(path))
    try:
        connection = apsw.Connection(
            str(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
        )
        connection.set_busy_timeout(BUSY_MS)
    except apsw.Error as error:
        raise DataDirectoryError(
            message=f"the event log {str(path)!r} can't be opened: {error}"
        ) from error
    return connection


def _describe_file(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _hash_modules(folder: Path) -> str:
    """Returns the hash of a folder of pinned modules: over sorted paths and their contents."""
    rows: list[list[str]] = []
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda p: p.relative_to(folder).as_posix()):
        digest = sha256(path.read_bytes()).hexdigest()
        rows.append([path.relative_to(folder).as_posix(), digest])
    return sha256(pack_value(rows)).hexdigest()
