"""The checker's rules of roles, sub-runs, openings, budgets and loops: each broken in a real log.

A log of the simulation is changed in one place and chained anew. What breaks with it is listed:
some places can't be wrong alone.
"""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from simulated_logs import check_events, read_events
from test_checker_simulation import PROGRAMS
from world import World

from planaria.protocol.events import Event
from planaria.protocol.manifests import hash_manifest

Log = list[Event]
Change = Callable[[Log], None]


@cache
def write(name: str) -> tuple[World, Log]:
    world = PROGRAMS[name]()
    return world, read_events(world)


def find(log: Log, kind: str, nth: int = 0, run: str | None = None) -> Event:
    return [e for e in log if e.type == kind and run in (None, e.run_id)][nth]


def index(log: Log, kind: str, nth: int = 0, run: str | None = None) -> int:
    found = find(log, kind, nth, run)
    return next(i for i, event in enumerate(log) if event is found)


def edit(kind: str, nth: int = 0, **fields: Any) -> Change:
    """Changes fields of the payload of an event."""

    def change(log: Log) -> None:
        find(log, kind, nth).payload.update(fields)

    return change


def drop(kind: str, nth: int = 0) -> Change:
    def change(log: Log) -> None:
        del log[index(log, kind, nth)]

    return change


def repeat(kind: str, nth: int = 0) -> Change:
    def change(log: Log) -> None:
        at = index(log, kind, nth)
        log.insert(at + 1, copy.deepcopy(log[at]))

    return change


def move(kind: str, before: str, nth: int = 0, before_nth: int = 0) -> Change:
    def change(log: Log) -> None:
        event = log.pop(index(log, kind, nth))
        log.insert(index(log, before, before_nth), event)

    return change


def cut_behind(kind: str) -> Change:
    def change(log: Log) -> None:
        del log[index(log, kind) + 1 :]

    return change


def add_behind(
    after: str, kind: str, run: str | None = None, nth: int = 0, **payload: Any
) -> Change:
    def change(log: Log) -> None:
        at = index(log, after, nth, run)
        before = log[at]
        made = Event(
            before.run_id, 0, kind, before.at, before.mono, before.epoch, None, None, payload
        )
        log.insert(at + 1, made)

    return change


def edit_manifest(nth: int = 0, *, without: str = "", **fields: Any) -> Change:
    def change(log: Log) -> None:
        started = find(log, "harness.session.started", nth).payload
        started["manifest"].update(fields)
        started["manifest"].pop(without, None)
        started["manifestHash"] = hash_manifest(started["manifest"])

    return change


def retype(kind: str, other: str) -> Change:
    def change(log: Log) -> None:
        find(log, kind).type = other

    return change


# -- sub-runs -----------------------------------------------------------------------------------


def rename_sub_run(log: Log) -> None:
    old = find(log, "SubRunRequested").payload["subRunId"]
    for event in log:
        event.run_id = "run_other" if event.run_id == old else event.run_id
        for name in ("subRunId", "parentRunId"):
            if event.payload.get(name) == old:
                event.payload[name] = "run_other"


def answer_early(log: Log) -> None:
    answered = next(
        e for e in log if e.type == "harness.tool_call.succeeded" and e.incarnation is None
    )
    log.remove(answered)
    log.insert(index(log, "SubRunSettled"), answered)


def answer_by_a_process(log: Log) -> None:
    """The settled call of a session whose process was put away isn't reported by a new one."""
    answered = [e for e in log if e.type == "harness.tool_call.succeeded" and e.incarnation is None]
    answered[-1].incarnation = max(e.payload["incarnation"] for e in log if is_start(e, answered))


def is_start(event: Event, answered: Log) -> bool:
    return event.type == "ProcessStarted" and event.session_id == answered[-1].session_id


def answer_something_else(log: Log) -> None:
    answered = [e for e in log if e.type == "harness.tool_call.succeeded" and e.incarnation is None]
    answered[-1].payload["result"]["output"] = {"x": 1_000}


SUB_RUN_CHANGES: list[tuple[str, set[str], Change]] = [
    ("call", {"I21"}, move("RunAdmitted", "SubRunRequested", nth=1)),
    ("call", {"I21"}, edit("RunAdmitted", 1, parentRunId="run_x")),
    ("call", {"I21"}, edit("RunAdmitted", 1, parentStepPath="a")),
    ("call", {"I20", "I21"}, edit("RunAdmitted", 1, planOnly=True)),
    ("call", {"I21"}, edit("RunAdmitted", 1, workflowId="other")),
    ("call", {"I21"}, rename_sub_run),
    ("call", {"I21"}, edit("SubRunRequested", stepPath="a")),
    ("call", {"I21"}, repeat("SubRunRequested")),
    ("call", {"I21"}, cut_behind("SubRunRequested")),
    ("call", {"I21"}, move("SubRunSettled", "RunCompleted")),
    ("call", {"I21"}, repeat("SubRunSettled")),
    ("call", {"I21"}, edit("SubRunSettled", output={"x": 1_000})),
    ("call", {"I21"}, edit("SubRunSettled", status="failed")),
    ("call", {"I20", "I21"}, drop("SubRunSettled")),
    ("call", {"I21"}, edit("StepCompleted", 2, output={"x": 1_000})),
    ("orchestrate", {"I21"}, edit("SubRunRequested", callId="call_x")),
    ("orchestrate", {"I21"}, edit("SubRunRequested", sessionId="hs_x")),
    ("orchestrate", {"I20", "I21"}, drop("SubRunSettled", 1)),
    ("orchestrate", {"I21"}, answer_early),
    ("orchestrate", {"I21"}, answer_by_a_process),
    ("orchestrate", {"I21"}, answer_something_else),
    ("refused sub-run", {"I21"}, edit("harness.tool_call.succeeded", result={"status": "done"})),
]

# -- openings, planning, attempts -----------------------------------------------------------------

REOPENED = {"by": "ann", "reason": "again", "fromSequence": 17}
REQUEST = {"requestId": "r"}
OPENING_CHANGES: list[tuple[str, set[str], Change]] = [
    ("call", {"I20"}, add_behind("RunCompleted", "RunReopened", "run_1", **REOPENED)),
    ("call", {"I20"}, add_behind("RunStarted", "RunReopened", "run_1", **REOPENED)),
    ("retried twice", {"I20"}, edit("RunReopened", fromSequence=3)),
    ("retried twice", {"I17", "I20"}, drop("RunReopened")),
    ("retried twice", {"I6", "I17", "I20"}, edit("StepAttemptStarted", 2, attempt=3)),
    ("call", {"I28"}, add_behind("StepAttemptStarted", "CancellationRequested", nth=1, **REQUEST)),
    ("plan", {"I20"}, repeat("WorkflowVersionRegistered")),
    ("plan", {"I17", "I20"}, move("WorkflowVersionRegistered", "StepCompleted")),
    ("plan", {"I20"}, drop("RunStarted")),
    ("plan", {"I20"}, edit("RunStarted", workflowVersionId="wv_other")),
    ("plan", {"I20"}, edit("RunStarted", inputHash="sha256:other")),
    ("plan", {"I20"}, edit("RunAdmitted", planOnly=True)),
    ("fork", {"I20"}, edit("RunForked", atSequence=1_000)),
    ("fork", {"I20"}, repeat("RunForked")),
    ("fork", {"I17"}, drop("RunForked")),
    ("loop", {"I20", "I22"}, move("OuterLoopCycleCompleted", "RunCompleted")),
    ("fix", {"I17"}, edit("StepAttemptStarted", 2, fixAttempt=3)),
    ("fix", {"I17"}, edit("StepAttemptStarted", 2, fixAttempt=1)),
    ("fix", {"I6", "I17"}, edit("StepAttemptStarted", 0, fixAttempt=1)),
    ("sub-run alone", {"I17"}, edit("StepAttemptStarted", 1, isInherited=True)),
]

# -- sessions -------------------------------------------------------------------------------------

SESSION_CHANGES: list[tuple[str, set[str], Change]] = [
    ("fix", {"I6"}, edit("harness.session.started", role="fixer")),
    ("fix", {"I6"}, edit("harness.session.started", manifestHash="sha256:other")),
    ("fix", {"I6"}, edit_manifest(1, without="fixerMaxAttempts")),
    ("fix", {"I6"}, edit_manifest(0, fixerMaxAttempts=2)),
    ("fix", {"I6"}, edit_manifest(0, stepPath="other")),
    ("fix", {"I6"}, edit_manifest(0, workflowVersionId="wv_other")),
    ("fix", {"I6"}, edit_manifest(0, harnessId="planaria.fixer/1")),
    ("plan", {"I6"}, edit_manifest(0, workflowDefinitionHash="sha256:other")),
    ("plan", {"I6"}, edit_manifest(0, outerLoopContextHash="sha256:other")),
    ("planned loop", {"I6"}, edit_manifest(0, without="outerLoopContextHash")),
    ("orchestrate", {"I6"}, edit_manifest(0, without="availableWorkflows")),
    ("plan", {"I9"}, retype("harness.plan.succeeded", "harness.execute_step.succeeded")),
]

# -- budgets --------------------------------------------------------------------------------------

BUDGET_CHANGES: list[tuple[str, set[str], Change]] = [
    ("budget of calls", {"I29"}, drop("BudgetReserved")),
    ("budget of calls", {"I29"}, drop("BudgetSettled")),
    ("budget of calls", {"I29"}, repeat("BudgetReserved")),
    ("budget of calls", {"I29"}, repeat("BudgetSettled")),
    ("budget of calls", {"I29"}, edit("BudgetReserved", tokens=1)),
    ("budget of calls", {"I29"}, edit("BudgetSettled", tokens=1)),
    ("budget of calls", {"I29"}, edit("RunAdmitted", budget={"maxModelCalls": 1})),
    ("budget of tokens", {"I29"}, edit("RunAdmitted", budget={"maxTokens": 35})),
    ("budget of cost", {"I29"}, edit("RunAdmitted", budget={"maxCostUsd": 0.04})),
    ("budget of cost", {"I29"}, edit("BudgetReserved", costUsd=None)),
    ("budget of calls", {"I29"}, edit("RunAdmitted", budget=None)),
    ("budget of calls", {"I29"}, cut_behind("harness.model.called")),
]

# -- outer loops ----------------------------------------------------------------------------------


def admit_with_another_input(log: Log) -> None:
    for kind in ("RunAdmitted", "RunStarted"):
        find(log, kind, 1).payload["inputHash"] = "sha256:other"


def be_done_early(log: Log) -> None:
    completed = find(log, "OuterLoopCycleCompleted").payload
    completed.update(supervise={"kind": "done"}, output=1)


def complete_a_cancelled_cycle(log: Log) -> None:
    completed = copy.deepcopy(find(log, "OuterLoopCycleCompleted"))
    cancelled = find(log, "RunCancelled")
    completed.run_id = cancelled.run_id
    log.insert(index(log, "RunCancelled") + 1, completed)


def begin_beside_an_open_run(log: Log) -> None:
    """The second run of the cycle is admitted while the first one still goes on."""
    admitted = log.pop(index(log, "RunAdmitted", 1))
    log.insert(index(log, "RunCancelled"), admitted)


LOOP_CHANGES: list[tuple[str, set[str], Change]] = [
    ("loop", {"I22"}, repeat("OuterLoopCycleCompleted")),
    ("loop", {"I22"}, repeat("OuterLoopCycleCompleted", 1)),
    ("loop", {"I22"}, drop("OuterLoopCycleCompleted")),
    ("loop", {"I22"}, edit("OuterLoopCycleCompleted", 1, cycleNumber=3)),
    ("loop", {"I22"}, edit("RunAdmitted", 1, cycleNumber=3)),
    ("loop", {"I22"}, edit("OuterLoopStarted", maxCycles=1)),
    ("loop", {"I22"}, be_done_early),
    ("loop", {"I22"}, edit("OuterLoopCycleCompleted", supervise={"kind": "done"})),
    ("cancelled cycle", {"I22"}, complete_a_cancelled_cycle),
    ("cancelled cycle", {"I22"}, begin_beside_an_open_run),
    ("loop", {"I23"}, repeat("OuterLoopStarted")),
    ("loop", {"I23"}, edit("OuterLoopStarted", inputHash="sha256:other")),
    ("loop", {"I23"}, admit_with_another_input),
    ("loop", {"I6", "I23"}, edit("RunAdmitted", 1, workflowDefinitionHash="sha256:other")),
]


CHANGES = [
    pytest.param(*change, id=f"{name}-{number}")
    for name, changes in (
        ("sub_run", SUB_RUN_CHANGES),
        ("opening", OPENING_CHANGES),
        ("session", SESSION_CHANGES),
        ("budget", BUDGET_CHANGES),
        ("loop", LOOP_CHANGES),
    )
    for number, change in enumerate(changes)
]


@pytest.mark.parametrize(("program", "invariants", "change"), CHANGES)
def test_changed_log_breaks_its_rule(program: str, invariants: set[str], change: Change) -> None:
    world, written = write(program)
    log = copy.deepcopy(written)
    assert [] == check_events(log, world)

    change(log)
    found = check_events(log, world)

    assert invariants == {v.invariant for v in found}, "\n".join(map(str, found))
