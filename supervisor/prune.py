"""Retention: runs that ended long ago go, with what they alone have named.

    families ─▶ one transaction each: RunPruned for every run, its events and row deleted
             ─▶ folders and manifests of runs that are gone ─▶ blobs and modules that nothing names

The order makes a kill harmless: what it leaves is named by nothing, and the next prune finds it by
the same rule, for it looks at what the log says was pruned and not at what it did itself.
Definitions stay, as RunPruned names them, and so does memory.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from planaria.protocol.directories import refuse_empty
from planaria.protocol.errors import DataDirLockedError, IntegrityError
from planaria.protocol.events import Event
from planaria.protocol.ids import SYSTEM_RUN_ID, derive_id

from .backup import kept_from_pruning
from .backup_manifest import walk
from .clock import read_clock
from .data_directory import DataDirectory, prepare_data_directory
from .locks import DirectoryLock
from .log_pruning import PrunableLog, RetentionReader
from .references import References
from .retention import PrunedRun, find_families, is_finished, read_family, read_loop
from .unfinished_folder import remove_tree

Trace = Callable[[str], None]
Note = tuple[str, dict[str, Any]]  # type and payload of an event of the system's run
# Appends notes to the system's run and deletes these runs, in one transaction.
Commit = Callable[[Sequence[Note], Sequence[str]], None]

# Blobs and modules are written before the event that names them: a young one may be waited for by
# a client that is about to ask. An hour is a hundred times what a start may take.
GRACE_SECONDS = 3_600


@dataclass(slots=True)
class PruneReport:
    """What has gone, or with `is_dry_run` what would; `left` says why damaged families stay."""

    cutoff_at: int
    is_dry_run: bool
    runs: list[PrunedRun] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    blobs: int = 0
    modules: int = 0
    file_bytes: int = 0
    is_compacted: bool = False

    @property
    def events(self) -> int:
        """Returns the number of the events of all these runs."""
        return sum(run.events for run in self.runs)

    @property
    def event_bytes(self) -> int:
        """Returns the size of these events."""
        return sum(run.bytes for run in self.runs)


def prune_directory(
    root: Path,
    older_than_ms: int,
    *,
    is_dry_run: bool = False,
    trace: Trace | None = None,
) -> PruneReport:
    """Prunes a data directory that no supervisor has; a dry run only reads, beside one too.

    `trace` is told the points of the log's commits, "prune_committed" after each family,
    "prune_files" after the files of runs, and "prune_swept".

    Raises:
        DataDirLockedError: a supervisor has it.
        ConflictError: a backup of it is being made.
        CommitUnknownError: an I/O error at a commit.
        DataDirectoryError: it can't be used, or its log is damaged.
    """
    directory = DataDirectory(root.resolve())
    if not directory.database.is_file():
        raise refuse_empty(str(directory.database))
    cutoff_at = read_clock().at - older_than_ms * 1_000
    if is_dry_run:
        reader = RetentionReader.open(directory.database)
        try:
            return _run(Pruning(directory, reader, None, cutoff_at=cutoff_at, trace=trace))
        finally:
            reader.close()
    prepare_data_directory(directory.root)
    try:
        lock = DirectoryLock.acquire(directory.supervisor_lock)
    except DataDirLockedError as error:
        raise error.with_hint("'planaria down' lets it finish, then prune") from error
    try:
        with kept_from_pruning(directory, as_pruner=True):
            return _prune_offline(directory, cutoff_at, trace)
    finally:
        lock.release()


def _prune_offline(directory: DataDirectory, cutoff_at: int, trace: Trace | None) -> PruneReport:
    log = PrunableLog.open(directory.events, trace=trace)
    reader = RetentionReader.open(directory.database)
    try:
        epoch = _Epoch(log, directory)
        report = _run(Pruning(directory, reader, epoch.commit, cutoff_at=cutoff_at, trace=trace))
        epoch.end()
        report.is_compacted = bool(report.runs) and log.compact()
    finally:
        reader.close()
        log.close()
    return report


class Pruning:
    """One prune, in slices: a supervisor's loop may do one in each of its rounds.

    Every slice is short, except that a family goes in one transaction and that the files of one
    run are removed together. Between two slices anything may be appended: what has changed is
    looked at again before it is acted on.
    """

    def __init__(
        self,
        directory: DataDirectory,
        reader: RetentionReader,
        commit: Commit | None,
        *,
        cutoff_at: int,
        trace: Trace | None = None,
    ) -> None:
        """`commit` None: nothing is changed, the report says what would be."""
        self.report = PruneReport(cutoff_at, commit is None)
        self._directory = directory
        self._reader = reader
        self._commit = commit
        self._cutoff_at = cutoff_at
        self._trace = trace or (lambda _point: None)
        self._references = References(reader, directory.blobs)
        self._young = read_clock().at / 1_000_000 - GRACE_SECONDS

    def slices(self) -> Iterator[None]:
        """Does the work; stop in between and what is done is done."""
        families = yield from find_families(
            self._reader, self._directory.outer_loops, self._cutoff_at
        )
        for family in families:
            self._prune_family(family)
            yield
        yield from self._sweep()
        self._trace("prune_swept")

    def _prune_family(self, run_ids: tuple[str, ...]) -> None:
        try:
            runs = read_family(self._reader, run_ids, self._cutoff_at)
        except IntegrityError as error:
            self.report.left.append(str(error))
            return
        if runs is None:
            return  # one was opened again meanwhile
        if self._commit is not None:
            self._commit([("RunPruned", run.payload) for run in runs], run_ids)
            self._trace("prune_committed")
        self.report.runs.extend(runs)

    # -- files -----------------------------------------------------------------------------

    def _sweep(self) -> Generator[None, None, None]:
        """Removes what nothing names any more."""
        references = self._references
        going = {run.run_id for run in self.report.runs} if self._commit is None else set[str]()
        while references.read_page(going):
            yield
        for run in self.report.runs:
            for name in ("lockRef", "definitionRef"):  # RunPruned names them on
                references.add(str(run.payload.get(name)).encode())
        gone = {run_id for run_id in references.pruned if not self._reader.run_exists(run_id)}
        gone |= going
        for run_id in sorted(gone):
            self._remove_run(run_id)
            yield
        self._remove_manifests(gone)
        self._trace("prune_files")
        while references.read_blob():
            yield
        for folder in sorted(self._directory.blobs.glob("sha256/*")):
            references.catch_up(going)
            for path in sorted(folder.iterdir()):
                if path.name not in references.live and self._is_old(path):
                    self.report.blobs += 1
                    self._remove(path)
            yield
        references.catch_up(going)
        for path in sorted(self._directory.modules.glob("*")):
            is_draft = path.name.startswith(".draft-")
            if path.name not in references.live and self._is_old(path):
                self.report.modules += not is_draft
                self._remove(path)
                yield
        for path in sorted((self._directory.blobs / "unfinished").glob("*")):
            if self._is_old(path):
                self._remove(path)

    def _remove_run(self, run_id: str) -> None:
        for path in (
            self._directory.runs / run_id,
            self._directory.locks / f"{run_id}.json",
        ):
            if path.exists():
                self._remove(path)

    def _remove_manifests(self, gone: set[str]) -> None:
        """Removes manifests of what is gone, and reads what the others name."""
        for path in sorted(self._directory.artifacts.glob("*.json")):
            data = path.read_bytes()
            if _run_of_artifact(data) in gone:
                self._remove(path)
            else:
                self._references.add(data)
        for path in sorted(self._directory.outer_loops.glob("*.json")):
            loop = read_loop(path)
            cycles = [cycle["runId"] for cycle in loop["cycles"]] if loop else []
            if cycles and gone.issuperset(cycles) and is_finished(path):
                self._remove(path)
            else:
                self._references.add(path.read_bytes())

    def _is_old(self, path: Path) -> bool:
        """Says whether nobody can be about to name a file or folder any more."""
        try:
            return os.stat(path, follow_symlinks=False).st_mtime < self._young
        except FileNotFoundError:
            return False

    def _remove(self, path: Path) -> None:
        """Counts a file or folder, and removes it unless this is a dry run."""
        entries = walk(path) if path.is_dir() else iter(())
        self.report.file_bytes += path.stat().st_size if path.is_file() else 0
        for _, entry in entries:
            if entry.is_file(follow_symlinks=False):
                self.report.file_bytes += entry.stat(follow_symlinks=False).st_size
        if self._commit is None:
            return
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink()


class _Epoch:
    """The epoch of a prune without a supervisor: it is one for that long, as the log says."""

    def __init__(self, log: PrunableLog, directory: DataDirectory) -> None:
        self._log = log
        self._root = directory.root
        self._sequence = log.last_sequence(SYSTEM_RUN_ID)
        self._number = log.epoch + 1
        self._is_open = False

    def commit(self, notes: Sequence[Note], run_ids: Sequence[str]) -> None:
        """Commits what is deleted and that it is; the epoch begins with the first of these."""
        events = [] if self._is_open else [self._make("SupervisorStarted", self._facts())]
        events += [self._make(kind, payload) for kind, payload in notes]
        self._log.prune(events, run_ids)
        self._is_open = True

    def end(self) -> None:
        """Ends the epoch, if anything was committed in it."""
        if self._is_open:
            stopped = {"epoch": self._number, "reason": "pruned"}
            self._log.append([self._make("SupervisorStopped", stopped)])

    def _facts(self) -> dict[str, Any]:
        marker = derive_id("pd_", str(self._root))
        return {
            "supervisorId": derive_id("sv_", marker, self._number),
            "pid": os.getpid(),
            "epoch": self._number,
            "version": version("planaria"),
        }

    def _make(self, kind: str, payload: dict[str, Any]) -> Event:
        self._sequence += 1
        now = read_clock()
        return Event(
            SYSTEM_RUN_ID,
            self._sequence,
            kind,
            now.at,
            now.mono,
            self._number,
            None,
            None,
            payload,
        )


def _run(pruning: Pruning) -> PruneReport:
    for _ in pruning.slices():
        pass
    return pruning.report


def _run_of_artifact(manifest: bytes) -> str | None:
    """Returns the run that an artifact's manifest is of; None if it can't be read."""
    try:
        fields = json.loads(manifest)
        run_id = fields["runId"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return run_id if isinstance(run_id, str) else None
