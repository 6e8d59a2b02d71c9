"""The event log: one SQLite file, one writer; what `append` returned survives a power cut."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn, Self

import apsw

from planaria.protocol.errors import CommitUnknownError, DataDirectoryError, IntegrityError
from planaria.protocol.events import Event, decode_event, encode_event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.limits import FRAME_BYTES_MAX

from . import log_schema as schema
from .event_reader import PAGE_ROWS, EventReader, LogReading, broken_chain, damaged
from .log_file import (
    BUSY_MS,
    Trace,
    TracingVFS,
    check_header,
    create_database,
    find_descriptors,
    is_same_file,
)
from .run_rows import RunRow, project_rows
from .wal_check import classify_wal

__all__ = ["EventLog", "EventReader", "RunRow"]

EVENT_BYTES_MAX = 2 * FRAME_BYTES_MAX  # decode_event reads no more
WAL_IDLE_PAGES = 256  # 2 MiB: checkpointed when nothing else is to do
WAL_PASSIVE_PAGES = 1_024  # 8 MiB: checkpointed between two batches
WAL_TRUNCATE_PAGES = 4_096  # 32 MiB: readers are waited for ...
WAL_RETRY_PAGES = 256  # ... again after each 2 MiB more, and ...
WAL_BUSY_MS = 5  # ... this long; with a timeout of 2 s the writer stood still for 2 s
WAL_FILE_CHECK_BATCHES = 64  # two stats, about 3 µs, in so many commits


class EventLog(LogReading):
    """The one writer. After any error of a write it refuses everything: the process must exit.

    An error at a commit says that the outcome is unknown: the rows may be there after a restart
    (test_row_of_a_failed_commit_may_be_there_after_a_restart).
    """

    def __init__(
        self, connection: apsw.Connection, path: Path, trace: Trace | None, vfs: apsw.VFS | None
    ) -> None:
        self._stopped: str | None = None
        self.goes_on_after_failure = False  # a bug that tests plant, see faults.py
        self._trace: Trace = trace or _trace_nothing
        self._vfs = vfs  # SQLite knows it by name only: kept alive here
        self._wal_path = f"{path}-wal"
        self._wal_descriptor = -1
        self._wal_pages = 0
        self._tried_pages = 0  # size of the WAL at the last checkpoint
        self._batches = 0
        self._epoch = 0
        self._mono = 0
        super().__init__(connection, path)

    @classmethod
    def open(cls, directory: Path, *, trace: Trace | None = None, vfs: str | None = None) -> Self:
        """Returns the log in `directory`, made new if there is none. Hold the lock before.

        `trace` is told the points of a commit ("before_begin", "frames_written", "committed")
        and the middle of a checkpoint ("checkpoint"); `vfs` names a VFS of a test.

        Raises:
            DataDirectoryError: a foreign or newer file, or the disk refuses.
            IntegrityError: history is damaged; the files are left as they are.
        """
        path = directory.resolve() / schema.DATABASE_NAME
        tracing = TracingVFS(trace) if trace else None
        vfs = tracing.vfs_name if tracing else vfs
        try:
            if not path.exists():
                create_database(path, vfs)
            check_header(path)
            before = find_descriptors(f"{path}-wal")
            connection = apsw.Connection(
                str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs
            )
            # Closing must not write: after a failed commit, or beside a damaged history.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            try:
                log = cls(connection, path, trace, tracing)
                log._start(before)
            except BaseException:
                connection.close()
                raise
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
            raise damaged(path, error) from error
        except (apsw.Error, OSError) as error:
            raise DataDirectoryError(
                message=f"the event log {str(path)!r} can't be opened: {error}"
            ) from error
        return log

    @property
    def epoch(self) -> int:
        """Returns the epoch of the last event: 0 in a new log."""
        return self._epoch

    def close(self) -> None:
        """Checkpoints and closes the file; after a failed commit it only closes it."""
        try:
            if self._stopped is None:
                self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._stopped = self._stopped or "it is closed"
            self._connection.close()

    def append(
        self, batch: Sequence[Event], run_updates: Iterable[RunRow] | None = None
    ) -> Sequence[int]:
        """Commits the events in one transaction and returns their positions.

        `run_updates` are written with them; None: the rows that the events make by themselves.

        Raises:
            CommitUnknownError: an I/O error; only a restart can tell what is on the disk.
            IntegrityError: an event doesn't continue its run as stored; nothing was written.
        """
        self._check_usable()
        if not batch:
            return range(0)
        rows = project_rows(batch) if run_updates is None else run_updates
        try:
            self._trace("before_begin")
            positions = self._commit(batch, rows)
            self._batches += 1
            if self._batches % WAL_FILE_CHECK_BATCHES == 0:
                self._check_wal_file()
            self._trace("committed")
        except apsw.ConstraintError as error:
            self._stop(IntegrityError(message=f"the event log refused a row: {error}"), error)
        except apsw.Error as error:
            self._refuse(error)
        except BaseException as error:
            self._stopped = self._stopped or f"a commit was interrupted by {error!r}"
            raise
        return positions

    def checkpoint_if_due(self, idle: bool) -> bool:
        """Moves the WAL into the database if it has grown enough; call it between two batches.

        Returns whether there was something to do. Readers are waited for only above 32 MiB.
        """
        self._check_usable()
        pages, grown = self._wal_pages, self._wal_pages - self._tried_pages
        if pages >= WAL_TRUNCATE_PAGES and grown >= WAL_RETRY_PAGES:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        elif grown >= (WAL_IDLE_PAGES if idle else WAL_PASSIVE_PAGES):
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        else:
            return False
        return True

    def rebuild_runs(self) -> None:
        """Drops the rows of the runs and makes them again from all events."""
        self._check_usable()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(schema.DROP_RUNS)
            self._connection.execute(schema.CREATE_RUNS)
            position = 0
            while page := self.read_all(position, PAGE_ROWS):
                self._write_rows(project_rows(event for _, event in page))
                position = page[-1][0]
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            self._refuse(error)

    def _start(self, wal_descriptors_before: set[int]) -> None:
        """Sets the connection up, and refuses a log whose history isn't what was committed."""
        connection = self._connection
        connection.set_busy_timeout(BUSY_MS)
        connection.pragma("synchronous", "FULL")
        connection.pragma("recursive_triggers", True)
        connection.pragma("trusted_schema", False)
        connection.wal_autocheckpoint(0)  # before the hook, which it would replace
        connection.set_wal_hook(self._note_wal)
        accepted, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        state = classify_wal(Path(self._wal_path), schema.PAGE_BYTES, max(accepted, 0))
        if state == "history_damaged":
            raise IntegrityError(
                message=f"the write-ahead log {self._wal_path!r} is damaged before its end: "
                "events that were committed can't be read. The files are left as they are. "
                "Copy them away, then restore a backup"
            )
        self._wal_pages = max(accepted, 0)
        new = find_descriptors(self._wal_path) - wal_descriptors_before
        self._wal_descriptor = new.pop() if new else -1
        if not self._rows(schema.SELECT_RUNS_TABLE):
            self.rebuild_runs()
        self._check_tails()

    def _check_tails(self) -> None:
        """Verifies the last event of the log, of the system's run, and of each open run."""
        for run_id in {SYSTEM_RUN_ID, *self.open_runs()}:
            if self._check_tail(run_id) == 0 and run_id != SYSTEM_RUN_ID:
                raise broken_chain(run_id, 1, "is missing")
        last = self._rows(schema.SELECT_LAST_BODY)
        if last:
            event = decode_event(last[0][0])
            if self._check_tail(event.run_id) != event.sequence:
                raise broken_chain(event.run_id, event.sequence, "isn't the last one in its index")
            self._epoch, self._mono = event.epoch, event.mono

    def _check_tail(self, run_id: str) -> int:
        """Verifies the last event of a run and returns its sequence, 0 if there is none."""
        tail = self._rows(schema.SELECT_TAIL, (run_id, 2))
        if not tail:
            return 0
        sequence, body, digest = tail[0]
        before, previous = tail[1][0::2] if len(tail) == 2 else (0, self._chain_start)
        if sequence != before + 1:
            raise broken_chain(run_id, before + 1, "is missing")
        if sha256(previous + body).digest() != digest:
            raise broken_chain(run_id, sequence, "doesn't match its hash")
        return int(sequence)

    def _commit(self, batch: Sequence[Event], run_rows: Iterable[RunRow]) -> Sequence[int]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        # Never from a counter of ours: after an error it would leave a hole.
        first = self.last_position() + 1
        position = first
        tails: dict[str, tuple[int, bytes]] = {}
        rows: list[tuple[int, str, int, str | None, str, bytes, bytes]] = []
        for event in batch:
            run_id = event.run_id
            tail = tails.get(run_id)
            if tail is None:
                tail = self._read_tail(event)
            self._check_event(event, tail[0])
            body = encode_event(event)
            if len(body) > EVENT_BYTES_MAX:
                self._abort(event, f"has {len(body)} bytes; at most {EVENT_BYTES_MAX} are stored")
            digest = sha256(tail[1] + body).digest()
            tails[run_id] = (event.sequence, digest)
            rows.append(
                (position, run_id, event.sequence, event.session_id, event.type, body, digest)
            )
            position += 1
        connection.executemany(schema.INSERT_EVENT, rows)
        self._write_rows(run_rows)
        connection.execute("COMMIT")
        return range(first, position)

    def _read_tail(self, event: Event) -> tuple[int, bytes]:
        """Returns sequence and hash of the stored event that this one must follow.

        That nothing stands behind it is the business of the insert (`events_not_replaced`): to
        ask for the last one here costs three times as much.
        """
        before = event.sequence - 1
        if before == 0:
            return 0, self._chain_start
        found = self._hash_at(event.run_id, before)
        if found is None and self.goes_on_after_failure:
            return before, self._chain_start
        if found is None:
            self._abort(event, f"has no event {before} before it in the log")
        return before, found

    def _check_event(self, event: Event, last_sequence: int) -> None:
        """Asserts what holds for every event whatever the fold says; a failure is ours."""
        if event.sequence != last_sequence + 1:
            self._abort(event, f"doesn't follow event {last_sequence}, the last one stored")
        if event.epoch != self._epoch:
            if event.type != "SupervisorStarted" or event.epoch != self._epoch + 1:
                self._abort(event, f"is of epoch {event.epoch} in epoch {self._epoch}")
            self._epoch, self._mono = event.epoch, event.mono
        if event.mono < self._mono:
            self._abort(event, f"is of {event.mono} µs, before {self._mono} µs")
        self._mono = event.mono

    def _abort(self, event: Event, what: str) -> NoReturn:
        text = f"run {event.run_id!r}: event {event.sequence} ({event.type}) {what}"
        self._connection.execute("ROLLBACK")
        self._stop(IntegrityError(message=text + "; nothing of its batch was written"), None)

    def _write_rows(self, rows: Iterable[RunRow]) -> None:
        bindings = [
            (row.run_id, row.status, row.workflow_id, row.admitted_at, row.ended_at) for row in rows
        ]
        if bindings:
            self._connection.executemany(schema.UPSERT_RUN, bindings)

    def _checkpoint(self, mode: int) -> None:
        try:
            self._check_wal_file()
            self._connection.set_busy_timeout(WAL_BUSY_MS)
            self._connection.wal_checkpoint(mode=mode)
            self._tried_pages = self._wal_pages
            if mode == apsw.SQLITE_CHECKPOINT_TRUNCATE:
                self._wal_pages = self._tried_pages = 0
        except apsw.BusyError:
            self._tried_pages = self._wal_pages  # a reader lingers; tried again when it has grown
        except apsw.Error as error:
            self._refuse(error)
        self._connection.set_busy_timeout(BUSY_MS)

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:
            self._tried_pages = 0  # SQLite has begun to write it from its start again
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _check_wal_file(self) -> None:
        """Stops if `-wal` isn't the file any more that SQLite writes to.

        Commits to an unlinked file succeed, and are gone with the process.
        """
        if self._wal_descriptor < 0 or is_same_file(self._wal_path, self._wal_descriptor):
            return
        text = f"{self._wal_path!r} was removed or replaced under the running supervisor"
        self._stop(CommitUnknownError(message=text + _RESTART), None)

    def _check_usable(self) -> None:
        if self._stopped is not None:
            raise CommitUnknownError(message=f"the event log takes nothing more: {self._stopped}")

    def _rows(self, sql: str, bindings: Sequence[str | int | None] = ()) -> list[Any]:
        self._check_usable()
        return super()._rows(sql, bindings)

    def _refuse(self, error: apsw.Error) -> NoReturn:
        text = f"the event log {str(self.path)!r} met an error ({type(error).__name__}: {error})"
        self._stop(CommitUnknownError(message=text + _RESTART), error)

    def _stop(
        self, reason: CommitUnknownError | IntegrityError, cause: Exception | None
    ) -> NoReturn:
        if not self.goes_on_after_failure:
            self._stopped = self._stopped or str(reason)
        raise reason from cause


_RESTART = (
    "; whether the last events are on the disk is unknown. Nothing was acknowledged. "
    "Look after the disk and start again: the log then tells"
)


def _trace_nothing(_point: str) -> None:
    """Stands where tests trace."""
