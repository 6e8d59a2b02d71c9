"""What approvals and waits owe: the question, the wait, and the end of their step."""

from typing import Any

from planaria.protocol.codec import Json, hash_value
from planaria.protocol.durations import parse_duration
from planaria.protocol.events import Draft
from planaria.protocol.expressions import ExpressionError
from planaria.protocol.ids import derive_id
from planaria.protocol.moments import format_moment, parse_moment
from planaria.protocol.payloads import write_field

from .context import evaluate
from .drafts import fail_attempt, identify_step, make_error
from .fold_waits import ABANDONED
from .outputs import check_output
from .run_state import (
    ApprovalState,
    Library,
    Now,
    Owed,
    RunState,
    SessionState,
    StepState,
    Value,
)

PROMPT_CHARS_MAX = 20_000


def request_approval(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    """Asks the question of an `approval` step, with what is shown beside it."""
    step = run.steps[owed[1]]
    arguments = step.plan.document["with"]
    try:
        shown = {n: evaluate(run, step, t, library) for n, t in step.plan.templates.items()}
    except ExpressionError as error:
        return [_fail(run, step, "ExpressionError", str(error))]
    prompt, data = shown.get("prompt", ""), shown.get("data")
    prompt = prompt if isinstance(prompt, str) else str(prompt)
    data_hash = hash_value([prompt, data])
    payload: dict[str, Any] = {
        "approvalId": derive_id("ap_", run.run_id, step.path, step.attempt, data_hash),
        "stepPath": step.path,
        "prompt": prompt[:PROMPT_CHARS_MAX],
        "dataHash": data_hash,
        "onTimeout": arguments.get("onTimeout", "reject"),
    }
    if "data" in shown:
        payload.update(write_field("data", data))
    if "expiresIn" in arguments:
        payload["expiresAt"] = _after(step, arguments["expiresIn"])
    return [Draft(run.run_id, "ApprovalRequested", payload)]


def finish_approval(
    run: RunState, owed: Owed, detail: Any, now: Now, library: Library
) -> list[Draft]:
    """Ends the step with the decision; an expiry rejects, or fails the step."""
    step = run.steps[owed[1]]
    if detail["decision"] == "expired" and detail["onTimeout"] == "fail":
        text = "nobody decided before it expired"
        return [_fail(run, step, "ApprovalExpired", text)]
    output: dict[str, Any] = {
        "decision": "rejected" if detail["decision"] == "expired" else detail["decision"],
        "source": detail["source"],
        "decidedAt": format_moment(detail["decidedAt"]),
    }
    output.update({name: detail[name] for name in ("by", "note") if name in detail})
    return [_complete(run, step, output)]


def start_wait(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Begins a `wait` step: its due time is computed now and never again."""
    step = run.steps[owed[1]]
    arguments = step.plan.document["with"]
    payload: dict[str, Any] = {"stepPath": step.path}
    try:
        if "signal" in arguments:
            payload["name"] = arguments["signal"]
            if "expiresIn" in arguments:
                payload["dueAt"] = _after(step, arguments["expiresIn"])
        elif "until" in arguments:
            moment = evaluate(run, step, step.plan.templates["until"], library)
            payload["dueAt"] = parse_moment(moment)
        else:
            payload["dueAt"] = _after(
                step, evaluate(run, step, step.plan.templates["for"], library)
            )
    except (ExpressionError, ValueError) as error:
        return [_fail(run, step, type(error).__name__, str(error))]
    return [Draft(run.run_id, "WaitStarted", payload)]


def take_signal(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Gives a wait the oldest signal of its name."""
    wait = run.waits[owed[1]]
    kept = run.signals.get(wait.name or "", {})
    if not kept:
        return []
    payload = {"stepPath": wait.path, "outcome": "signal", "signalId": next(iter(kept))}
    return [Draft(run.run_id, "WaitCompleted", payload)]


def finish_wait(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Ends a `wait` step: a signal's data is its output, an instant has none."""
    step = run.steps[owed[1]]
    outcome, value = detail
    if outcome == "expired":
        name = step.plan.document["with"]["signal"]
        return [_fail(run, step, "WaitExpired", f"signal {name!r} didn't come in time")]
    return [_complete(run, step, value, library)]


def abandon(run: RunState, owed: Owed, detail: Any, now: Now, library: Library) -> list[Draft]:
    """Ends the waiting of a step whose scope was stopped."""
    path = owed[1]
    if path in run.waits:
        payload = {"stepPath": path, "outcome": ABANDONED}
        return [Draft(run.run_id, "WaitCompleted", payload)]
    asked = (a for a in run.approvals.values() if a.session_id is None and a.step_path == path)
    return [_abandon_approval(run, approval, now) for approval in asked]


def close_approvals(run: RunState, session: SessionState, now: Now) -> list[Draft]:
    """Returns the ends of the approvals that a session which ends has asked for."""
    return [_abandon_approval(run, run.approvals[id], now) for id in session.approvals]


def _abandon_approval(run: RunState, approval: ApprovalState, now: Now) -> Draft:
    payload: dict[str, Any] = {"approvalId": approval.id, "decision": ABANDONED}
    payload.update(source="run", decidedAt=now.at)
    return Draft(run.run_id, "ApprovalResolved", payload, approval.session_id)


def _after(step: StepState, duration: Json) -> int:
    if not isinstance(duration, str):
        raise ValueError(f"a duration is a text such as '90s', not {type(duration).__name__}")
    return step.attempt_started_at + parse_duration(duration) * 1_000


def _fail(run: RunState, step: StepState, name: str, text: str) -> Draft:
    message = f"{step.plan.kind} {step.plan.id!r}: {text}"
    return fail_attempt(run, step, make_error(name, message, "step_failed"))


def _complete(
    run: RunState, step: StepState, output: Value, library: Library | None = None
) -> Draft:
    value = output if library is None else library.value(output)
    problem = check_output(step.plan, value)
    if problem is not None:
        error = make_error("OutputSchemaError", problem, "step_schema_error")
        return fail_attempt(run, step, error)
    payload = {**identify_step(step), "attempt": step.attempt, **write_field("output", output)}
    return Draft(run.run_id, "StepCompleted", payload)
