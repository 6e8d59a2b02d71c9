"""Looks at a data directory: asks its supervisor, or has the log read when none answers.

Looking never makes a directory and never starts a supervisor.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from planaria.protocol.directories import (
    DATABASE,
    refuse_file,
    refuse_foreign,
    refuse_unusable,
)
from planaria.protocol.errors import NotFoundError, SupervisorUnavailableError

from .client import Client
from .discovery import find_directory, find_supervisor, read_holder_pid
from .log_reader import read_answer, read_log


class Observer(Protocol):
    """What can be seen of a data directory, with a supervisor or without.

    `silent_pid` is that of a supervisor that is there and doesn't answer.
    """

    @property
    def silent_pid(self) -> int | None: ...
    def ping(self) -> dict[str, Any] | None: ...
    def status(self, run_id: str) -> dict[str, Any]: ...
    def runs(self, *, limit: int = 50, status: str | None = None) -> list[dict[str, Any]]: ...
    def count_runs(self) -> dict[str, int]: ...
    def processes(self) -> list[dict[str, Any]]: ...
    def blocks(self, run_id: str | None = None) -> list[dict[str, Any]]: ...
    def events(
        self, run_id: str, *, after: int = 0, follow: bool = False
    ) -> Iterator[dict[str, Any]]: ...


@contextmanager
def observe(data_dir: Path | None) -> Iterator[Observer]:
    """Gives an observer of a data directory.

    Raises:
        NotFoundError: there is no such directory.
    """
    directory = check_exists(data_dir)
    try:
        connection = find_supervisor(directory)
    except SupervisorUnavailableError as error:
        # Stopped or hung: what it has committed can be read all the same.
        sys.stderr.write(f"planaria: {error}; the log is read instead\n")
        yield _LogObserver(directory, read_holder_pid(directory))
        return
    if connection is None:
        yield _LogObserver(directory)
        return
    connection.close()
    with Client(directory, start_if_missing=False) as client:
        yield client


def check_exists(data_dir: Path | None) -> Path:
    """Returns the data directory.

    Raises:
        NotFoundError: it isn't there, so that nothing in it can be found.
        DataDirectoryError: it is no data directory, or can't be read.
    """
    directory = find_directory(data_dir)
    try:
        names = os.listdir(directory)
        is_used = directory.joinpath(*DATABASE).exists()
    except FileNotFoundError as error:
        raise NotFoundError(
            message=f"there is no data directory {str(directory)!r}; 'planaria run' or "
            "'planaria up' makes one, --data-dir names another"
        ) from error
    except NotADirectoryError as error:
        raise refuse_file(str(directory)) from error
    except OSError as error:
        raise refuse_unusable(str(directory), error) from error
    refusal = None if is_used else refuse_foreign(str(directory), names)
    if refusal is not None:
        raise refusal
    return directory


def find_supervisor_facts(observer: Observer) -> dict[str, Any] | None:
    """Returns what is known of the supervisor, with `isAnswering`; None if none runs."""
    facts = observer.ping()
    if facts is not None:
        return {**facts, "isAnswering": True}
    pid = observer.silent_pid
    return None if pid is None else {"pid": pid, "isAnswering": False}


def describe_silence(pid: int) -> str:
    """Returns what is said of a supervisor that holds the directory and doesn't answer."""
    return (
        f"pid {pid} has the directory and doesn't answer (stopped?); 'planaria up --take-over' "
        "ends it and starts another one, 'kill -CONT' lets a stopped one go on"
    )


class _LogObserver:
    """Has the log read by a process of supervisor/, the only folder that opens the database."""

    def __init__(self, directory: Path, silent_pid: int | None = None) -> None:
        self._directory = directory
        self.silent_pid = silent_pid

    def ping(self) -> dict[str, Any] | None:
        """Returns None: no supervisor answers."""
        return None

    def status(self, run_id: str) -> dict[str, Any]:
        """Returns a run as `Client.status` does."""
        shown: dict[str, Any] = self._ask("show", "--", str(self._directory), run_id)
        if self.silent_pid is not None and shown["status"] in ("admitted", "running"):
            shown["waitsFor"] = [f"the supervisor: {describe_silence(self.silent_pid)}"]
        return shown

    def runs(self, *, limit: int = 50, status: str | None = None) -> list[dict[str, Any]]:
        """Returns the newest runs first."""
        wanted = [f"--limit={limit}"] + ([f"--status={status}"] if status else [])
        listed: list[dict[str, Any]] = self._ask("runs", *wanted, "--", str(self._directory))
        return listed

    def count_runs(self) -> dict[str, int]:
        """Returns how many runs there are of each status."""
        counts: dict[str, int] = self._ask("counts", "--", str(self._directory))
        return counts

    def blocks(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Returns what waits for people."""
        place = ["--", str(self._directory)]
        listed: list[dict[str, Any]] = self._ask("blocks", *place, *([run_id] if run_id else []))
        return listed

    def processes(self) -> list[dict[str, Any]]:
        """Returns no process: they end with their supervisor."""
        return []

    def events(
        self, run_id: str, *, after: int = 0, follow: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yields the events that there are; without a supervisor no more will come."""
        place = ["--", str(self._directory), run_id]
        yield from read_log(self._directory, "events", f"--after={after}", *place)

    def _ask(self, *arguments: str) -> Any:
        return read_answer(self._directory, *arguments)
