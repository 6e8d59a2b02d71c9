"""What happens in a run, folded from its events: files, sessions, processes, calls."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

OUTCOMES = frozenset(
    {
        "harness.model.responded",
        "harness.model.failed",
        "harness.tool_call.succeeded",
        "harness.tool_call.failed",
    }
)
OPENINGS = frozenset({"harness.model.called", "harness.tool_call.started"})


@dataclass(slots=True)
class SessionView:
    """A session and the process that carries it now."""

    id: str
    path: str
    pid: int = 0
    start_time: int = 0
    incarnation: int = 0
    recorded: int = 0  # outcomes of all its processes
    replayed: int = 0  # outcomes that its processes after the first took from the log
    is_alive: bool = False
    open_call: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call's outcome in the log. `call` identifies it as the ledger does."""

    call: str
    session: str
    incarnation: int


@dataclass(slots=True)
class Watch:
    """The state of a run, one event after another."""

    events: int = 0
    sessions: dict[str, SessionView] = field(default_factory=dict)
    # (session, pid) -> incarnation, for every process that a session ever had
    incarnations: dict[tuple[str, int], int] = field(default_factory=dict)
    processes: set[tuple[int, int]] = field(default_factory=set)  # (pid, start time)
    recorded: list[Recorded] = field(default_factory=list)
    exits: list[dict[str, Any]] = field(default_factory=list)
    files: int = 0
    visits: int = 0
    done_files: list[str] = field(default_factory=list)
    _calls: dict[str, str] = field(default_factory=dict)  # id in the log -> id in the ledger

    def take(self, event: dict[str, Any]) -> None:
        """Folds one event."""
        self.events += 1
        kind, payload = event["type"], event["payload"]
        session = self.sessions.get(event.get("sessionId") or payload.get("sessionId") or "")
        if kind == "harness.session.started":
            made = SessionView(event["sessionId"], show_path(payload["stepPath"]))
            self.sessions[made.id] = made
        elif kind in ("ParallelGroupStarted", "ParallelBranchCompleted", "StepAttemptStarted"):
            self._take_step(kind, payload)
        elif session is not None:
            self._take_session(session, kind, event)

    def _take_step(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "ParallelGroupStarted":
            self.files = len(payload["itemKeys"])
        elif kind == "ParallelBranchCompleted":
            self.done_files.append(str(payload["itemKey"]))
        elif payload["stepId"] == "write":
            self.visits += 1

    def _take_session(self, session: SessionView, kind: str, event: dict[str, Any]) -> None:
        payload = event["payload"]
        if kind == "ProcessStarted":
            session.pid, session.start_time = payload["pid"], payload["startTime"]
            session.incarnation, session.is_alive = payload["incarnation"], True
            self.incarnations[session.id, session.pid] = session.incarnation
            self.processes.add((session.pid, session.start_time))
            session.open_call = ""
        elif kind == "ProcessExited":
            if payload["incarnation"] == session.incarnation:
                session.is_alive = False
            self.exits.append(payload)
        elif kind == "harness.session.resumed":
            session.replayed += session.recorded
        elif kind in OPENINGS:
            name = payload.get("toolName") or "model"
            turn = f"{session.id}/m{payload['turn']}" if name == "model" else payload["callId"]
            self._calls[payload["callId"]] = turn
            session.open_call = name
        elif kind in OUTCOMES:
            session.recorded += 1
            session.open_call = ""
            call = self._calls[payload["callId"]]
            self.recorded.append(Recorded(call, session.id, event["incarnation"]))
        elif kind in ("harness.session.completed", "harness.session.failed"):
            session.is_alive = False

    def living(self) -> list[SessionView]:
        """Returns the sessions that have a process now, in the order of their start."""
        # A copy first: the display asks from a thread of its own.
        return [session for session in list(self.sessions.values()) if session.is_alive]

    @property
    def replayed(self) -> int:
        """How many outcomes were taken from the log instead of being asked for again."""
        return sum(session.replayed for session in list(self.sessions.values()))

    def repeats(self) -> Iterator[SessionView]:
        """Yields the sessions that had more than one process."""
        yield from (session for session in self.sessions.values() if session.incarnation > 1)


def show_path(path: str) -> str:
    """Returns a step's path as people read it: keys of branches unquoted, visits short."""
    return unquote(path).replace(".visit[", "[")
