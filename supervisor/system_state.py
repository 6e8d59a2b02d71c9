"""What the supervisor holds in memory: the open runs, and the processes that serve them.

Runs are folded from the log. Processes are not: they are facts of this supervisor's life only, and
when it ends they are gone. So nothing that must survive is ever kept in a ProcessState.
"""

import heapq
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.limits import CHILDREN_MAX, HEARTBEAT_TIMEOUT_MS

from .outer_loop import LoopState
from .run_state import RunState, SessionState

LAUNCHING = "launching"
BLANK = "blank"  # ready, and not yet bound to a run
BOUND = "bound"  # carries a session
IDLE = "idle"  # between two sessions of the same run
DYING = "dying"


@dataclass(slots=True)
class ProcessState:
    """One child process."""

    id: str
    kind: str  # light | heavy
    status: str
    launched_at: int  # monotonic µs
    pid: int = 0
    start_time: int = 0
    run_id: str | None = None
    session_id: str | None = None  # the session it carries, or carried last
    errand_id: str | None = None
    incarnation: int = 0
    reported: int = 0  # of that session, once it has ended
    step_path: str = ""
    seen_at: int = 0  # monotonic µs of its last sign of life
    reported_at: int = 0  # … of its last report
    kill_at: int | None = None  # monotonic µs
    kill_reason: str = "crashed"
    seen_stop: bool = False  # it was asked to end
    had_agent: bool = False  # an agent has worked in it, so it serves no other session


@dataclass(slots=True)
class Errand:
    """Something that a child does without a session; if its process dies, another one does it.

    `body` is what the child is told, see `workers.errands`.
    """

    id: str
    loop_id: str
    body: dict[str, Any]
    kind: str  # of the process that it needs
    process_id: str | None = None
    deaths: int = 0


@dataclass(slots=True)
class SystemState:
    """The whole of it."""

    epoch: int
    boot_id: str
    children_max: int = CHILDREN_MAX
    spares: int = 1  # blank processes kept ready, of each kind in use
    heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS
    bugs: frozenset[str] = frozenset()  # planted by tests, see faults.py; empty in normal operation
    is_stopping: bool = False
    runs: dict[str, RunState] = field(default_factory=dict)
    loops: dict[str, LoopState] = field(default_factory=dict)
    errands: dict[str, Errand] = field(default_factory=dict)
    queue: dict[str, None] = field(default_factory=dict)  # runs that wait for a process, in order
    processes: dict[str, ProcessState] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)  # session id -> process id
    processes_made: int = 0
    kinds_used: dict[str, None] = field(default_factory=dict)
    launch_not_before: int = 0  # monotonic µs; after failed launches
    launch_failures: int = 0
    delays: list[int] = field(default_factory=list)  # heap of monotonic µs: restarts to come
    ended: list[str] = field(default_factory=list)  # runs that have ended and are still in memory
    timers: list[tuple[int, str]] = field(default_factory=list)  # heap of (UTC µs, run id)

    def pop_delays(self, mono: int) -> None:
        """Takes the restart delays out that are over at `mono`."""
        while self.delays and self.delays[0] <= mono:
            heapq.heappop(self.delays)

    def set_delay(self, mono: int) -> None:
        """Notes that a session's next process may be bound from `mono` on."""
        heapq.heappush(self.delays, mono)

    def set_timer(self, due_at: int, run_id: str) -> None:
        """Notes that a run has something due at an instant."""
        heapq.heappush(self.timers, (due_at, run_id))

    def pop_due(self, at: int) -> tuple[str, ...]:
        """Takes the timers out that are due at `at` (UTC µs) and returns their runs, once each."""
        due: dict[str, None] = {}
        while self.timers and self.timers[0][0] <= at:
            due[heapq.heappop(self.timers)[1]] = None
        return tuple(due)

    def find_session(self, process: ProcessState) -> SessionState | None:
        """Returns the open session that a process carries now, or None."""
        if process.run_id is None or process.session_id is None:
            return None
        run = self.runs.get(process.run_id)
        session = run.sessions.get(process.session_id) if run else None
        if session is None or not session.is_live:
            return None
        return session if session.incarnation == process.incarnation else None
