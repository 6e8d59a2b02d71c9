"""Looks at a data directory without a supervisor: its log is opened for reading only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planaria.protocol.errors import NotFoundError, RunNotFoundError
from planaria.protocol.ids import check_id
from planaria.protocol.limits import RUNS_LISTED_MAX

from .blobs import BlobStore
from .blocking import find_blocks, list_blocks
from .data_directory import DataDirectory
from .event_reader import EventReader
from .explaining import explain_timers
from .library import BlobLibrary
from .views import describe_event, describe_row, describe_run


class OfflineLog:
    """What clients may ask a supervisor for, answered from the log itself."""

    def __init__(self, reader: EventReader, blobs: BlobStore) -> None:
        self._reader = reader
        self._library = BlobLibrary(blobs, reader)

    def replay_run(self, run_id: str, at: int | None) -> dict[str, Any]:
        """Returns a run as it was at one of its events, by default its last; nothing is run."""
        self._check_run(run_id)
        run = self._library.run(run_id, upto=at)
        if run is None or (at is not None and run.sequence < at):
            raise NotFoundError(message=f"run {run_id!r} has no event {at}")
        return {**describe_run(run, cost=self._library.cost), "atSequence": run.sequence}

    def show_run(self, run_id: str) -> dict[str, Any]:
        """Returns a run as a supervisor would show it, without processes: there are none."""
        self._check_run(run_id)
        run = self._library.run(run_id)
        assert run is not None
        shown = describe_run(run, cost=self._library.cost)
        if not run.is_ended and find_blocks({}, run) is None:
            missing = f"a supervisor, and none runs: 'planaria resume {run_id}' starts one"
            shown["waitsFor"] = [missing, *explain_timers(run)]
        return shown

    def read_events(self, run_id: str, after: int) -> Iterator[dict[str, Any]]:
        """Yields the events of a run behind a sequence, in their order."""
        self._check_run(run_id)
        for position, event in self._reader.read_run(run_id, after=after):
            yield describe_event(position, event)

    def list_runs(self, limit: int, status: str | None) -> list[dict[str, Any]]:
        """Returns the newest runs first."""
        rows = self._reader.list_runs(max(0, min(limit, RUNS_LISTED_MAX)), status)
        return [describe_row(row) for row in rows]

    def list_blocks(self, run_id: str | None) -> list[dict[str, Any]]:
        """Returns what waits for people, of one run or of all open ones."""
        if run_id is not None:
            self._check_run(run_id)
        wanted = [run_id] if run_id is not None else self._reader.open_runs()
        runs = (self._library.run(one) for one in wanted)
        return [block for run in runs if run is not None for block in list_blocks(run)]

    def count_runs(self) -> dict[str, int]:
        """Returns how many runs there are of each status."""
        return self._reader.count_runs()

    def _check_run(self, run_id: str) -> None:
        if not self._reader.run_exists(check_id(run_id, "run id")):
            raise RunNotFoundError(run_id=run_id)


@contextmanager
def open_log(root: Path) -> Iterator[OfflineLog]:
    """Gives the log of a data directory for reading.

    Raises:
        NotFoundError: there is no such directory.
        DataDirectoryError: it holds no event log, or one that can't be read.
    """
    if not root.exists():
        raise NotFoundError(message=f"there is no data directory {str(root)!r}")
    directory = DataDirectory(root)
    reader = EventReader.open(directory.database)
    try:
        yield OfflineLog(reader, BlobStore(directory.blobs))
    finally:
        reader.close()
