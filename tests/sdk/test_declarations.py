"""Planners, skills, budgets and a loop's answers refuse at once what they can't be."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from planaria import Budget, Continue, Done, Planner, Skill, UsageError


def test_defaults_of_a_planner_are_those_of_the_lock() -> None:
    assert Planner("fast").describe("fast") == {
        "model": "fast",
        "instructions": "",
        "maxRevisions": 3,
        "maxTurns": 25,
    }


def test_a_budget_says_only_what_is_set() -> None:
    assert Budget(max_tokens=5).describe() == {"maxTokens": 5}
    assert Budget(1, 2, 0.5).describe() == {"maxModelCalls": 1, "maxTokens": 2, "maxCostUsd": 0.5}


def test_a_skill_is_described_without_its_path() -> None:
    skill = Skill("tone", "How we write.", "./skills//tone.md")

    assert skill.describe() == {"name": "tone", "description": "How we write."}
    assert skill.path == "skills/tone.md"


def test_a_loop_answers_with_an_output_or_with_a_note() -> None:
    assert (Done(1).final_output, Continue("n").prompt_note) == (1, "n")
    assert Continue().prompt_note is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Planner(""), "the model of a Planner is ''"),
        (lambda: Planner("f", 3), "the instructions of a Planner are int"),
        (lambda: Planner("f", "x" * 100_001), "100,001 characters"),
        (lambda: Planner("f", max_revisions=-1), "max_revisions of a Planner is '-1'"),
        (lambda: Planner("f", max_turns=True), "max_turns of a Planner is 'True'"),
        (lambda: Planner("f", max_turns=0), "a whole number from 1 to 1,000"),
        (lambda: Skill("a b", "d", "p"), "'a b' can't be the name of a skill"),
        (lambda: Skill("a", " ", "p"), "skill 'a' has no description"),
        (lambda: Skill("a", "d", ""), "the path of skill 'a' is ''"),
        (lambda: Skill("a", "d", "/etc/passwd"), "below the project's root"),
        (lambda: Skill("a", "d", "x/../../y"), "below the project's root"),
        (lambda: Budget(), "at least one of max_model_calls"),
        (lambda: Budget(max_model_calls=0), "max_model_calls of a Budget is '0'"),
        (lambda: Budget(max_tokens=1.5), "max_tokens of a Budget is '1.5'"),
        (lambda: Budget(max_tokens=True), "max_tokens of a Budget is 'True'"),
        (lambda: Budget(max_cost_usd=0), "max_cost_usd of a Budget is 0"),
        (lambda: Budget(max_cost_usd=float("nan")), "max_cost_usd of a Budget is nan"),
        (lambda: Budget(max_cost_usd=True), "max_cost_usd of a Budget is True"),
    ],
)
def test_what_can_not_be_declared_is_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        make()
