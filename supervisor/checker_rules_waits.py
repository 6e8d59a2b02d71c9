"""The invariants of waits, approvals, signals and pauses: I24, I25, I26, and I28 for pauses."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .checker_facts import Fact, Report

ABANDONED = "abandoned"
# What a paused run doesn't start.
_PAUSED = frozenset(
    "RunStarted StepAttemptStarted ParallelBranchScheduled SubRunRequested ProcessStarted".split()
)
HELD = frozenset(
    "ApprovalRequested ApprovalResolved WaitStarted SignalReceived WaitCompleted RunPaused "
    "RunUnpaused".split()
)


@dataclass(slots=True)
class WaitRules:
    """Checks what one run waits for.

    `is_running` says whether a step's attempt is open, by its kind; `abandon` ends one whose scope
    was stopped.
    """

    is_running: Callable[[str, str], bool]
    abandon: Callable[[str], None]
    _outcomes: dict[str, str] = field(default_factory=dict)  # how waiting steps must end, by path
    _approvals: dict[str, dict[str, Any]] = field(default_factory=dict)  # open ones
    _decided: set[str] = field(default_factory=set)
    _waits: dict[str, dict[str, Any]] = field(default_factory=dict)  # open ones, by step path
    _signals: dict[str, str] = field(default_factory=dict)  # id -> name, of every signal
    _kept: dict[str, list[str]] = field(default_factory=dict)  # name -> ids that no wait has taken
    _is_paused: bool = False

    def take(self, fact: Fact, report: Report) -> None:
        """Checks an event of HELD, and applies it."""
        _HANDLERS[fact.type](self, fact, report)

    def check_start(self, fact: Fact, report: Report, *, is_cancelled: bool) -> None:
        """Checks that nothing starts in a pause, unless it ends a cancelled run."""
        if self._is_paused and not is_cancelled and fact.type in _PAUSED:
            report("I28", f"{fact.type} while the run is paused")

    def list_open(self) -> list[str]:
        """Returns what is waited for, as texts."""
        return [
            *(f"approval {name!r}" for name in self._approvals),
            *(f"wait {path!r}" for path in self._waits),
        ]

    def check_step_end(self, fact: Fact, report: Report) -> None:
        """Checks that a step that waits ends as what it waited for says."""
        path = fact.payload["stepPath"]
        outcome = self._outcomes.pop(path, None)
        if fact.type == "StepCompleted" and outcome is None:
            report("I26", f"{path!r} completed, but what it waits for hasn't come")
        elif fact.type == "StepCompleted" and outcome in ("approved", "rejected"):
            output = fact.payload.get("output")
            if isinstance(output, dict) and output.get("decision") != outcome:
                report("I26", f"{path!r} says {output.get('decision')!r} of what was {outcome}")

    def _request(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        name, path = payload["approvalId"], payload.get("stepPath")
        if name in self._approvals or name in self._decided:
            report("I26", f"approval {name!r} was asked for twice")
        if (path is None) == (payload.get("sessionId") is None):
            report("I26", f"approval {name!r} belongs to a step or to a session, not to both")
        elif path is not None and not self.is_running(path, "approval"):
            report("I26", f"approval {name!r} belongs to {path!r}, which isn't running")
        self._approvals[name] = payload

    def _resolve(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        name, decision = payload["approvalId"], payload["decision"]
        asked = self._approvals.pop(name, None)
        if asked is None:
            report("I26", f"approval {name!r} was resolved, but it isn't open")
            return
        self._decided.add(name)
        expires = asked.get("expiresAt")
        sources = {"approved": "person", "rejected": "person", "expired": "timer"}
        if sources.get(decision, "run" if decision == ABANDONED else "") != payload["source"]:
            report("I26", f"approval {name!r} was {decision[:40]!r} by {payload['source'][:40]!r}")
        elif decision == "expired" and (expires is None or fact.at < expires):
            report("I24", f"approval {name!r} expired before {expires} µs")
        elif payload["source"] == "person" and expires is not None and fact.at >= expires:
            report("I26", f"approval {name!r} was {decision} after it had expired")
        if asked.get("stepPath") is not None and decision == ABANDONED:
            self.abandon(asked["stepPath"])
        elif asked.get("stepPath") is not None:
            ended = {"approved": "approved"}.get(decision, "rejected")
            self._outcomes[asked["stepPath"]] = ended

    def _start(self, fact: Fact, report: Report) -> None:
        path = fact.payload["stepPath"]
        if path in self._waits or not self.is_running(path, "wait"):
            report("I24", f"{path!r} began to wait twice, or isn't running")
        if fact.payload.get("name") is None and fact.payload.get("dueAt") is None:
            report("I24", f"{path!r} waits for nothing")
        self._waits[path] = fact.payload

    def _receive(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        if payload["signalId"] in self._signals:
            report("I25", f"signal {payload['signalId']!r} was accepted twice")
            return
        self._signals[payload["signalId"]] = payload["name"]
        self._kept.setdefault(payload["name"], []).append(payload["signalId"])

    def _complete(self, fact: Fact, report: Report) -> None:
        payload = fact.payload
        path, outcome, signal = payload["stepPath"], payload["outcome"], payload.get("signalId")
        wait = self._waits.pop(path, None)
        if wait is None:
            report("I24", f"the wait of {path!r} ended, but it isn't open")
            return
        name, due = wait.get("name"), wait.get("dueAt")
        if outcome == "signal":
            kept = self._kept.get(name or "", [])
            if not kept or kept[0] != signal:
                report("I25", f"{path!r} took signal {signal!r}, which isn't the oldest one")
            if signal in kept:
                kept.remove(signal)
        elif outcome in ("timer", "expired"):
            if (outcome == "timer") != (name is None):
                report("I24", f"the wait of {path!r} ended as {outcome!r}")
            elif due is None or fact.at < due:
                report("I24", f"the wait of {path!r} ended before {due} µs")
        elif outcome == ABANDONED:
            self.abandon(path)
        else:
            report("I24", f"the wait of {path!r} ended as {outcome[:40]!r}")
        if outcome in ("signal", "timer"):
            self._outcomes[path] = outcome

    def _pause(self, fact: Fact, report: Report) -> None:
        is_paused = fact.type == "RunPaused"
        if self._is_paused == is_paused:
            report("I28", f"{fact.type} twice")
        self._is_paused = is_paused


_HANDLERS: dict[str, Callable[[WaitRules, Fact, Report], None]] = {
    "ApprovalRequested": WaitRules._request,
    "ApprovalResolved": WaitRules._resolve,
    "WaitStarted": WaitRules._start,
    "SignalReceived": WaitRules._receive,
    "WaitCompleted": WaitRules._complete,
    "RunPaused": WaitRules._pause,
    "RunUnpaused": WaitRules._pause,
}
