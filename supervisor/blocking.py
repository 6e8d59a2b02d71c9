"""What blocks a run: the decisions of others without which nothing of it moves on. Pure."""

from collections.abc import Mapping
from typing import Any

from .run_state import ApprovalState, CallState, RunState, WaitState

EFFECT = "effect"
Block = dict[str, Any]  # {kind: effect|approval|signal|pause, runId, …}, see `list_blocks`


def find_blocks(runs: Mapping[str, RunState], run: RunState) -> list[Block] | None:
    """Returns what others have to decide before a run moves on; None if it moves by itself.

    A parent whose sub-runs are all that it waits for is blocked by what blocks them. An expiry
    moves a run on too: until then it is blocked.
    """
    if run.is_ended:
        return None
    if run.is_paused:
        is_busy = any(session.is_live for session in run.sessions.values())
        return None if is_busy else list_blocks(run)
    if run.waiting or run.backoffs or any(wait.name is None for wait in run.waits.values()):
        return None
    if any(not (s.is_held or s.awaits_others) for s in run.sessions.values()):
        return None
    blocks = list_blocks(run)
    for sub_run in run.sub_runs.values():
        if sub_run.is_awaited:
            inner = runs.get(sub_run.id)
            found = find_blocks(runs, inner) if inner is not None else None
            if found is None:
                return None
            blocks.extend(found)
    return blocks or None


def is_interrupted(blocks: list[Block] | None) -> bool:
    """Says whether nothing but effects of unknown outcome blocks a run."""
    return bool(blocks) and all(block["kind"] == EFFECT for block in blocks or ())


def list_blocks(run: RunState) -> list[Block]:
    """Returns what of a run itself waits for others, whether or not the rest of it moves."""
    blocks: list[Block] = []
    if run.pause is not None:
        at, by = run.pause["at"], run.pause["by"]
        blocks.append({"kind": "pause", "runId": run.run_id, "since": at, "by": by})
    for call in run.unknown_effects.values():
        if call.session_id in run.sessions:
            blocks.append({"kind": EFFECT, "runId": run.run_id, **describe_effect(call)})
    blocks.extend({"kind": "approval", **describe_approval(run, a)} for a in run.approvals.values())
    for wait in run.waits.values():
        if wait.name is not None:
            blocks.append({"kind": "signal", "runId": run.run_id, **describe_wait(wait)})
    return blocks


def describe_effect(call: CallState) -> dict[str, Any]:
    """Returns the evidence of a call whose outcome is unknown."""
    return {
        "callId": call.call_id,
        "sessionId": call.session_id,
        "stepPath": call.step_path,
        "toolName": call.tool_name,
        "effect": call.effect,
        "idempotencyKey": call.idempotency_key,
        "dispatchedAt": call.started_at,
        "since": call.unknown_at,
        "evidence": call.evidence,
    }


def describe_approval(run: RunState, approval: ApprovalState) -> dict[str, Any]:
    """Returns an open approval with what is shown to whoever decides it."""
    names = ("prompt", "data", "dataRef", "dataHash", "callId")
    shown: dict[str, Any] = {n: approval.requested[n] for n in names if n in approval.requested}
    session = run.sessions.get(approval.session_id or "")
    path = approval.step_path if session is None else session.step.path
    return {
        "runId": run.run_id,
        "approvalId": approval.id,
        "stepPath": path,
        **shown,
        "since": approval.requested_at,
        "expiresAt": approval.expires_at,
        "onTimeout": approval.on_timeout,
    }


def describe_wait(wait: WaitState) -> dict[str, Any]:
    """Returns an open wait: for a signal by its name, or for an instant."""
    return {
        "stepPath": wait.path,
        "name": wait.name,
        "since": wait.since,
        "dueAt": wait.due_at,
    }
