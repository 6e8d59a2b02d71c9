"""The invariants of a session's calls: I11, I12, I13, I15 and I16.

A call is a model request, a tool call, or another journaled operation of the agent loop. What is
kept of a call ends with its session, but for the outcomes of effects (`EffectOutcomes`): these are
kept as long as the top-level step is open in which a later attempt could meet them again.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from planaria.protocol.ids import call_id
from planaria.protocol.limits import UNACKNOWLEDGED_APPENDS_MAX

from .checker_facts import FAIL_CLOSED, Fact, Report, pack_value
from .checker_rules_sub_runs import SUB_RUN_TOOLS

PARALLEL_CALLS_MAX = UNACKNOWLEDGED_APPENDS_MAX - 1  # the one more is the session's own end
STARTED = frozenset(
    {"harness.model.called", "harness.tool_call.started", "harness.operation.started"}
)
ENDED = frozenset(
    f"harness.{kind}"
    for kind in "model.responded model.failed tool_call.succeeded tool_call.failed "
    "tool_call.unknown operation.succeeded operation.failed".split()
)
_POSITIONS = {
    "model": re.compile(r"(m\d+)\.(\d+)"),
    "tool_call": re.compile(r"(c)(\d+)|s0|t\d+\..+"),
    "operation": re.compile(r"(o\..+)\.(\d+)|v.+"),
}
_INVARIANTS = {"model": "I12", "tool_call": "I11", "operation": "I11"}

_UNKNOWN = b""  # in place of the digest of a result
EffectOutcomes = dict[str, bytes]  # idempotency key -> digest of the recorded result


@dataclass(slots=True)
class _Call:
    kind: str
    effect: str
    key: str
    tool_name: str
    is_open: bool = True
    is_lost: bool = False  # its process ended while it was open
    outcome: str = ""
    attempts: int = 1
    exits_before: int = 0  # processes of the session that had ended when it was first made
    request_hash: str = ""
    expected: bytes | None = None  # digest of the success that an earlier attempt recorded
    asks_for_run: bool = False  # its outcome stands in the log of the run that it starts
    resolution: str = ""  # what a person has said of it, since it was lost last
    named_run: str | None = None  # the one that its arguments name, if they stand inline

    @property
    def fails_closed(self) -> bool:
        """Says whether nobody may guess its outcome."""
        return self.effect in FAIL_CLOSED and not self.asks_for_run


@dataclass(slots=True)
class CallRules:
    """Checks the calls of one open session."""

    session_id: str
    outcomes: EffectOutcomes
    may_ask_for_runs: bool = False  # it is an orchestrator's
    exits: int = 0
    open_count: int = 0
    _calls: dict[str, _Call] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)  # place -> calls made there
    _highest: dict[str, int] = field(default_factory=dict)  # place -> highest number there

    def start(self, fact: Fact, report: Report) -> None:
        """Takes the intent of a call."""
        payload = fact.payload
        kind = fact.type.split(".")[1]
        name = payload["callId"]
        known = self._calls.get(name)
        if known is not None:
            self._start_again(known, kind, fact, report)
            return
        position = payload["position"]
        if name != call_id(self.session_id, position):
            report("I13", f"call {name!r} is not the id of its position {position!r}")
        self._count_position(kind, position, report)
        call = _Call(
            kind,
            payload.get("effect", "read"),
            payload.get("idempotencyKey", ""),
            payload.get("toolName", ""),
            exits_before=self.exits,
            request_hash=payload.get("requestHash", ""),
            asks_for_run=self.may_ask_for_runs and payload.get("toolName") in SUB_RUN_TOOLS,
        )
        if isinstance(args := payload.get("args"), dict) and call.asks_for_run:
            call.named_run = args.get("subRunId")
        self._calls[name] = call
        self.open_count += 1
        if self.open_count > PARALLEL_CALLS_MAX:
            report("I13", f"{self.open_count} calls of the session are open at once")
        if kind == "tool_call" and call.effect != "read" and not call.asks_for_run:
            self._compare_with_earlier(call, report)

    def end(self, fact: Fact, report: Report) -> None:
        """Takes the outcome of a call."""
        _, kind, outcome = fact.type.split(".")
        name = fact.payload["callId"]
        call = self._calls.get(name)
        if call is None or not call.is_open or call.kind != kind:
            found = "never started" if call is None else "isn't open"
            report(_INVARIANTS[kind], f"{fact.type} of call {name!r}, which {found}")
            return
        call.is_open, call.outcome = False, outcome
        self.open_count -= 1
        if kind != "tool_call" or call.effect == "read" or call.asks_for_run:
            return
        if call.resolution in ("succeeded", "failed"):
            if outcome != call.resolution:
                report("I16", f"call {name!r} was resolved as {call.resolution} and {outcome}")
        elif outcome == "failed" and fact.incarnation is None:
            report("I16", f"lost call {name!r} ({call.effect}) was settled as failed, not unknown")
        elif outcome == "unknown":
            self.outcomes[call.key] = _UNKNOWN
            call.resolution, call.is_lost = "", False
            return
        self._settle_effect(name, call, fact, report)

    def end_process(self) -> None:
        """Notes that the session's process is gone, with what it had in flight."""
        self.exits += 1
        for call in self._calls.values():
            if call.is_open and call.fails_closed:
                call.is_lost = True
                call.resolution = ""

    def start_process(self, report: Report) -> None:
        """Checks that no process takes over what nobody may guess."""
        for name, call in self._calls.items():
            if call.effect == "once" and call.is_lost and call.is_open:
                report("I16", f"a process took over while call {name!r} ({call.effect}) was lost")
            elif call.fails_closed and call.outcome == "unknown":
                report("I16", f"a process took over while call {name!r} is unknown")

    def resolve(self, fact: Fact, report: Report) -> None:
        """Takes what a person says of a call: only of one that is unknown, and once."""
        name, resolution = fact.payload["callId"], fact.payload["resolution"]
        call = self._calls.get(name)
        if call is None or call.outcome != "unknown":
            report("I16", f"call {name!r} was resolved, but its outcome isn't unknown")
            return
        if resolution == "given_up":
            return  # its session ends, and it stays unknown
        call.is_open, call.outcome, call.resolution = True, "", resolution
        call.is_lost = False
        self.open_count += 1
        self.outcomes.pop(call.key, None)

    def reattach(self, fact: Fact, report: Report) -> None:
        """Takes what the lookup of a managed effect says."""
        name = fact.payload["callId"]
        call = self._calls.get(name)
        if call is None or not call.is_open or call.effect != "managed" or not call.is_lost:
            report("I16", f"call {name!r} was looked up, but it is no lost managed one")
            return
        call.is_lost = False

    def was_resolved(self, fact: Fact) -> bool:
        """Says whether a fact is the outcome that a person has told of its call."""
        call = self._calls.get(fact.payload.get("callId", ""))
        is_outcome = fact.type in ENDED and fact.incarnation is None
        return is_outcome and call is not None and call.resolution == fact.type.split(".")[2]

    def find_unknown(self, name: str) -> bool:
        """Says whether the call is one whose outcome was recorded as unknown."""
        call = self._calls.get(name)
        return call is not None and call.outcome == "unknown"

    def repeat(self, fact: Fact, report: Report) -> None:
        """Takes that a process makes a call again whose outcome was lost with an earlier one."""
        name = fact.payload["callId"]
        call = self._calls.get(name)
        if call is None or not call.is_open or call.kind != "model":
            report("I12", f"call {name!r} was repeated, but it isn't an open one of a model")
            return
        call.attempts += 1
        self._check_attempts(name, call, report)

    def asks_for_run(self, name: str) -> bool:
        """Says whether the call is one by which an orchestrator starts a sub-run."""
        call = self._calls.get(name)
        return call is not None and call.asks_for_run

    def is_open_request(self, name: str, sub_run: str) -> bool:
        """Says whether the call is open and may start this sub-run."""
        call = self._calls.get(name)
        is_request = call is not None and call.is_open and call.asks_for_run
        return is_request and call is not None and call.named_run in (None, sub_run)

    def finish(self, report: Report) -> None:
        """Checks what holds once the session has its terminal event."""
        for name, call in self._calls.items():
            if call.is_open:
                report(_INVARIANTS[call.kind], f"call {name!r} is open at the session's end")
        for place, count in self._counts.items():
            if self._highest[place] + 1 != count:
                report(
                    "I13", f"calls at {place!r} have holes: {count} up to {self._highest[place]}"
                )

    def find_lost(self) -> list[str]:
        """Returns the lost calls that have not been recorded as unknown."""
        calls = self._calls.items()
        return [n for n, c in calls if c.is_lost and c.is_open and c.effect == "once"]

    def _start_again(self, call: _Call, kind: str, fact: Fact, report: Report) -> None:
        name = fact.payload["callId"]
        if call.kind != kind or kind != "model":
            invariant = "I15" if call.effect in FAIL_CLOSED else _INVARIANTS[kind]
            report(invariant, f"call {name!r} was started twice")
            return
        if call.is_open or call.outcome != "failed":
            report("I12", f"call {name!r} was made again although it is {call.outcome or 'open'}")
            return
        # A failure that was the last thing recorded is tried again, by the next process only.
        call.is_open, call.outcome = True, ""
        call.attempts += 1
        self.open_count += 1
        self._check_attempts(name, call, report)
        if fact.payload["requestHash"] != call.request_hash:
            report("I12", f"the attempts of call {name!r} have different requests")

    def _check_attempts(self, name: str, call: _Call, report: Report) -> None:
        if call.attempts > 1 + self.exits - call.exits_before:
            report("I15", f"call {name!r} was made {call.attempts} times")

    def _count_position(self, kind: str, position: str, report: Report) -> None:
        match = _POSITIONS[kind].fullmatch(position)
        if match is None:
            report("I13", f"{position[:80]!r} is no position of a {kind}")
        elif match[1] is not None:
            place = match[1]
            self._counts[place] += 1
            self._highest[place] = max(self._highest.get(place, 0), int(match[2]))

    def _compare_with_earlier(self, call: _Call, report: Report) -> None:
        """An effect that an earlier attempt settled isn't performed again."""
        earlier = self.outcomes.get(call.key)
        if earlier is None:
            return
        if earlier != _UNKNOWN:
            call.expected = earlier
        elif call.effect in FAIL_CLOSED:
            report(
                "I15",
                f"{call.effect} effect {call.key!r} ({call.tool_name}) was started again although "
                "its outcome is unknown",
            )

    def _settle_effect(self, name: str, call: _Call, fact: Fact, report: Report) -> None:
        digest = _digest_result(fact.payload) if call.outcome == "succeeded" else None
        if call.expected is not None and digest != call.expected:
            report(
                "I15",
                f"call {name!r} didn't return the success that is recorded under its key "
                f"{call.key!r}",
            )
        elif digest is not None:
            self.outcomes[call.key] = digest


def _digest_result(payload: dict[str, Any]) -> bytes:
    value = payload.get("result", payload.get("resultRef"))
    return sha256(pack_value(value)).digest()
