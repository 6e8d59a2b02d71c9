"""The checker's rules of steps, visits, branches and ends of runs, each broken alone."""

from collections.abc import Callable

import pytest
from log_builder import LogBuilder, assert_only, opened

Change = Callable[[LogBuilder], None]


# -- steps, visits, branches, ends ---------------------------------------------------------


def complete_twice(log: LogBuilder) -> None:
    log.step("draft.visit[0]", "draft")
    log.end_step("draft.visit[0]", "draft")


def complete_unstarted(log: LogBuilder) -> None:
    log.end_step("draft.visit[0]", "draft")


def retry_unscheduled(log: LogBuilder) -> None:
    session = log.attempt("draft.visit[0]", "draft")
    log.end_session(session, by=None, failed=True)
    log.end_step("draft.visit[0]", "draft", failed=True)
    log.attempt("draft.visit[0]", "draft", attempt=2)


def complete_while_open(log: LogBuilder) -> None:
    log.attempt("draft.visit[0]", "draft")
    log.end_step("draft.visit[0]", "draft")


def start_in_no_branch(log: LogBuilder) -> None:
    log.add("StepAttemptStarted", {
        "stepPath": "each[k].work", "stepId": "work", "visitIndex": 0, "attempt": 1,
        "uses": "tool.call", "branchPath": "each[k]",
    })  # fmt: skip


def end_branch_twice(log: LogBuilder) -> None:
    log.group(["k"])
    branch = log.branch(0, "k")
    log.add("ParallelBranchCompleted", {**branch, "output": 5})
    log.add("ParallelBranchCompleted", {**branch, "output": 5})


def end_group_early(log: LogBuilder) -> None:
    log.group(["k"])
    log.branch(0, "k")
    log.add("ParallelGroupCompleted", {"stepPath": "each", "attempt": 1})


def complete_without_the_group(log: LogBuilder) -> None:
    log.group(["k"])
    log.end_step("each", "each")


def skip_a_visit(log: LogBuilder) -> None:
    log.attempt("draft.visit[1]", "draft", 1)


def overlap_visits(log: LogBuilder) -> None:
    log.attempt("draft.visit[0]", "draft")
    session = log.attempt("draft.visit[1]", "draft", 0)
    assert session


def visit_too_often(log: LogBuilder) -> None:
    for visit in range(2):
        log.step(f"draft.visit[{visit}]", "draft", visit)
        log.decide(visit, "draft")
    log.attempt("draft.visit[2]", "draft", 2)


def skip_a_branch(log: LogBuilder) -> None:
    log.group(["k", "l"])
    log.branch(1, "l")


def choose_nothing_known(log: LogBuilder) -> None:
    log.decide(0, "nowhere")


def take_the_other_branch(log: LogBuilder) -> None:
    log.decide(0, "end")
    log.attempt("send", "send")


def skip_the_chosen(log: LogBuilder) -> None:
    log.decide(0, "send")
    log.add("StepSkipped", {"stepPath": "send", "stepId": "send", "because": "not_chosen"})


def end_with_an_open_step(log: LogBuilder) -> None:
    log.decide(0, "end")
    path = "route.visit[1]"
    payload = {"stepPath": path, "stepId": "route", "visitIndex": 1, "attempt": 1}
    log.add("StepAttemptStarted", {**payload, "uses": "decision"})
    log.end_run("RunFailed")


def complete_with_a_failed_step(log: LogBuilder) -> None:
    session = log.attempt("draft.visit[0]", "draft")
    log.end_session(session, by=None, failed=True)
    log.end_step("draft.visit[0]", "draft", failed=True)
    log.end_run()


def end_with_an_open_session(log: LogBuilder) -> None:
    log.attempt("draft.visit[0]", "draft")
    log.end_run("RunFailed")


def end_run_twice(log: LogBuilder) -> None:
    log.end_run("RunFailed")
    log.end_run("RunFailed")


def start_run_twice(log: LogBuilder) -> None:
    log.add("RunStarted", {"workflowVersionId": "wv_1", "inputHash": "sha256:1"})


def retry_early(log: LogBuilder) -> None:
    session = log.attempt("draft.visit[0]", "draft")
    log.end_session(session, by=None, failed=True)
    log.end_step("draft.visit[0]", "draft", failed=True)
    due = {"stepPath": "draft.visit[0]", "nextAttempt": 2, "dueAt": log.at + 21}
    log.add("StepRetryScheduled", due)
    log.attempt("draft.visit[0]", "draft", attempt=2)


def start_after_cancellation(log: LogBuilder) -> None:
    log.add("CancellationRequested", {"requestId": "r"})
    payload = {"stepPath": "each", "stepId": "each", "visitIndex": 0, "attempt": 1}
    log.add("StepAttemptStarted", {**payload, "uses": "parallel"})


def cancel_unasked(log: LogBuilder) -> None:
    log.end_run("RunCancelled")


RUN_CHANGES: list[tuple[str, Change]] = [
    ("I17", complete_twice),
    ("I17", complete_unstarted),
    ("I17", retry_unscheduled),
    ("I17", complete_while_open),
    ("I17", start_in_no_branch),
    ("I17", end_branch_twice),
    ("I17", end_group_early),
    ("I17", complete_without_the_group),
    ("I18", skip_a_visit),
    ("I18", visit_too_often),
    ("I18", skip_a_branch),
    ("I19", choose_nothing_known),
    ("I19", take_the_other_branch),
    ("I19", skip_the_chosen),
    ("I20", end_with_an_open_step),
    ("I20", end_with_an_open_session),
    ("I20", complete_with_a_failed_step),
    ("I20", end_run_twice),
    ("I20", start_run_twice),
    ("I24", retry_early),
    ("I28", start_after_cancellation),
    ("I28", cancel_unasked),
]


@pytest.mark.parametrize(("invariant", "change"), RUN_CHANGES)
def test_run_rule_is_broken_alone(invariant: str, change: Change) -> None:
    log = opened()
    assert [] == log.check()

    change(log)

    assert_only(invariant, log)


def test_overlapping_visits_break_i18() -> None:
    log = opened()
    overlap_visits(log)

    assert {"I18"} == {v.invariant for v in log.check()}


def test_retry_starts_at_the_due_instant() -> None:
    log = opened()
    session = log.attempt("draft.visit[0]", "draft")
    log.end_session(session, by=None, failed=True)
    log.end_step("draft.visit[0]", "draft", failed=True)
    due = {"stepPath": "draft.visit[0]", "nextAttempt": 2, "dueAt": log.at + 20}
    log.add("StepRetryScheduled", due)
    log.attempt("draft.visit[0]", "draft", attempt=2)

    assert [] == log.check()
