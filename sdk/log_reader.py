"""Has the log read by a process of supervisor/, the only folder that opens the database."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planaria.protocol.errors import DataDirectoryError, error_from_wire

from .discovery import supervisor_command


def read_log(directory: Path, *arguments: str) -> Iterator[Any]:
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
        raise DataDirectoryError(message=f"the log of {str(directory)!r} can't be read: {last}")


def read_answer(directory: Path, *arguments: str) -> Any:
    """Returns the one line that the reader writes."""
    for answer in read_log(directory, *arguments):
        return answer
    raise AssertionError("a reader of the log answers or fails")


def read_replay(directory: Path, run_id: str, at: int | None = None) -> dict[str, Any]:
    """Returns a run as it stood at an event's sequence, or as it stands; rebuilt from its log."""
    wanted = [] if at is None else [f"--at={at}"]
    shown: dict[str, Any] = read_answer(directory, "replay", *wanted, "--", str(directory), run_id)
    return shown
