"""Reading the event log: runs, sessions, lists, and the check of every chain.

Each run's events are a chain: an event's hash is sha256 over the previous event's hash and the
stored bytes; the first one's previous hash are the 16 bytes of the database's id.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn, Self

import apsw

from planaria.protocol.directories import refuse_empty
from planaria.protocol.errors import DataDirectoryError, IntegrityError
from planaria.protocol.events import Event, decode_event, encode_event
from planaria.protocol.limits import HISTORY_PAGE_BYTES, RUNS_LISTED_MAX

from . import log_schema as schema
from .log_file import BUSY_MS, check_marks
from .run_rows import RunRow

PAGE_ROWS = 256  # rows of one read: short reads don't keep the WAL from being reset


class LogReading:
    """What can be read from an open log; between two calls no transaction is held."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path
        self.database_id = self._read_database_id()
        self._chain_start = bytes.fromhex(self.database_id)

    def read_run(
        self, run_id: str, after: int = 0, limit: int | None = None
    ) -> Iterator[tuple[int, Event]]:
        """Yields (position, event) of a run behind sequence `after`, verifying its chain.

        Raises:
            IntegrityError: the chain is broken there; nothing behind that place is yielded.
        """
        previous = self._hash_at(run_id, after)
        last = 0
        while previous is not None and (limit is None or limit > 0):
            page = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
            rows = self._rows(schema.SELECT_RUN, (run_id, after, page))
            for position, sequence, body, digest in rows:
                if sequence != after + 1:
                    raise broken_chain(run_id, after + 1, "is missing")
                if sha256(previous + body).digest() != digest:
                    raise broken_chain(run_id, sequence, "doesn't match its hash")
                event = decode_event(body)
                if event.run_id != run_id or event.sequence != sequence:
                    raise broken_chain(run_id, sequence, "stands at another event's place")
                previous, after = digest, sequence
                yield position, event
            if not rows and after < last:
                # Seen from its end the run goes on: a damaged index hides what is between.
                raise broken_chain(run_id, after + 1, "is missing")
            if len(rows) < page:
                last = self.last_sequence(run_id)
                if last == after:
                    return
            limit = None if limit is None else limit - page

    def read_session(
        self,
        run_id: str,
        session_id: str,
        after_sequence: int,
        limit: int = PAGE_ROWS,
        bytes_max: int = HISTORY_PAGE_BYTES,
    ) -> list[tuple[int, bytes]]:
        """Returns (sequence, stored bytes) of a session's events behind `after_sequence`.

        At least one if there is any, else no more than `limit` and `bytes_max`. Start with the
        sequence before the session's first event: there is no index by session (it would cost
        every write), the run is scanned from there on.
        """
        rows: list[tuple[int, bytes]] = []
        total = 0
        bindings = (run_id, after_sequence, session_id, limit)
        for sequence, body in self._rows(schema.SELECT_SESSION, bindings):
            total += len(body)
            if rows and total > bytes_max:
                break
            rows.append((sequence, body))
        return rows

    def read_all(self, after_position: int, limit: int = PAGE_ROWS) -> list[tuple[int, Event]]:
        """Returns (position, event) of all runs behind a position, in the order of the log."""
        rows = self._rows(schema.SELECT_ALL, (after_position, limit))
        return [(position, decode_event(body)) for position, body in rows]

    def last_position(self) -> int:
        """Returns the position of the last event, 0 for an empty log."""
        return int(self._rows(schema.SELECT_LAST_POSITION)[0][0] or 0)

    def run_exists(self, run_id: str) -> bool:
        """Tells whether the run has an event."""
        return bool(self._rows(schema.SELECT_RUN_EXISTS, (run_id,)))

    def open_runs(self) -> list[str]:
        """Returns the ids of the runs that have not ended, sorted; finished ones cost nothing."""
        return [run_id for (run_id,) in self._rows(schema.SELECT_OPEN_RUNS)]

    def list_runs(self, limit: int = RUNS_LISTED_MAX, status: str | None = None) -> list[RunRow]:
        """Returns the rows of the runs, newest first, of one status if it is given."""
        return [RunRow(*row) for row in self._rows(schema.SELECT_RUN_ROWS, (status, limit))]

    def count_runs(self) -> dict[str, int]:
        """Returns how many runs there are of each status."""
        return dict(self._rows(schema.SELECT_RUN_COUNTS))

    def run_ids(self) -> Iterator[str]:
        """Yields the id of every run that has an event, sorted; read from the events themselves."""
        run_id: str | None = ""
        while (run_id := self._rows(schema.SELECT_NEXT_RUN, (run_id,))[0][0]) is not None:
            yield run_id

    def first_hash(self, event: Event) -> bytes:
        """Returns the hash that `event` has, or will have, as the first one of its run."""
        return sha256(self._chain_start + encode_event(event)).digest()

    def find_damage(self) -> Iterator[str]:
        """Yields a finding per run whose chain is broken, and what SQLite's own check finds."""
        try:
            for run_id in self.run_ids():
                try:
                    for _ in self.read_run(run_id):
                        pass
                except IntegrityError as error:
                    yield str(error)
            for (text,) in self._rows("PRAGMA integrity_check"):
                if text != "ok":
                    yield f"{str(self.path)!r}: {text}"
        except IntegrityError as error:
            yield str(error)

    def _read_database_id(self) -> str:
        rows = self._rows(schema.SELECT_META, ("database_id",))
        database_id = rows[0][0] if rows else ""
        if len(database_id) != 32 or not set(database_id) <= set("0123456789abcdef"):
            raise IntegrityError(message=f"the event log {str(self.path)!r} has no database id")
        return str(database_id)

    def last_sequence(self, run_id: str) -> int:
        rows = self._rows(schema.SELECT_TAIL, (run_id, 1))
        return int(rows[0][0]) if rows else 0

    def _hash_at(self, run_id: str, sequence: int) -> bytes | None:
        if sequence == 0:
            return self._chain_start
        rows = self._rows(schema.SELECT_HASH, (run_id, sequence))
        return rows[0][0] if rows else None

    def _rows(self, sql: str, bindings: Sequence[str | int | None] = ()) -> list[Any]:
        """Returns all rows at once: a half-read statement would hold a transaction open."""
        try:
            return self._connection.execute(sql, bindings).fetchall()
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as error:
            raise damaged(self.path, error) from error
        except apsw.Error as error:
            self._refuse(error)

    def _refuse(self, error: apsw.Error) -> NoReturn:
        raise DataDirectoryError(
            message=f"the event log {str(self.path)!r} can't be read: {error}"
        ) from error


class EventReader(LogReading):
    """Reads the log of another process, which may be writing it."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Returns a reader of the database file `path`.

        Raises:
            DataDirectoryError: no database, a foreign one, or one of a newer planaria.
        """
        path = path.resolve()
        if not path.is_file():
            raise refuse_empty(str(path))
        try:
            connection = apsw.Connection(
                str(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
            )
            connection.set_busy_timeout(BUSY_MS)
            marks = [connection.pragma(name) for name in ("application_id", "user_version")]
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise damaged(path, error) from error
        except apsw.Error as error:
            raise DataDirectoryError(
                message=f"the event log {str(path)!r} can't be opened: {error}"
            ) from error
        check_marks(path, *marks)
        return cls(connection, path)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def damaged(path: Path, error: Exception) -> IntegrityError:
    """Returns the error for a file that SQLite can't make sense of."""
    return IntegrityError(
        message=f"the event log {str(path)!r} is damaged ({error}); it is left as it is. "
        "Restore a backup"
    )


def broken_chain(run_id: str, sequence: int, what: str) -> IntegrityError:
    """Returns the error for an event that isn't the one that was appended."""
    return IntegrityError(
        message=f"run {run_id!r}: event {sequence} {what}; nothing of this run was used. "
        "Restore a backup, 'planaria verify' lists every finding"
    )
