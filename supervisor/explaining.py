"""Why a run is where it is, in words: what it waits for, since when, and what moves it on. Pure."""

from collections.abc import Mapping
from typing import Any

from planaria.protocol.moments import format_moment

from .blocking import Block, describe_wait, list_blocks
from .run_state import RunState

SUB_RUNS_NAMED_MAX = 3


def explain(runs: Mapping[str, RunState], run: RunState) -> list[str]:
    """Returns a sentence for each thing that an open run waits for; none if it has ended."""
    if run.is_ended:
        return []
    told = [_explain_block(block) for block in list_blocks(run)]
    told.extend(explain_timers(run))
    live = sum(session.is_live for session in run.sessions.values())
    if live:
        told.append(f"{live} step(s) running, each in its process")
    if run.waiting and not run.is_paused:
        told.append(f"{len(run.waiting)} step(s) waiting for a process: one comes by itself")
    for sub_run in list(run.sub_runs.values())[:SUB_RUNS_NAMED_MAX]:
        inner = runs.get(sub_run.id)
        status = f" ({inner.status})" if inner is not None else ""
        why = f"'planaria show {sub_run.id}' says what that waits for"
        told.append(f"sub-run {sub_run.id} of workflow {sub_run.workflow_id}{status}: {why}")
    more = len(run.sub_runs) - SUB_RUNS_NAMED_MAX
    if more > 0:
        told.append(f"{more} sub-run(s) more")
    return told or ["the supervisor: its next round moves it on"]


def explain_timers(run: RunState) -> list[str]:
    """Returns a sentence for each instant that a run waits for."""
    told = []
    for wait in run.waits.values():
        facts = describe_wait(wait)
        if wait.name is None:
            told.append(f"the time, for step {wait.path}{_span(facts, 'dueAt')}")
    for step in run.backoffs.values():
        if step.due_at is not None:
            due = format_moment(step.due_at)
            told.append(f"attempt {step.attempt + 1} of step {step.path}, due at {due}")
    return told


def _explain_block(block: Block) -> str:
    run_id = block["runId"]
    match block["kind"]:
        case "pause":
            at = format_moment(block["since"])
            return f"it was paused by {block['by']} at {at}: 'planaria unpause {run_id}' ends that"
        case "approval":
            number = block["approvalId"]
            return (
                f"a decision for step {block['stepPath']}{_span(block, 'expiresAt')}: "
                f"'planaria approve {run_id} {number}', or reject"
            )
        case "signal":
            name = block["name"]
            return (
                f"signal {name!r} for step {block['stepPath']}{_span(block, 'dueAt')}: "
                f"'planaria signal {run_id} {name}' brings it"
            )
        case _:
            at = format_moment(block["dispatchedAt"])
            return (
                f"whether {block['toolName']!r} of step {block['stepPath']}, dispatched at {at}, "
                f"has happened is unknown: look outside, then 'planaria resolve {run_id} "
                f"{block['callId']}' --succeeded JSON, --failed TEXT, --never-happened or "
                f"--give-up; 'planaria cancel {run_id}' ends the run"
            )


def _span(facts: dict[str, Any], until: str) -> str:
    since = f", since {format_moment(facts['since'])}"
    return since if facts[until] is None else f"{since}, until {format_moment(facts[until])}"
