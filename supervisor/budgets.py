"""Budgets: what a run may spend on models, reserved before each call and settled after it.

A reservation that was never settled (its call was lost with its process) stays charged, so that a
crash forgets nothing. Replayed calls aren't made, and cost nothing.
"""

from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.errors import shorten
from planaria.protocol.usage import count_tokens

MODEL_INTENTS = frozenset({"harness.model.called", "harness.model.repeated"})


@dataclass(slots=True)
class Spending:
    """What a run has spent or reserved; `reserved` are the calls in flight: (tokens, USD)."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    reserved: dict[str, tuple[int, float]] = field(default_factory=dict)

    def reserve(self, call_id: str, calls: int, tokens: int, cost_usd: float | None) -> None:
        """Charges a call at its estimate."""
        self.calls += calls
        self.tokens += tokens
        self.cost_usd += cost_usd or 0.0
        self.reserved[call_id] = (tokens, cost_usd or 0.0)

    def settle(self, call_id: str, tokens: int, cost_usd: float | None) -> None:
        """Charges a call at what it has really used."""
        reserved_tokens, reserved_cost = self.reserved.pop(call_id, (0, 0.0))
        self.tokens += tokens - reserved_tokens
        self.cost_usd += (reserved_cost if cost_usd is None else cost_usd) - reserved_cost

    def add(self, other: "Spending") -> None:
        """Charges what another has spent or reserved, as it stands."""
        self.calls += other.calls
        self.tokens += other.tokens
        self.cost_usd += other.cost_usd


@dataclass(frozen=True, slots=True)
class Limits:
    """A budget that a call has to fit into: its run's own, or that of a run which started it."""

    run_id: str
    budget: dict[str, Any]
    others: Spending  # what other runs have spent of it


def find_excess(
    limits: Limits, spent: Spending, tokens: int, cost_usd: float | None, model: str
) -> dict[str, Any] | None:
    """Returns the error of a call that a budget has no room for, or None.

    `spent` is what the run that wants to make the call has spent.
    """
    budget = limits.budget
    spent = Spending(spent.calls, spent.tokens, spent.cost_usd)
    spent.add(limits.others)
    calls_max, tokens_max = budget.get("maxModelCalls"), budget.get("maxTokens")
    cost_max = budget.get("maxCostUsd")
    text, cause = "", "budget_exceeded"
    if calls_max is not None and spent.calls + 1 > calls_max:
        text = f"{spent.calls} model calls are made or reserved, and max_model_calls is {calls_max}"
    elif tokens_max is not None and spent.tokens + tokens > tokens_max:
        text = (
            f"{spent.tokens:,} tokens are used or reserved, the next call may take {tokens:,}, and "
            f"max_tokens is {tokens_max:,}"
        )
    elif cost_max is not None and cost_usd is None:
        cause = "runtime_config_error"
        text = f"model {model!r} has no known price, so max_cost_usd can't be kept; leave it out"
    elif cost_max is not None and cost_usd is not None and spent.cost_usd + cost_usd > cost_max:
        text = (
            f"${spent.cost_usd:.6f} are spent or reserved, the next call may cost "
            f"${cost_usd:.6f}, and max_cost_usd is {cost_max}"
        )
    if not text:
        return None
    text += f" (the budget of run {limits.run_id})"
    name = "BudgetExceeded" if cause == "budget_exceeded" else "UnpricedModel"
    return {"name": name, "message": shorten(text), "causeCode": cause, "retriable": False}


def remaining(budget: dict[str, Any], spent: Spending) -> dict[str, Any]:
    """Returns what is left of a budget; a sub-run gets it as its own."""
    used = {"maxModelCalls": spent.calls, "maxTokens": spent.tokens, "maxCostUsd": spent.cost_usd}
    return {name: max(0, limit - used[name]) for name, limit in budget.items()}


def estimate_tokens(reserve: dict[str, Any]) -> int:
    """Returns the tokens that a call's reservation takes."""
    return int(reserve["inputTokens"]) + int(reserve["outputTokens"])


def used_tokens(payload: dict[str, Any]) -> int:
    """Returns the tokens that a recorded response has used."""
    return count_tokens(payload["usage"])
