"""The invariants of sessions and the processes that carry them: I6 to I10, I14 and I29."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from planaria.protocol.ids import session_id
from planaria.protocol.limits import (
    MAX_RESTARTS,
    RESTART_DELAY_FIRST_MS,
    RESTART_DELAY_MAX_MS,
    RESTART_PERIOD_MS,
    SESSION_EVENTS_MAX,
)

from .checker_facts import Fact, Report
from .checker_payloads import TASKS
from .checker_rules_calls import ENDED, STARTED, CallRules, EffectOutcomes

RESOLUTIONS = frozenset({"succeeded", "failed", "never_happened", "given_up"})
REASONS = frozenset(
    "crashed heartbeat_timeout step_timeout supervisor_lost put_away not_ready stale_incarnation "
    "protocol stopped done".split()
)
_UNSEEN = frozenset({"supervisor_lost"})  # nobody saw how these processes ended
_UNCOUNTED = frozenset({"supervisor_lost", "put_away"})  # they say nothing against the session

_TERMINAL = frozenset({"harness.session.completed", "harness.session.failed"})
_STEP_ENDED = frozenset(
    f"harness.{task}.{end}" for task in TASKS.values() for end in ("succeeded", "failed")
)
_PROCESS = frozenset({"ProcessStarted", "ProcessExited"})
# What a lost call's failure is recorded by, besides the process that made it.
_BY_EITHER = frozenset(
    {"harness.model.failed", "harness.tool_call.failed", "harness.operation.failed"}
)
_BY_PROCESS = (
    (STARTED | ENDED | _STEP_ENDED) - _BY_EITHER - {"harness.tool_call.unknown"}
    | {"harness.session.resumed", "harness.warning", "StepRepairAttempted"}
    | {"harness.model.repeated", "harness.memory.written", "harness.tool_call.reattached"}
)  # fmt: skip


# Of the run, or of one of its sessions, whose history then has it.
EITHER = frozenset({"ApprovalRequested", "ApprovalResolved", "EffectResolved"})


def belongs_to_session(kind: str) -> bool:
    """Says whether events of this type carry a session's id in their envelope."""
    return kind.startswith(("harness.", "Budget")) or kind in _PROCESS | {"StepRepairAttempted"}


@dataclass(slots=True)
class _Session:
    id: str
    step_path: str
    task: str
    manifest_hash: str
    calls: CallRules
    incarnation: int = 0
    is_live: bool = False
    process: tuple[str, int, int] | None = None  # boot id, pid, start time
    events: int = 0
    reported: int = 0
    history: Any = field(default_factory=sha256)  # of all its stored bytes so far
    awaits_resumed: bool = False
    given: tuple[int, str] = (0, "")  # events and digest that the newest process was given
    step_end: str = ""
    exits: list[tuple[int, int]] = field(default_factory=list)  # counted: (epoch, mono) of each


class SessionRules:
    """Checks the sessions of one run; keeps only the open ones."""

    def __init__(self, run_id: str, find_outcomes: Callable[[str], EffectOutcomes]) -> None:
        """`find_outcomes` returns what is kept of effects for the top-level step of a path."""
        self.open: dict[str, _Session] = {}
        self._run_id = run_id
        self._find_outcomes = find_outcomes
        self._processes: dict[tuple[str, int, int], str] = {}  # live ones -> session

    def take(self, fact: Fact, report: Report) -> None:
        """Checks an event that belongs to a session, and applies it."""
        self._check_author(fact, report)
        kind = fact.type
        if kind == "harness.session.started":
            self._start(fact, report)
            return
        session = self.open.get(fact.session_id or "")
        if session is None:
            report("I7", f"{kind} of session {fact.session_id!r}, which has ended or never started")
            return
        session.events += 1
        session.history.update(fact.body)
        if fact.incarnation is not None:
            self._check_process(session, fact, report)
        if kind == "ProcessStarted":
            self._start_process(session, fact, report)
        elif kind == "ProcessExited":
            self._end_process(session, fact, report)
        elif kind == "harness.session.resumed":
            _check_resumed(session, fact, report)
        elif kind in STARTED:
            session.calls.start(fact, report)
        elif kind in ENDED:
            session.calls.end(fact, report)
        elif kind == "EffectResolved":
            session.calls.resolve(fact, report)
        elif kind == "harness.tool_call.reattached":
            session.calls.reattach(fact, report)
        elif kind == "harness.model.repeated":
            session.calls.repeat(fact, report)
        elif kind in _STEP_ENDED:
            if kind.split(".")[1] != session.task:
                report("I9", f"{kind} of a session whose task is {session.task!r}")
            session.step_end = kind.rsplit(".", 1)[1]
        elif kind in _TERMINAL:
            self._end(session, fact, report)

    def resolve(self, fact: Fact, report: Report) -> None:
        """Takes what a person says of an effect, of a session that is open or has ended."""
        payload = fact.payload
        if payload["resolution"] not in RESOLUTIONS:
            report("I16", f"call {payload['callId']!r} was resolved as {payload['resolution']!r}")
        if fact.session_id is None:
            return  # its session has ended: a later attempt is handed what it says
        self.take(fact, report)

    def is_unknown(self, session: str, call: str) -> bool:
        """Says whether a call of an open session was recorded as unknown."""
        return session in self.open and self.open[session].calls.find_unknown(call)

    def answers_request(self, fact: Fact) -> bool:
        """Says whether a fact is the outcome of a call that has asked for a sub-run."""
        session = self.open.get(fact.session_id or "")
        is_outcome = fact.type in ENDED and "tool_call" in fact.type
        return is_outcome and session is not None and (
            session.calls.asks_for_run(fact.payload["callId"])
        )  # fmt: skip

    def may_request(self, session: str, call: str, sub_run: str) -> bool:
        """Says whether an open call of a session may start this sub-run."""
        return session in self.open and self.open[session].calls.is_open_request(call, sub_run)

    def finish(self, report: Report) -> None:
        """Checks what must not be left open at the end of a log (a commit's end)."""
        for session in self.open.values():
            for call in session.calls.find_lost():
                report("I16", f"call {call!r} was lost with its process and isn't marked unknown")

    def _check_author(self, fact: Fact, report: Report) -> None:
        by_process = fact.incarnation is not None
        if by_process and fact.type not in _BY_PROCESS | _BY_EITHER | {"ApprovalRequested"}:
            report("I9", f"{fact.type} was authored by a process; only the supervisor may")
        elif (
            not by_process
            and fact.type in _BY_PROCESS
            and not (self.answers_request(fact) or self._was_resolved(fact))
        ):
            report("I9", f"{fact.type} names no incarnation that authored it")
        names_session = fact.type in _PROCESS or fact.type.startswith("Budget")
        if names_session and fact.payload["sessionId"] != fact.session_id:
            report("I8", f"it names session {fact.payload['sessionId']!r} inside")

    def _was_resolved(self, fact: Fact) -> bool:
        """Says whether a fact is the outcome of a call that a person has just told."""
        session = self.open.get(fact.session_id or "")
        return session is not None and session.calls.was_resolved(fact)

    def _start(self, fact: Fact, report: Report) -> None:
        payload, name = fact.payload, fact.session_id or ""
        if name in self.open:
            report("I6", f"session {name!r} was started twice")
            return
        path = payload["stepPath"]
        if name != session_id(self._run_id, path, payload["attempt"]):
            report(
                "I13", f"session {name!r} is not the id of attempt {payload['attempt']} {path!r}"
            )
        is_orchestrator = payload["role"] == "orchestrator"
        calls = CallRules(name, self._find_outcomes(path), is_orchestrator)
        session = _Session(name, path, payload["task"], payload["manifestHash"], calls, events=1)
        session.history.update(fact.body)
        self.open[name] = session

    def _check_process(self, session: _Session, fact: Fact, report: Report) -> None:
        """Checks that the author is the process that carries the session now."""
        if not session.is_live or fact.incarnation != session.incarnation:
            now = f"{session.incarnation} is live" if session.is_live else "none is live"
            report("I9", f"it was authored by incarnation {fact.incarnation}, but {now}")
            return
        session.reported += 1
        if session.reported == SESSION_EVENTS_MAX + 1:
            report("I32", f"session {session.id!r} reported over {SESSION_EVENTS_MAX} events")
        if session.process is not None and session.process[1] == 0:
            report("I10", f"{fact.type} of a process that has no pid on record")
        if session.awaits_resumed and fact.type != "harness.session.resumed":
            report("I14", f"{fact.type} came before incarnation {fact.incarnation} had resumed")
            session.awaits_resumed = False
        if session.step_end:
            report("I7", f"{fact.type} after the session reported the end of its step")

    def _start_process(self, session: _Session, fact: Fact, report: Report) -> None:
        payload = fact.payload
        number = payload["incarnation"]
        if session.is_live:
            report("I8", f"incarnation {number} started while {session.incarnation} is live")
        elif number != session.incarnation + 1:
            report("I8", f"incarnation {number} started after {session.incarnation}")
        session.calls.start_process(report)
        session.incarnation, session.is_live = number, True
        process = (payload["bootId"], payload["pid"], payload["startTime"])
        session.process = process
        if process[1] != 0:
            other = self._processes.setdefault(process, session.id)
            if other != session.id:
                report("I10", f"process {process[1]} carries session {other!r} already")
            _check_restart(session, fact, report)
        if not process[0]:
            report("I10", f"incarnation {number} has no boot id")
        session.awaits_resumed = number > 1
        if session.awaits_resumed:
            session.given = (session.events, "sha256:" + session.history.hexdigest())

    def _end_process(self, session: _Session, fact: Fact, report: Report) -> None:
        payload = fact.payload
        number, reason = payload["incarnation"], payload["reason"]
        if not session.is_live or number != session.incarnation:
            report("I8", f"incarnation {number} ended, but it isn't the live one")
            return
        is_failed_launch = reason.startswith("launch:")
        if reason not in REASONS and not is_failed_launch:
            report("I8", f"incarnation {number} ended for an unknown reason {reason[:80]!r}")
        was_seen = reason not in _UNSEEN and not is_failed_launch
        if was_seen and payload.get("exitCode") is None and payload.get("signal") is None:
            report("I8", f"incarnation {number} ended ({reason}) without exit code or signal")
        self._release(session)
        session.calls.end_process()
        if reason not in _UNCOUNTED:
            session.exits.append((fact.epoch, fact.mono))
            del session.exits[: -(MAX_RESTARTS + 1)]

    def _end(self, session: _Session, fact: Fact, report: Report) -> None:
        if fact.type == "harness.session.completed" and session.step_end != "succeeded":
            report("I7", "the session completed, but its step's success isn't recorded before")
        session.calls.finish(report)
        self._release(session)
        del self.open[session.id]

    def _release(self, session: _Session) -> None:
        session.is_live = session.awaits_resumed = False
        if session.process is not None and self._processes.get(session.process) == session.id:
            del self._processes[session.process]
        session.process = None


def _check_resumed(session: _Session, fact: Fact, report: Report) -> None:
    payload = fact.payload
    if not session.awaits_resumed:
        report("I14", f"incarnation {fact.incarnation} had nothing to resume, or did it twice")
        return
    session.awaits_resumed = False
    events, digest = session.given
    if payload["incarnation"] != fact.incarnation:
        report("I14", f"it says incarnation {payload['incarnation']}")
    if payload["manifestHash"] != session.manifest_hash:
        report("I6", f"incarnation {fact.incarnation} has another manifest than the session")
    if payload["replayedEvents"] != events:
        report("I14", f"it replayed {payload['replayedEvents']} events of {events}")
    elif payload["digest"] != digest:
        report("I14", f"it replayed {payload['digest'][:80]}, the log has {digest}")


def _check_restart(session: _Session, fact: Fact, report: Report) -> None:
    """Checks restart intensity and delay, in the epoch of the last exit only."""
    if not session.exits or session.exits[-1][0] != fact.epoch:
        return
    epoch, ended_at = session.exits[-1]
    since = ended_at - RESTART_PERIOD_MS * 1_000
    recent = sum(1 for e, mono in session.exits if e == epoch and mono >= since)
    if recent > MAX_RESTARTS:
        report("I29", f"a process followed {recent} crashes within {RESTART_PERIOD_MS} ms")
    elif recent > 1:
        delay_ms = min(RESTART_DELAY_FIRST_MS * 2 ** (recent - 2), RESTART_DELAY_MAX_MS)
        if fact.mono < ended_at + delay_ms * 1_000:
            report("I29", f"a process followed crash {recent} earlier than {delay_ms} ms after it")
