"""What became of a run or of an outer loop: a result, or the error that it ended with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.errors import InterruptedEffectError, RunBlockedError, RunFailedError

Load = Callable[[dict[str, Any], str], Any]  # (fields, name) -> the value, from its blob too


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run, or an outer loop, that ended well.

    `usage` counts requests and tokens of its recorded model calls; `cost_usd` is None if a price
    isn't known. Of a loop `run_id` is its last cycle's and `cycles` are in their order:
    {cycleNumber, runId, workflowVersionId, status, output, summary?}.
    """

    output: Any
    run_id: str
    status: str = "completed"
    usage: dict[str, Any] = field(default_factory=dict)
    cost_usd: float | None = None
    outer_loop_id: str | None = None
    cycles: tuple[dict[str, Any], ...] = ()


def read_outcome(outcome: dict[str, Any], load: Load, workflow: Any = None) -> RunResult:
    """Returns the result that a run's outcome tells, or raises it; `workflow` gives it its type.

    Raises:
        RunFailedError: it failed or was cancelled.
        InterruptedEffectError: it can't go on before a person has decided.
        RunBlockedError: it waits for others, and the answer tells of that.
    """
    run_id = outcome["runId"]
    if outcome["status"] == "interrupted":
        unknown = outcome["interrupted"][0]
        raise InterruptedEffectError(
            run_id=unknown.get("runId", run_id),
            step_path=unknown["stepPath"],
            tool_name=unknown["toolName"],
            effect=unknown["effect"],
            idempotency_key=unknown["idempotencyKey"],
            call_id=unknown["callId"],
            dispatched_at=unknown["dispatchedAt"],
        )
    if outcome.get("blocks"):
        raise RunBlockedError(run_id=run_id, blocks=outcome["blocks"])
    if outcome["status"] != "completed":
        error = outcome.get("error") or {}
        raise RunFailedError(
            run_id=run_id,
            cause_code=error.get("causeCode", "cancelled"),
            code=error.get("code"),
            message=error.get("message", "it was cancelled"),
            failed_step_path=outcome.get("failedStepPath"),
            error_name=error.get("name"),
        )
    output = load(outcome, "output")
    if workflow is not None:
        output = workflow.load_output(output)
    return RunResult(
        output=output,
        run_id=run_id,
        usage=outcome.get("usage") or {},
        cost_usd=outcome.get("costUsd"),
    )


def read_loop(answer: dict[str, Any], load: Load) -> RunResult:
    """Returns the result of an outer loop that is done, or raises why it ended otherwise.

    Its output is what `supervise` answered, as JSON.

    Raises:
        RunFailedError: it is exhausted (then with `last_cycle_output`), or was stopped.
    """
    loop_id = answer["outerLoopId"]
    cycles = tuple(_read_cycle(cycle, load) for cycle in answer.get("cycles") or ())
    last = cycles[-1] if cycles else {}
    run_id = last.get("runId") or loop_id
    if answer["status"] == "done":
        return RunResult(
            output=load(answer, "output"),
            run_id=run_id,
            usage=answer.get("usage") or {},
            cost_usd=answer.get("costUsd"),
            outer_loop_id=loop_id,
            cycles=cycles,
        )
    error = answer.get("error") or {}
    fields: dict[str, Any] = {
        "run_id": answer.get("pendingCycleRunId") or run_id,  # a loop stops in an open cycle
        "outer_loop_id": loop_id,
        "failed_step_path": error.get("failedStepPath"),
        "error_name": error.get("name"),
        "cycles": list(cycles),
    }
    if answer["status"] == "exhausted":
        message = f"outer loop {loop_id!r} had its {len(cycles)} cycle(s) and none was the last"
        raise RunFailedError(
            **fields,
            cause_code="outer_loop_exhausted",
            code="outer_loop_exhausted",
            message=error.get("message", message),
            last_cycle_output=last.get("output"),
        )
    raise RunFailedError(
        **fields,
        cause_code=error.get("causeCode", "cancelled"),
        code=error.get("code"),
        message=error.get("message", f"outer loop {loop_id!r} was stopped"),
    )


def _read_cycle(cycle: dict[str, Any], load: Load) -> dict[str, Any]:
    shown = {name: value for name, value in cycle.items() if name != "outputRef"}
    return {**shown, "output": load(cycle, "output")}
