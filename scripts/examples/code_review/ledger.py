"""A ledger outside of planaria: what was really carried out, whatever the event log says.

Each line is one O_APPEND write, so that lines of processes that are killed stand whole or not at
all, and never mix with those of others. The demo compares it with the event log afterwards.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PATH_VARIABLE = "REVIEW_LEDGER"


@dataclass(frozen=True, slots=True)
class Entry:
    """One beginning of a call, in one process. `call` identifies it as the event log does."""

    call: str
    kind: str  # "tool" or "model"
    name: str
    session: str
    pid: int
    has_ended: bool


@contextmanager
def noted(kind: str, name: str, session: str, call: str) -> Iterator[None]:
    """Writes a line before the body and one after it; without a ledger it does nothing."""
    path = os.environ.get(PATH_VARIABLE)
    if not path:
        yield
        return
    line = {"kind": kind, "name": name, "session": session, "call": call, "pid": os.getpid()}
    _append(path, {**line, "phase": "begin"})
    yield
    _append(path, {**line, "phase": "end"})


def _append(path: str, line: dict[str, object]) -> None:
    data = json.dumps({**line, "timeNs": time.time_ns()}, sort_keys=True).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(descriptor, data)
    finally:
        os.close(descriptor)
    assert written == len(data), f"a line of the ledger was cut to {written} bytes"


@dataclass(slots=True)
class LedgerReader:
    """Reads the ledger while it grows."""

    path: Path
    _offset: int = 0
    _begun: dict[tuple[str, int], list[dict[str, object]]] = field(default_factory=dict)

    def read(self) -> None:
        """Takes in the lines that were added since the last time."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for text in file:
                if not text.endswith(b"\n"):
                    return  # not yet whole
                self._offset += len(text)
                line = json.loads(text)
                rows = self._begun.setdefault((line["call"], line["pid"]), [])
                if line["phase"] == "begin":
                    rows.append(line)
                else:
                    rows[-1]["hasEnded"] = True

    def entries(self) -> list[Entry]:
        """Returns every beginning of a call, in the order in which they were read."""
        return [
            Entry(
                call=str(row["call"]),
                kind=str(row["kind"]),
                name=str(row["name"]),
                session=str(row["session"]),
                pid=int(str(row["pid"])),
                has_ended="hasEnded" in row,
            )
            for rows in self._begun.values()
            for row in rows
        ]

    def pids_in_flight(self) -> set[int]:
        """Returns the processes that are inside of a call, and those that died inside of one."""
        return {entry.pid for entry in self.entries() if not entry.has_ended}
