"""Faults that tests plant in a real supervisor and its children: a kill at a point, a bug by name.

Nothing is planted unless the environment variable PLANARIA_TEST_FAULTS holds a JSON map:
`{"point": "S6", "nth": 2, "ledger": path}` kills this process by SIGKILL when the point is hit for
the nth time, and notes it in the ledger before. With `"action": "commit_error"` at S5 the disk
refuses that commit's sync instead, once. With `"event": type` only commits that have such an event
count at S4, S5 and S6, by the number of these events: "nth" is then the nth event, not the nth
commit. `pause_ms` delays each commit, as a slow disk does.
`{"child": {...}}` is handed to every child (see workers/trace.py). `{"bugs": [...]}` switches bugs
on, so that a sweep can be seen to find them: acknowledge_before_commit, no_incarnation_check,
random_call_ids (in the children), go_on_after_failed_commit.
"""

import json
import os
import signal
import time
from collections.abc import Iterable
from typing import Any

VARIABLE = "PLANARIA_TEST_FAULTS"

# The points of the event log and blob store by the names of the sweep.
POINTS = {
    "before_begin": "S4",
    "frames_written": "S5",
    "committed": "S6",
    "checkpoint": "S8",
    "blob_written": "S9",
    "blob_renamed": "S10",
    "cycle_completed": "S11",
    "manifest_written": "S12",
}
_OF_COMMITS = frozenset({"S4", "S5", "S6"})


class Faults:
    """What is planted; usually nothing."""

    def __init__(self, text: str = "") -> None:
        planted = json.loads(text) if text else {}
        self.bugs: frozenset[str] = frozenset(planted.get("bugs", ()))
        self.child: dict[str, Any] = planted.get("child", {})
        if "random_call_ids" in self.bugs:
            self.child = {**self.child, "random_call_ids": True}
        self._point: str | None = planted.get("point")
        self._nth = int(planted.get("nth", 1))
        self._event: str | None = planted.get("event")
        self._matching = 0  # events of that type in the commit that is made
        self._action: str = planted.get("action", "kill")
        self._pause_seconds = planted.get("pause_ms", 0) / 1_000
        self._ledger: str | None = planted.get("ledger")
        self.is_planted = bool(planted)

    @classmethod
    def read(cls) -> "Faults":
        """Returns what the environment plants; it isn't handed on to children."""
        return cls(os.environ.pop(VARIABLE, ""))

    def note_commit(self, types: Iterable[str]) -> None:
        """Tells of what types the events are that are committed next."""
        if self._event is not None:
            self._matching = sum(1 for name in types if name == self._event)

    def hit(self, point: str) -> None:
        """Tells that a point is reached; the process may end here.

        Raises:
            OSError: from the disk, as it were; with the action `commit_error`.
        """
        name = POINTS.get(point, point)
        if name == "S4":
            time.sleep(self._pause_seconds)
        if name != self._point:
            return
        was = self._nth
        self._nth -= self._matching if self._event and name in _OF_COMMITS else 1
        if was > 0 >= self._nth:
            self._note(name)
            if self._action == "commit_error":
                raise OSError(5, "planted: the disk refuses")
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, name: str) -> None:
        if self._ledger is not None:
            with open(self._ledger, "a") as file:
                file.write(f"{name} {os.getpid()}\n")
                file.flush()
                os.fsync(file.fileno())
