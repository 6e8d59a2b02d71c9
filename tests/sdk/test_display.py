"""Runs as people see them: sub-runs, roles, fixes, planning, and what it took."""

from typing import Any

import pytest

from planaria.display import (
    format_usage,
    name_step,
    order_family,
    show_processes,
    show_run,
    show_runs,
)
from planaria.progress import Progress

RUN: dict[str, Any] = {
    "runId": "r",
    "status": "running",
    "workflowId": "w",
    "steps": [],
    "admittedAt": 0,
    "endedAt": None,
    "events": 3,
    "usage": {},
}


def step(id: str, uses: str, **more: Any) -> dict[str, Any]:
    entry = {"stepId": id, "path": id, "uses": uses, "status": "running", "visits": 0, "attempt": 1}
    return {**entry, **more}


def show(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    show_run({**RUN, **changes})
    return capsys.readouterr().out


def test_planning_is_shown_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    session = {"sessionId": "s", "incarnation": 1, "openCalls": ["model"], "role": "planner"}

    out = show(capsys, steps=[step(".plan", "plan", session=session)], isPlanning=True)

    assert "● plan running by its planner in model" in out
    assert "is being planned" in out
    assert ".plan" not in out


def test_what_planning_took_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, planningUsage={"m": {"requests": 2, "input_tokens": 30}})

    assert "was planned: m: 2 requests, 30 input tokens" in out


def test_fixes_and_sub_runs_stand_at_their_steps(capsys: pytest.CaptureFixture[str]) -> None:
    session = {"sessionId": "s", "incarnation": 2, "openCalls": [], "role": "fixer"}
    steps = [
        step("compute", "code.run", fixAttempt=2, session=session),
        step("inner", "workflow.call", subRunId="run_1"),
    ]
    sub_runs = [{"subRunId": "run_1", "workflowId": "x", "status": "running", "stepPath": "inner"}]

    out = show(capsys, steps=steps, subRuns=sub_runs)

    assert "compute code.run running fix 2 by its fixer incarnation 2" in out
    assert "inner workflow.call running in sub-run run_1" in out
    assert "run_1 x running for step inner" in out


def test_relations_of_a_run_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = show(
        capsys,
        parentRunId="p",
        parentStepPath=".orchestrate",
        outerLoopId="ol_1",
        cycleNumber=2,
        forkedFrom={"fromRunId": "f", "atSequence": 7},
    )

    assert "sub-run of p, step orchestrate" in out
    assert "cycle 2 of outer loop ol_1" in out
    assert "forked from f at event 7" in out


@pytest.mark.parametrize(
    ("usage", "cost", "text"),
    [
        ({}, None, ""),
        ({"requests": 1200, "input_tokens": 3}, 0, "1,200 requests, 3 input tokens"),
        (
            {"a:b": {"requests": 1}, "c:d": {"input_tokens": 2}},
            0.5,
            "a:b: 1 requests; c:d: 2 input tokens; $0.5000",
        ),
        ({"a:b": {"requests": 1}}, None, "a:b: 1 requests; cost unknown"),
    ],
)
def test_usage_is_one_line(usage: dict[str, Any], cost: float | None, text: str) -> None:
    assert text == format_usage(usage, cost)


def test_cost_is_shown_where_the_run_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    usage = {"a:b": {"requests": 1}}

    assert "a:b: 1 requests\n" in show(capsys, usage=usage)
    assert "a:b: 1 requests; cost unknown" in show(capsys, usage=usage, costUsd=None)


def row(run_id: str, parent: str | None = None) -> dict[str, Any]:
    entry = {"runId": run_id, "status": "completed", "workflowId": "w", "admittedAt": 0}
    return {**entry, "endedAt": 1, "parentRunId": parent}


def test_sub_runs_stand_below_their_parents(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [row("c", "b"), row("b", "a"), row("x", "gone"), row("a"), row("d", "a")]

    ordered = [(run["runId"], depth) for run, depth in order_family(runs)]
    show_runs(runs)

    assert [("x", 0), ("a", 0), ("b", 1), ("c", 2), ("d", 1)] == ordered
    assert "  └ c " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "name"),
    [(".plan", "plan"), (".orchestrate", "orchestrate"), ("a.b", "a.b"), ("plan", "plan")],
)
def test_pseudo_steps_have_names(path: str, name: str) -> None:
    assert name == name_step(path)


def test_progress_tells_planning_fixes_and_sub_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def event(kind: str, **payload: Any) -> dict[str, Any]:
        return {"type": kind, "at": "2026-12-01T10:20:30.000000Z", "payload": payload}

    attempt = {"stepPath": ".plan", "uses": "plan", "attempt": 1, "sessionId": "s"}
    fix = {"stepPath": "c", "uses": "code.run", "attempt": 2, "fixAttempt": 1, "sessionId": "t"}
    with Progress("r", is_live=False) as progress:
        for one in (
            event("StepAttemptStarted", **attempt),
            event("ProcessStarted", sessionId="s", pid=7, incarnation=1),
            event("StepRepairAttempted", stepPath=".plan", attempt=1, findings=[{}, {}]),
            event("WorkflowVersionRegistered", workflowVersionId="wv_1"),
            event("StepAttemptStarted", **fix),
            event("ProcessStarted", sessionId="t", pid=8, incarnation=2),
            event("SubRunRequested", subRunId="run_1", workflowId="w", wait=True),
            event("RunReopened", by="ann", reason="", fromSequence=9),
            event("RunForked", fromRunId="q", atSequence=4),
            event("BudgetExhausted", sessionId="s", callId="c", error={}),
            event("SubRunSettled", subRunId="run_1", status="completed", usage={}),
        ):
            progress.take(one)

    assert [
        "10:20:30 step plan (plan) in process 7",
        "10:20:30 step plan: 2 finding(s), attempt 1 to mend them",
        "10:20:30 planned: version wv_1",
        "10:20:30 step c (code.run) in process 8, fix 1, incarnation 2",
        "10:20:30 sub-run run_1 (w) started",
        "10:20:30 run r is tried again, asked for by ann",
        "10:20:30 run r shares run q up to its event 4",
        "10:20:30 run r: its budget is used up",
        "10:20:30 sub-run run_1 completed",
    ] == capsys.readouterr().err.splitlines()
    assert "completed" == progress.steps[".plan"].status


def test_registration_without_a_plan_is_not_worth_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress("r", is_live=False) as progress:
        payload = {"workflowVersionId": "wv_1"}
        progress.take({"type": "WorkflowVersionRegistered", "at": "", "payload": payload})

    assert "" == capsys.readouterr().err


def test_processes_without_a_pid_are_left_out_and_fork_servers_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = {"kind": "light", "status": "launching", "stepPath": None, "incarnation": 0}
    shown = [{**process, "runId": None, "pid": None}, {**process, "runId": "r", "pid": 12}]

    show_processes({"pid": 7, "others": [{"pid": 9, "name": "python"}]}, shown)

    out = capsys.readouterr().out
    assert "pid 12 light" in out and "pid 9 python" in out
    assert "pid -" not in out and "without a run yet" not in out
