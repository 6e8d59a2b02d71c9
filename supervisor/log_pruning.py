"""The one way in which events are deleted, and the reading that decides on which.

The triggers that forbid it are lifted inside the transaction that deletes: nobody else ever sees a
database without them, and a kill leaves it as it was. The same transaction appends to the system's
run what was deleted, so that the log says why its positions have holes; these events stand behind
all others, so that no position is given twice.
"""

from collections.abc import Iterable, Sequence

import apsw

from planaria.protocol.errors import IntegrityError
from planaria.protocol.events import Event

from .event_log import EventLog
from .event_reader import EventReader
from .log_schema import PAGE_BYTES
from .run_rows import RunRow

PAGE_ROWS = 64  # an event may have 2 MiB: 128 MiB at most
COMPACT_BYTES_MAX = 256 << 20  # a rewrite needs twice as much room, and about 1 s
_GUARD = "events_not_deleted"
_SELECT_GUARD = "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?"
_DELETE_EVENTS = "DELETE FROM events WHERE run_id = ?"
_DELETE_ROW = "DELETE FROM runs WHERE run_id = ?"
_SELECT_ROWS = (
    "SELECT run_id, status, workflow_id, admitted_at, ended_at FROM runs "
    "WHERE run_id > ? ORDER BY run_id LIMIT ?"
)
_SELECT_ROW = "SELECT run_id, status, workflow_id, admitted_at, ended_at FROM runs WHERE run_id = ?"
_SELECT_BODIES = (
    "SELECT position, run_id, type, body FROM events WHERE position > ? ORDER BY position LIMIT ?"
)


class RetentionReader(EventReader):
    """A reader of what decides whether something is kept; holds no transaction between calls."""

    def row_page(self, after_run_id: str) -> list[RunRow]:
        """Returns the next rows of the list of runs, by id; empty at its end."""
        return [RunRow(*row) for row in self._rows(_SELECT_ROWS, (after_run_id, PAGE_ROWS))]

    def find_row(self, run_id: str) -> RunRow | None:
        """Returns the row of a run, or None."""
        rows = self._rows(_SELECT_ROW, (run_id,))
        return RunRow(*rows[0]) if rows else None

    def body_page(self, after_position: int) -> list[tuple[int, str, str, bytes]]:
        """Returns (position, run id, type, stored bytes) of the next events; empty at the end."""
        return self._rows(_SELECT_BODIES, (after_position, PAGE_ROWS))

    def hash_of(self, run_id: str, sequence: int) -> bytes:
        """Returns the hash of an event that is there."""
        found = self._hash_at(run_id, sequence)
        assert found is not None, f"event {sequence} of run {run_id!r} was read a moment ago"
        return found


class PrunableLog(EventLog):
    """The writer that may delete whole runs."""

    _pruned: Sequence[str] = ()

    def prune(self, batch: Sequence[Event], run_ids: Sequence[str]) -> Sequence[int]:
        """Appends `batch`, which has to record it, and deletes the runs, in one transaction.

        Raises:
            CommitUnknownError, IntegrityError: as `append` does.
        """
        assert batch, "what is deleted has to be recorded"
        self._pruned = run_ids
        try:
            return self.append(batch)
        finally:
            self._pruned = ()

    def compact(self) -> bool:
        """Gives free pages back to the disk if that is cheap; returns whether it did.

        Cheap: more than half of the file is free, and what remains is small. Else the free pages
        are used by the events that come. Nobody else may be at work.
        """
        self._check_usable()
        try:
            self.checkpoint_if_due(idle=True)
            pages, free = (
                int(self._rows(f"PRAGMA {name}")[0][0]) for name in ("page_count", "freelist_count")
            )
            used = (pages - free) * PAGE_BYTES
            if free * 2 < pages or used > COMPACT_BYTES_MAX:
                return False
            self._connection.execute("VACUUM")
        except (apsw.FullError, apsw.BusyError):
            return False  # it was rolled back as a whole, and nothing depended on it
        except apsw.Error as error:
            self._refuse(error)
        return True

    def _write_rows(self, rows: Iterable[RunRow]) -> None:
        """Writes rows and deletes what is to go: the last thing in the transaction of a batch."""
        super()._write_rows(rows)
        if not self._pruned:
            return
        guard = self._connection.execute(_SELECT_GUARD, (_GUARD,)).fetchall()
        if not guard:
            self._connection.execute("ROLLBACK")
            self._stop(
                IntegrityError(
                    message=f"the event log {str(self.path)!r} lacks the trigger {_GUARD!r}: "
                    "somebody has changed it, and nothing was deleted. Restore a backup"
                ),
                None,
            )
        self._connection.execute(f"DROP TRIGGER {_GUARD}")
        for run_id in self._pruned:
            self._connection.execute(_DELETE_EVENTS, (run_id,))
            self._connection.execute(_DELETE_ROW, (run_id,))
        self._connection.execute(str(guard[0][0]))
