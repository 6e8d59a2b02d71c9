"""A copy of the event log as it was at one moment, made beside a supervisor that writes it."""

import os
from pathlib import Path

import apsw

from planaria.protocol.errors import DataDirectoryError

from . import log_schema as schema
from .event_reader import EventReader
from .log_file import BUSY_MS, Trace

STEP_PAGES = 1_024  # 8 MiB between two looks at whether the process is to end


class LogSnapshot(EventReader):
    """A reader that can hold on to a moment; it takes no lock that a writer would wait for.

    While it holds on the writer goes on, but its write-ahead log can't be reset: it grows by what
    is committed in the time of the copy.
    """

    def pin(self) -> int:
        """Holds on to this moment, and returns the position of the last event at it."""
        self._rows("BEGIN")
        return self.last_position()

    def unpin(self) -> None:
        """Lets go of the moment; what is committed is seen again."""
        self._rows("ROLLBACK")

    def copy_to(self, path: Path, trace: Trace) -> None:
        """Writes the database of the pinned moment to a new file; whoever asks syncs it.

        Inside the pinned transaction SQLite's backup never starts anew, whatever is committed
        meanwhile; without it a busy writer would make it begin again for ever.

        Raises:
            DataDirectoryError: the disk refuses.
        """
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            target = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                target.set_busy_timeout(BUSY_MS)
                with target.backup("main", self._connection, "main") as backup:
                    while not backup.done:
                        backup.step(STEP_PAGES)
                        trace("backup_pages")
            finally:
                target.close()
        except apsw.Error as error:
            raise DataDirectoryError(
                message=f"the event log {str(self.path)!r} can't be copied to {str(path)!r}: "
                f"{error}. Make room, or choose another disk"
            ) from error


def remove_side_files(database: Path) -> None:
    """Removes what a reader of a database leaves beside it: an index, and an empty log."""
    log = Path(f"{database}-wal")
    if log.exists() and log.stat().st_size == 0:
        log.unlink()
    if not log.exists():
        Path(f"{database}-shm").unlink(missing_ok=True)


SIDE_FILES = frozenset({f"events/{schema.DATABASE_NAME}-wal", f"events/{schema.DATABASE_NAME}-shm"})
