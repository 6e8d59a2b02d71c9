"""A backup of a data directory, made beside its supervisor and complete or not there at all.

The database is copied first, as of one moment, and the rest after it: a blob is on the disk before
the event that names it, and only a prune removes one, so every blob that the copied events name is
still there when its turn comes. The other way round events that came meanwhile would name blobs
that the copy lacks. What is changed in place of its predecessor, the manifests of outer loops, has
to be of the same moment: the moment is taken again until none of them has changed around it.
Memory, scratch and captured output are as they are found; a crash leaves them no better.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from planaria.protocol.directories import refuse_unusable
from planaria.protocol.errors import (
    ConflictError,
    DataDirectoryError,
    IntegrityError,
    UsageError,
)

from .backup_manifest import (
    DATA_NAME,
    MANIFEST_NAME,
    BackupManifest,
    CopiedFile,
    check_contents,
    dump_manifest,
    read_chunks,
    walk,
)
from .blobs import write_new_file
from .clock import read_clock
from .data_directory import DataDirectory
from .log_copy import LogSnapshot, remove_side_files
from .log_file import sync_directory
from .log_schema import PAGE_BYTES
from .unfinished_folder import make_unfinished, sync_tree
from .verify import verify_directory
from .wal_check import classify_wal

Trace = Callable[[str], None]

MOMENTS_MAX = 100  # a manifest changes twice in a cycle, a moment takes microseconds
FINDINGS_SHOWN = 3
# What its writer has not completed: blobs, modules.
_UNFINISHED = {"artifacts/blobs": "unfinished", "artifacts/modules": ".draft-"}


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that is complete and verified."""

    path: Path
    manifest: BackupManifest
    events: int
    runs: int


def make_backup(root: Path, target: Path, trace: Trace | None = None) -> Backup:
    """Copies the data directory `root` into `target`, a new or empty folder, and verifies it.

    `trace` is told how far it is: "backup_made", "backup_pages", "backup_database",
    "backup_files", "backup_synced", "backup_verified", "backup_manifest", "backup_renamed".

    Raises:
        ConflictError: `target` holds something.
        UsageError: one of the two would lie in the other.
        DataDirectoryError: the directory can't be read, or the disk refuses.
        IntegrityError: what was copied isn't sound; nothing of it was kept.
    """
    trace = trace or (lambda _point: None)
    directory = DataDirectory(root.resolve())
    target = Path(os.path.realpath(target))
    _check_target(directory.root, target)
    reader = LogSnapshot.open(directory.database)
    try:
        with kept_from_pruning(directory), make_unfinished(target) as folder:
            trace("backup_made")
            copying = _Copying(directory, folder, trace)
            copying.run(reader)
            backup = _complete(copying, target)
            trace("backup_renamed")
    except OSError as error:
        raise refuse_unusable(str(target), error) from error
    finally:
        reader.close()
    return backup


@contextmanager
def kept_from_pruning(directory: DataDirectory, *, as_pruner: bool = False) -> Iterator[None]:
    """Keeps blobs from being removed under a backup, and a backup from beginning under a prune.

    The lock is on the folder of events itself: a backup writes nothing into the directory.

    Raises:
        ConflictError: the other one is at work.
    """
    descriptor = os.open(directory.events, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kind = fcntl.LOCK_EX if as_pruner else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            other = "a backup of it is being made" if as_pruner else "it is being pruned"
            raise ConflictError(
                message=f"data directory {str(directory.root)!r}: {other}. Try again after it"
            ) from error
        yield
    finally:
        os.close(descriptor)


class _Copying:
    """One copy: the database, then everything else."""

    def __init__(self, directory: DataDirectory, folder: Path, trace: Trace) -> None:
        self.directory = directory
        self.folder = folder
        self.data = folder / DATA_NAME
        self.trace = trace
        self.manifest = BackupManifest("", "", 0, 0, 0)

    def run(self, reader: LogSnapshot) -> None:
        """Copies all of it; on return it stands in the folder, and isn't on the disk yet."""
        self._check_wal()
        self.data.mkdir(mode=0o700)
        loops = self._pin(reader)
        database = self.data / "events" / self.directory.database.name
        database.parent.mkdir(mode=0o700)
        reader.copy_to(database, self.trace)
        reader.unpin()
        self.trace("backup_database")
        last = _read_facts(database)
        self.manifest = BackupManifest(
            version=version("planaria"),
            database_id=reader.database_id,
            epoch=last[1],
            last_position=last[0],
            made_at=read_clock().at,
        )
        self._note("events/" + database.name, database)
        for name, content in loops.items():
            self._write(f"outer-loops/{name}", content)
        for path in sorted(self.directory.artifacts.glob("*.json")):
            self._copy(f"artifacts/{path.name}", path)
        self._copy_tree("artifacts/blobs")
        self._copy_tree("artifacts/modules")
        self._copy_tree("memory")
        self._copy_runs(last[2])
        self.manifest.folders.sort()
        self.trace("backup_files")

    def _check_wal(self) -> None:
        """Refuses a log whose end SQLite would drop in silence; see wal_check."""
        path = Path(f"{self.directory.database}-wal")
        before = _describe(path)
        if before is not None and classify_wal(path, PAGE_BYTES) == "history_damaged":
            if _describe(path) == before:
                raise IntegrityError(
                    message=f"the write-ahead log {str(path)!r} is damaged before its end: a copy "
                    "would lack what was committed. Nothing was copied; 'planaria verify' says more"
                )

    def _pin(self, reader: LogSnapshot) -> dict[str, bytes]:
        """Takes a moment of the log at which no loop's manifest changes; returns these."""
        folder = self.directory.outer_loops
        for _ in range(MOMENTS_MAX):
            before = _describe_all(folder)
            reader.pin()
            try:
                loops = {name: (folder / name).read_bytes() for name in before}
            except FileNotFoundError:
                loops = {}
            if _describe_all(folder) == before:
                return loops
            reader.unpin()
        raise ConflictError(
            message=f"the outer loops in {str(folder)!r} move on faster than they can be copied. "
            "Try again when fewer of them run"
        )

    def _copy_runs(self, open_runs: frozenset[str]) -> None:
        """Copies what the processes of all runs printed, and the scratch folders of open ones."""
        for path in sorted(self.directory.runs.glob("*/logs")):
            self._copy_tree(f"runs/{path.parent.name}/logs")
        for run_id in sorted(open_runs):
            self._copy_tree(f"runs/{run_id}/harness", is_scratch=True)

    def _copy_tree(self, name: str, *, is_scratch: bool = False) -> None:
        root = self.directory.root / name
        if root.is_dir():
            self._make_folder(name)
        unfinished = _UNFINISHED.get(name)
        for inner, entry in walk(root):
            path = f"{name}/{inner}"
            if unfinished is not None and inner.startswith(unfinished):
                continue
            if entry.is_dir(follow_symlinks=False):
                self._make_folder(path)
            elif entry.is_symlink():
                self._copy_link(path, root / inner)
            elif entry.is_file(follow_symlinks=False):
                self._copy(path, root / inner, is_scratch=is_scratch)
            else:
                self.manifest.skipped.append(path)  # a socket or the like: its process is gone

    def _copy_link(self, path: str, source: Path) -> None:
        try:
            link = os.readlink(source)
        except FileNotFoundError:
            return
        os.symlink(link, self._place(path))
        self.manifest.links[path] = link

    def _copy(self, path: str, source: Path, *, is_scratch: bool = False) -> None:
        """Copies a file as far as it went at first: captured output grows meanwhile."""
        try:
            found = os.stat(source, follow_symlinks=False)
            chunks = read_chunks(source, found.st_size)
            first = next(chunks, b"")
        except FileNotFoundError:
            return  # removed meanwhile; the verification tells if something needs it
        except PermissionError:
            if not is_scratch:
                raise
            self.manifest.skipped.append(path)
            return
        digest, size = sha256(), 0
        place = self._place(path)
        mode = stat.S_IMODE(found.st_mode) & 0o777
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            while first:
                file.write(first)
                digest.update(first)
                size += len(first)
                first = next(chunks, b"")
        self.manifest.files[path] = CopiedFile(f"sha256:{digest.hexdigest()}", size, mode)

    def _write(self, path: str, content: bytes) -> None:
        place = self._place(path)
        write_new_file(place, content)
        self._note(path, place)

    def _note(self, path: str, place: Path) -> None:
        digest, size = sha256(), 0
        for chunk in read_chunks(place):
            digest.update(chunk)
            size += len(chunk)
        self.manifest.files[path] = CopiedFile(f"sha256:{digest.hexdigest()}", size, 0o600)

    def _place(self, path: str) -> Path:
        place = self.data / path
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place

    def _make_folder(self, path: str) -> None:
        (self.data / path).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.manifest.folders.append(path)


def _complete(copying: _Copying, target: Path) -> Backup:
    """Verifies the copy, seals it with its manifest, and gives it its name."""
    sync_tree(copying.folder)
    copying.trace("backup_synced")
    report = verify_directory(copying.data)
    remove_side_files(copying.data / "events" / copying.directory.database.name)
    if not report.is_sound:
        found = report.lines()
        raise IntegrityError(
            message=f"the copy of {str(copying.directory.root)!r} isn't sound, and was not kept: "
            + "; ".join(found[:FINDINGS_SHOWN])
            + (f"; and {len(found) - FINDINGS_SHOWN} more" if len(found) > FINDINGS_SHOWN else "")
            + ". 'planaria verify' lists what is wrong with the directory itself"
        )
    check_contents(copying.data, copying.manifest)
    copying.trace("backup_verified")
    write_new_file(copying.folder / MANIFEST_NAME, dump_manifest(copying.manifest))
    sync_directory(copying.data)
    sync_directory(copying.folder)
    copying.trace("backup_manifest")
    try:
        os.rename(copying.folder, target)  # onto an empty folder, too
    except OSError as error:
        raise DataDirectoryError(
            message=f"the backup can't get its name {str(target)!r}: {error.strerror}. Name a new "
            "folder, on which nothing is mounted"
        ) from error
    sync_directory(target.parent)
    return Backup(target, copying.manifest, report.events, report.runs)


def _read_facts(database: Path) -> tuple[int, int, frozenset[str]]:
    """Returns (last position, its epoch, open runs) of a log that nobody writes."""
    reader = LogSnapshot.open(database)
    try:
        last = reader.last_position()
        events = reader.read_all(last - 1, 1)
        return last, events[0][1].epoch if events else 0, frozenset(reader.open_runs())
    finally:
        reader.close()
        remove_side_files(database)


def _check_target(root: Path, target: Path) -> None:
    if target.is_relative_to(root) or root.is_relative_to(target):
        raise UsageError(
            message=f"a backup of {str(root)!r} can't be made in {str(target)!r}: one would lie "
            "in the other. Name a folder elsewhere, best on another disk"
        )
    try:
        names = sorted(os.listdir(target))
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ConflictError(
            message=f"{str(target)!r} is a file; name a new or empty folder for the backup"
        ) from error
    if names:
        raise ConflictError(
            message=f"{str(target)!r} isn't empty (it holds {names[0]!r}); name a new or empty "
            "folder for the backup"
        )


def _describe(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _describe_all(folder: Path) -> dict[str, tuple[int, int, int] | None]:
    return {path.name: _describe(path) for path in sorted(folder.glob("*.json"))}
