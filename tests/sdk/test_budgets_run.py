"""Budgets and what runs cost, end to end: on models that say what they have used."""

from collections.abc import Iterator

import pytest

from planaria import Budget, Client, UsageError

from .cli_stage import Command
from .run_stage import Stage, open_stage

CALL_USD = 1_000 * 0.15e-6 + 200 * 0.60e-6  # gpt-4o-mini: $0.15 and $0.60 for a million tokens
EACH = {"requests": 1, "input_tokens": 1_000, "output_tokens": 200}
THREE = {name: 3 * count for name, count in EACH.items()}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "budget_flows") as stage:
        yield stage


@pytest.fixture
def command(stage: Stage, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(stage.data, capfd)


def count_calls(stage: Stage, run_id: str) -> int:
    """Returns the model calls that were answered; none is open when a run has ended."""
    answered = len(stage.events(run_id, "harness.model.responded"))
    assert answered == len(stage.events(run_id, "BudgetSettled"))
    return answered


def spend(stage: Stage, name: str, **limits: float) -> tuple[str, int, str | None]:
    """Returns the failure's cause, the number of calls made, and the step that failed."""
    error = stage.fail(name, budget=Budget(**limits))  # type: ignore[arg-type]
    return error.cause_code, count_calls(stage, error.run_id), error.failed_step_path


# -- what was used --------------------------------------------------------------------------


def test_usage_and_cost_are_those_of_the_recorded_responses(stage: Stage, command: Command) -> None:
    result = stage.run("priced")

    assert (THREE, pytest.approx(3 * CALL_USD)) == (result.usage, result.cost_usd)
    code, shown = command.json("show", result.run_id)
    assert (0, THREE, pytest.approx(3 * CALL_USD)) == (code, shown["usage"], shown["costUsd"])
    assert {"gpt-4o-mini": THREE} == shown["usageByModel"]
    assert {name: {"gpt-4o-mini": EACH} for name in "abc"} == {
        step["stepId"]: step["usage"] for step in shown["steps"]
    }
    assert "budget" not in shown
    document = command.json("result", result.run_id)[1]
    assert (THREE, pytest.approx(3 * CALL_USD)) == (document["usage"], document["costUsd"])
    assert result.usage == stage.client.wait(result.run_id).usage
    assert [] == stage.events(result.run_id, "Budget*")


@pytest.mark.parametrize("name", ["unpriced", "mixed"])
def test_unknown_price_is_null_and_not_nothing(stage: Stage, command: Command, name: str) -> None:
    result = stage.run(name)

    assert result.cost_usd is None
    assert result.usage["requests"] == len(stage.get(name).document["steps"])
    for words in (["show", result.run_id], ["result", result.run_id]):
        shown = command.json(*words)[1]
        assert shown["costUsd"] is None
    assert {"made-up-model": EACH}.items() <= command.json("show", result.run_id)[1][
        "usageByModel"
    ].items()


# -- what may be used -----------------------------------------------------------------------


def test_number_of_calls_is_exact_over_the_steps(stage: Stage, command: Command) -> None:
    error = stage.fail("priced", budget=Budget(max_model_calls=2))

    assert ("budget_exceeded", "c") == (error.cause_code, error.failed_step_path)
    assert "2 model calls are made or reserved, and max_model_calls is 2" in str(error)
    assert 2 == count_calls(stage, error.run_id)
    shown = command.json("show", error.run_id)[1]
    assert {"maxModelCalls": 2} == shown["budget"]
    assert {name: 2 * count for name, count in EACH.items()} == shown["usage"]
    assert (1, "RunFailedError") == command.error("result", error.run_id)[:2]
    result = stage.run("priced", budget=Budget(max_model_calls=3))
    assert 3 == count_calls(stage, result.run_id)
    calls = [settled["calls"] for settled in stage.payloads(result.run_id, "BudgetSettled")]
    assert [1, 1, 1] == calls


def test_tokens_are_reserved_before_a_call_and_settled_after_it(stage: Stage) -> None:
    assert ("budget_exceeded", 0, "a") == spend(stage, "priced", max_tokens=500)
    # A call reserves its 500 tokens of output and a little input, and then uses 1,200.
    assert ("budget_exceeded", 2, "c") == spend(stage, "priced", max_tokens=2_500)
    result = stage.run("priced", budget=Budget(max_tokens=3_600))

    reserved = [event["tokens"] for event in stage.payloads(result.run_id, "BudgetReserved")]
    settled = [event["tokens"] for event in stage.payloads(result.run_id, "BudgetSettled")]
    assert [1_200] * 3 == settled
    assert all(500 < tokens < 1_200 for tokens in reserved)


def test_cost_is_counted_by_known_prices(stage: Stage) -> None:
    assert ("budget_exceeded", 0, "a") == spend(stage, "priced", max_cost_usd=CALL_USD / 10)
    # The reservation of the next: 500 tokens of output make more than its cost in the end.
    assert ("budget_exceeded", 2, "c") == spend(stage, "priced", max_cost_usd=2.5 * CALL_USD)
    result = stage.run("priced", budget=Budget(max_cost_usd=4 * CALL_USD))

    assert pytest.approx(3 * CALL_USD) == result.cost_usd
    settled = [event["costUsd"] for event in stage.payloads(result.run_id, "BudgetSettled")]
    assert [pytest.approx(CALL_USD)] * 3 == settled


def test_cost_of_an_unpriced_model_can_not_be_kept(stage: Stage) -> None:
    error = stage.fail("unpriced", budget=Budget(max_cost_usd=100))

    assert ("runtime_config_error", 0) == (error.cause_code, count_calls(stage, error.run_id))
    assert "'made-up-model' has no known price" in str(error)
    assert 1 == count_calls(stage, stage.run("unpriced", budget=Budget(max_tokens=5_000)).run_id)


def test_sub_run_has_what_its_parent_has_left(stage: Stage) -> None:
    error = stage.fail("caller", budget=Budget(max_model_calls=3))

    [asked] = stage.payloads(error.run_id, "SubRunRequested")
    sub_run = stage.client.status(asked["subRunId"])
    assert {"maxModelCalls": 2} == sub_run["budget"]
    assert "budget_exceeded" == sub_run["error"]["causeCode"]
    assert (1, 2) == (count_calls(stage, error.run_id), count_calls(stage, asked["subRunId"]))
    assert ("budget_exceeded", "call") == (error.cause_code, error.failed_step_path)
    result = stage.run("caller", budget=Budget(max_model_calls=4))
    assert 4 == result.usage["requests"]
    assert pytest.approx(4 * CALL_USD) == result.cost_usd


def test_budget_holds_after_a_retry_and_in_a_fork(stage: Stage) -> None:
    error = stage.fail("priced", budget=Budget(max_model_calls=2))

    stage.client.retry(error.run_id)
    with Client(stage.data, start_if_missing=False) as client:
        outcome = client.ask("wait_run", runId=error.run_id)
    assert ("failed", "budget_exceeded") == (outcome["status"], outcome["error"]["causeCode"])
    assert 2 == count_calls(stage, error.run_id)
    made = stage.client.fork(error.run_id)
    assert "completed" == stage.client.wait(made, timeout=60).status
    assert 1 == count_calls(stage, made)


def test_budget_without_a_limit_is_none() -> None:
    for limits in ({}, {"max_model_calls": 0}, {"max_tokens": True}, {"max_cost_usd": -1.0}):
        with pytest.raises(UsageError, match="Budget"):
            Budget(**limits)  # type: ignore[arg-type]
