"""The budget of a run, which counts as part of I29: no breach of it passes in silence.

A call's reservation stands right behind its intent, its settlement right behind its response.
"""

from dataclasses import dataclass, field
from typing import Any

from .checker_facts import Fact, Report

MODEL_INTENTS = frozenset({"harness.model.called", "harness.model.repeated"})
_AMOUNTS = frozenset({"BudgetReserved", "BudgetSettled"})
_ROUNDING = 1e-9  # sums of dollars in another order than the supervisor's


@dataclass(slots=True)
class BudgetRules:
    """Checks what one run reserves, settles and spends; `limits` is None without a budget."""

    limits: dict[str, Any] | None = None
    _calls: int = 0
    _tokens: int = 0
    _cost: float = 0.0
    _reserved: dict[str, tuple[int, float]] = field(default_factory=dict)
    _due: tuple[str, str, int] | None = None  # type, call and tokens of what has to come next
    _exhausted: set[str | None] = field(default_factory=set)  # sessions that have to fail

    def take(self, fact: Fact, report: Report) -> None:
        """Checks an event of the run."""
        kind, payload = fact.type, fact.payload
        if self.limits is None:
            if kind in _AMOUNTS or kind == "BudgetExhausted":
                report("I29", f"{kind} in a run without a budget")
            return
        due, self._due = self._due, None
        if due is not None and due[:2] != (kind, payload.get("callId")):
            report("I29", f"{kind} came where {due[0]} of call {due[1]!r} was due")
        elif kind in _AMOUNTS:
            self._take_amount(due, fact, report)
        if kind in MODEL_INTENTS:
            if fact.session_id in self._exhausted:
                report("I29", f"{kind} of a session that has used its budget up")
            self._due = ("BudgetReserved", payload["callId"], _estimate(payload.get("reserve")))
        elif kind == "harness.model.responded":
            self._due = ("BudgetSettled", payload["callId"], _count_tokens(payload["usage"]))
        elif kind == "BudgetExhausted":
            self._exhausted.add(fact.session_id)
        elif kind == "harness.session.completed" and fact.session_id in self._exhausted:
            report("I29", "the session completed although it has used its budget up")
        elif kind == "SubRunSettled":
            spent = payload.get("spent")
            if not isinstance(spent, dict):
                report("I29", f"sub-run {payload['subRunId']!r} was settled without its spending")
                return
            self._calls += _count(spent, "calls")
            self._tokens += _count(spent, "tokens")
            self._cost += spent.get("costUsd") or 0.0
            limit = self.limits.get("maxModelCalls")  # the others are estimates, and may be passed
            if limit is not None and self._calls > limit:
                report("I29", f"with its sub-runs it made {self._calls} calls, of {limit} allowed")

    def finish(self, report: Report) -> None:
        """Checks what must not be missing at the end of a log (a commit's end)."""
        if self._due is not None:
            report("I29", f"{self._due[0]} of call {self._due[1]!r} is missing")

    def _take_amount(self, due: tuple[str, str, int] | None, fact: Fact, report: Report) -> None:
        kind, payload = fact.type, fact.payload
        call, tokens, cost = payload["callId"], payload["tokens"], payload["costUsd"]
        if due is None:
            report("I29", f"{kind} of call {call!r} follows no event that asks for it")
            return
        if (payload["calls"], tokens) != (1, due[2]):
            report("I29", f"{kind} of call {call!r} is of {tokens} tokens, not {due[2]}")
        if kind == "BudgetReserved":
            self._calls += 1
            self._tokens += tokens
            self._cost += cost or 0.0
            self._reserved[call] = (tokens, cost or 0.0)
            self._check_limits(call, cost, report)
        elif (reserved := self._reserved.pop(call, None)) is None:
            report("I29", f"{kind} of call {call!r}, which has no reservation")
        else:
            self._tokens += tokens - reserved[0]
            self._cost += 0.0 if cost is None else cost - reserved[1]

    def _check_limits(self, call: str, cost: float | None, report: Report) -> None:
        assert self.limits is not None, "a run without a budget reserves nothing"
        limits = self.limits
        sums = (
            ("maxModelCalls", self._calls, 0),
            ("maxTokens", self._tokens, 0),
            ("maxCostUsd", self._cost, _ROUNDING),
        )
        for name, amount, tolerance in sums:
            limit = limits.get(name)
            if limit is not None and amount > limit + tolerance:
                report("I29", f"call {call!r} was reserved: {amount} are over {name} = {limit}")
        if limits.get("maxCostUsd") is not None and cost is None:
            report("I29", f"call {call!r} was reserved without a price, against maxCostUsd")


def _estimate(reserve: Any) -> int:
    """Returns the tokens that a call says it may take; -1: it doesn't say."""
    if not isinstance(reserve, dict):
        return -1
    return _count(reserve, "inputTokens", "outputTokens")


def _count_tokens(usage: dict[str, Any]) -> int:
    return _count(usage, "input_tokens", "output_tokens")


def _count(counts: dict[str, Any], *names: str) -> int:
    return sum(number for name in names if type(number := counts.get(name)) is int)
