"""Faults that tests plant in a real supervisor: a kill at a named point, or a named bug.

Nothing is planted unless the environment variable PLANARIA_TEST_FAULTS holds a JSON map:
`{"point": "S6", "nth": 2, "ledger": path}` kills this process by SIGKILL when the point is hit for
the nth time, and notes it in the ledger before; `{"bugs": ["acknowledge_before_commit"]}` switches
a bug on, so that a sweep can be seen to find it.
"""

import json
import os
import signal

VARIABLE = "PLANARIA_TEST_FAULTS"

# The points of the event log and blob store by the names of the sweep.
POINTS = {
    "before_begin": "S4",
    "frames_written": "S5",
    "committed": "S6",
    "checkpoint": "S8",
    "blob_written": "S9",
    "blob_renamed": "S10",
}


class Faults:
    """What is planted; usually nothing."""

    def __init__(self, text: str = "") -> None:
        planted = json.loads(text) if text else {}
        self.bugs = frozenset(planted.get("bugs", ()))
        self._point: str | None = planted.get("point")
        self._nth = int(planted.get("nth", 1))
        self._ledger: str | None = planted.get("ledger")
        self.is_planted = bool(planted)

    @classmethod
    def read(cls) -> "Faults":
        """Returns what the environment plants; it isn't handed on to children."""
        return cls(os.environ.pop(VARIABLE, ""))

    def hit(self, point: str) -> None:
        """Tells that a point is reached; the process may end here."""
        name = POINTS.get(point, point)
        if name != self._point:
            return
        self._nth -= 1
        if self._nth == 0:
            if self._ledger is not None:
                with open(self._ledger, "a") as file:
                    file.write(f"{name} {os.getpid()}\n")
                    file.flush()
                    os.fsync(file.fileno())
            os.kill(os.getpid(), signal.SIGKILL)
