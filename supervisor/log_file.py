"""The file of the event log: made whole or not at all, told from foreign ones, watched."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from planaria.protocol.errors import DataDirectoryError, IntegrityError

from . import log_schema as schema

Trace = Callable[[str], None]

BUSY_MS = 1_000  # another process may be rebuilding the WAL's index
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\x00"


def create_database(path: Path, vfs: str | None = None) -> None:
    """Makes an empty log at `path`, under another name until it is whole and on the disk."""
    unfinished = path.with_name(path.name + ".new")
    for leftover in (unfinished, Path(f"{unfinished}-journal"), Path(f"{unfinished}-wal")):
        leftover.unlink(missing_ok=True)
    # SQLite gives -wal and -shm the mode of the database.
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(str(unfinished), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        connection.pragma("page_size", schema.PAGE_BYTES)
        connection.pragma("synchronous", "FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", schema.FORMAT_VERSION)
        connection.execute(schema.CREATE_TABLES + schema.CREATE_RUNS)
        connection.execute(schema.INSERT_META, ("database_id", os.urandom(16).hex()))
        connection.execute("COMMIT")
        connection.pragma("journal_mode", "WAL")
    finally:
        connection.close()
    os.rename(unfinished, path)
    sync_directory(path.parent)


def check_header(path: Path) -> None:
    """Refuses a file that isn't an event log of ours, without SQLite (it would recover it).

    Only before the first connection of this process: closing any descriptor of the file drops
    the locks that SQLite holds on it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise DataDirectoryError(
            message=f"{str(path)!r} can't be opened as an event log: {error.strerror}"
        ) from error
    try:
        header = os.read(descriptor, _HEADER_BYTES)
    except OSError as error:
        raise DataDirectoryError(
            message=f"{str(path)!r} can't be read: {error.strerror}"
        ) from error
    finally:
        os.close(descriptor)
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise IntegrityError(
            message=f"{str(path)!r} is no SQLite database, or its first page is damaged. "
            "Restore a backup or choose another data directory"
        )
    application_id, user_version = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
    check_marks(path, application_id, user_version)
    page_bytes = int.from_bytes(header[16:18], "big")
    if page_bytes != schema.PAGE_BYTES or header[18:20] != b"\x02\x02":
        raise IntegrityError(message=f"the first page of {str(path)!r} is damaged")


def check_marks(path: Path, application_id: int, user_version: int) -> None:
    """Refuses a database that isn't ours, or one of a newer planaria."""
    if application_id != schema.APPLICATION_ID:
        raise DataDirectoryError(
            message=f"{str(path)!r} is a database, but none of planaria (application id "
            f"{application_id:#x}); it was not touched. Choose another data directory"
        )
    if user_version > schema.FORMAT_VERSION:
        raise DataDirectoryError(
            message=f"{str(path)!r} was written by a newer planaria (format {user_version}, this "
            f"one reads up to {schema.FORMAT_VERSION}); it was not touched. Use the newer one"
        )
    if user_version < 1:
        raise IntegrityError(message=f"{str(path)!r} has the format {user_version}: damaged")


def find_descriptors(path: str) -> set[int]:
    """Returns the descriptors of this process that are open on `path`."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own descriptor is closed by now
        if target == path:
            found.add(int(name))
    return found


def is_same_file(path: str, descriptor: int) -> bool:
    """Tells whether `path` is still the open file. Never by opening it: see `check_header`."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def sync_directory(directory: Path) -> None:
    """Puts the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sqlite_version() -> str:
    """Returns the version of the SQLite that apsw carries ("3.54.1")."""
    return str(apsw.sqlite_lib_version())


class TracingVFS(apsw.VFS):
    """SQLite's own VFS, which also tells `trace` of the moments before a file is synced.

    Only for tests that kill the process there: production opens the log without a trace.
    """

    def __init__(self, trace: Trace) -> None:
        self.vfs_name = f"planaria-trace-{id(self)}"
        self.trace = trace
        super().__init__(self.vfs_name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _TracedFile(name, flags, self.trace)


class _TracedFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], trace: Trace) -> None:
        self.trace = trace
        self.point = ""
        self.written = False  # since the last sync
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            self.point = "frames_written"
        elif flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            self.point = "checkpoint"
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        # The WAL's header is synced by itself, and a checkpoint syncs a WAL without new frames.
        self.written = self.written or offset > 0 or self.point == "checkpoint"
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self.point and self.written:
            try:
                self.trace(self.point)
            except OSError as error:  # a disk that refuses, as a test plants it
                raise apsw.IOError(str(error)) from error
        self.written = False
        super().xSync(flags)
