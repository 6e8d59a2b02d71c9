"""Reads what the processes of a run have printed, and says which session printed it."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# A session that has ended has `<session>.log`; `.<process>.<pid>.out` is of one that runs, or of
# which the process was killed (written by planaria.workers.captured_output).
ENDED_SUFFIX = ".log"
OPEN_SUFFIX = ".out"
TEXT_BYTES_MAX = 4 << 20  # of one file; what a session wrote is bounded by less


def read_logs(folder: Path, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns {sessionId, stepPath, file, text} in the order in which the sessions started.

    `events` are the run's starts of sessions and processes.
    """
    paths: dict[str, str] = {}  # session -> step path
    owners: dict[tuple[str, int], str] = {}  # epoch and pid of a process -> its last session
    for event in events:
        if event["type"] == "ProcessStarted":
            payload = event["payload"]
            owners[str(event["epoch"]), payload["pid"]] = payload["sessionId"]
        else:
            paths[event["sessionId"]] = event["payload"]["stepPath"]
    found: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*")) if folder.is_dir() else ():
        session = _find_session(file, owners)
        text = _read_text(file)
        if not text:
            continue
        found.append(
            {
                "sessionId": session,
                "stepPath": paths.get(session or ""),
                "file": file.name,
                "text": text,
            }
        )
    order: dict[str | None, int] = {session: number for number, session in enumerate(paths)}
    # A killed process printed before its successor did: its file comes first.
    found.sort(key=lambda log: (order.get(log["sessionId"], len(order)), log["file"][0] != "."))
    return found


def has_printed(folder: Path) -> bool:
    """Says whether a run's processes have left any output."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.stat().st_size > 0 for entry in entries)
    except OSError:
        return False


def _find_session(file: Path, owners: dict[tuple[str, int], str]) -> str | None:
    if file.suffix == ENDED_SUFFIX:
        return file.stem
    if file.suffix != OPEN_SUFFIX:
        return None
    # ".p3-12.4711.out": the twelfth process of the supervisor's third life
    process, _, pid = file.stem.removeprefix(".").rpartition(".")
    epoch = process.partition("-")[0].removeprefix("p")
    return owners.get((epoch, int(pid))) if pid.isdecimal() else None


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(TEXT_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
