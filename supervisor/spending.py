"""What the runs of one tree have spent: sub-runs share the budgets of those around them."""

from .budgets import Limits, Spending
from .run_state import RunState
from .system_state import SystemState


def list_limits(system: SystemState, run: RunState) -> list[Limits]:
    """Returns the budgets that a call of this run has to fit into: its own, then its callers'."""
    limits: list[Limits] = []
    others = Spending()
    below: RunState | None = None
    holder: RunState | None = run
    while holder is not None:
        if below is not None:
            others.add(holder.spent)
        others.add(_spent_by_sub_runs(system, holder, but=below))
        if holder.budget is not None:
            shared = Spending(others.calls, others.tokens, others.cost_usd)
            limits.append(Limits(holder.run_id, holder.budget, shared))
        below, holder = holder, system.runs.get(holder.admission.get("parentRunId", ""))
    return limits


def _spent_by_sub_runs(system: SystemState, run: RunState, but: RunState | None = None) -> Spending:
    """Returns what open sub-runs have spent; those that are settled count as the run's own."""
    total = Spending()
    for name in run.sub_runs:
        sub_run = system.runs.get(name)
        if sub_run is not None and sub_run is not but:
            total.add(sub_run.spent)
            total.add(_spent_by_sub_runs(system, sub_run))
    return total
