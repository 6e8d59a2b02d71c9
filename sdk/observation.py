"""Looks at a data directory: asks its supervisor, or has the log read when none answers.

Looking never makes a directory and never starts a supervisor.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from planaria.protocol.errors import (
    NotFoundError,
    PlanariaError,
    SupervisorUnavailableError,
    error_from_wire,
)

from .client import Client
from .discovery import find_directory, find_supervisor, supervisor_command


class Observer(Protocol):
    """What can be seen of a data directory, with a supervisor or without."""

    def ping(self) -> dict[str, Any] | None: ...
    def status(self, run_id: str) -> dict[str, Any]: ...
    def runs(self, *, limit: int = 50, status: str | None = None) -> list[dict[str, Any]]: ...
    def count_runs(self) -> dict[str, int]: ...
    def processes(self) -> list[dict[str, Any]]: ...
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
    if not _is_served(directory):
        yield _LogObserver(directory)
        return
    with Client(directory, start_if_missing=False) as client:
        yield client


def check_exists(data_dir: Path | None) -> Path:
    """Returns the data directory.

    Raises:
        NotFoundError: it isn't there, so that nothing in it can be found.
    """
    directory = find_directory(data_dir)
    if not directory.exists():
        raise NotFoundError(
            message=f"there is no data directory {str(directory)!r}; 'planaria run' or "
            "'planaria up' makes one, --data-dir names another"
        )
    return directory


def _is_served(directory: Path) -> bool:
    try:
        connection = find_supervisor(directory)
    except SupervisorUnavailableError as error:
        # Stopped or hung: what it has committed can be read all the same.
        sys.stderr.write(f"planaria: {error}; the log is read instead\n")
        return False
    if connection is None:
        return False
    connection.close()
    return True


class _LogObserver:
    """Has the log read by a process of supervisor/, the only folder that opens the database."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ping(self) -> dict[str, Any] | None:
        """Returns None: no supervisor answers."""
        return None

    def status(self, run_id: str) -> dict[str, Any]:
        """Returns a run as `Client.status` does."""
        shown: dict[str, Any] = self._ask("show", "--", str(self._directory), run_id)
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

    def processes(self) -> list[dict[str, Any]]:
        """Returns no process: they end with their supervisor."""
        return []

    def events(
        self, run_id: str, *, after: int = 0, follow: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yields the events that there are; without a supervisor no more will come."""
        yield from self._read("events", f"--after={after}", "--", str(self._directory), run_id)

    def _ask(self, *arguments: str) -> Any:
        for answer in self._read(*arguments):
            return answer
        raise AssertionError("a reader of the log answers or fails")

    def _read(self, *arguments: str) -> Iterator[Any]:
        """Yields each line that the reader writes; raises the error that it ends with."""
        with subprocess.Popen(
            supervisor_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        ) as process:
            assert process.stdout is not None and process.stderr is not None, "both are pipes"
            for line in process.stdout:
                answer = json.loads(line)
                if isinstance(answer, dict) and set(answer) == {"error"}:
                    raise error_from_wire(answer["error"])
                yield answer
            problem = process.stderr.read().strip().splitlines()
        if process.returncode != 0:
            last = problem[-1] if problem else f"it ended with code {process.returncode}"
            raise PlanariaError(
                message=f"the log of {str(self._directory)!r} can't be read: {last}"
            )
