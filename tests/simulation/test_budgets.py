"""Budgets: the calls of a run and of its sub-runs fit into one, and no crash forgets a cost."""

from typing import Any

import pytest
from test_programs import make_tools
from test_roles import orchestrated_lock, planned_lock
from world import World

RESERVE = {"model": "sim", "provider": None, "inputTokens": 10, "outputTokens": 10}


def budget_world(budget: dict[str, Any], turns: int = 3) -> World:
    world = World(make_tools())
    world.reserve = RESERVE
    world.model = lambda spec, turn, results: (
        {"calls": [["echo", {"turn": turn}]]} if turn + 1 < turns else {"output": {"turns": turns}}
    )
    world.admit_lock(orchestrated_lock({}), {}, budget=budget)
    return world


def test_budget_of_calls_is_exact() -> None:
    enough, short = budget_world({"maxModelCalls": 3}), budget_world({"maxModelCalls": 2})
    enough.run()
    short.run()

    assert "completed" == enough.state().status
    assert ("failed", "budget_exceeded") == (short.state().status, short.state().error["causeCode"])
    assert 2 == sum(1 for kind, *_ in short.ledger.executions if kind == "model")


def test_tokens_are_reserved_before_and_settled_after_each_call() -> None:
    world = budget_world({"maxTokens": 36})  # 8 are used each time, 20 are reserved
    world.run()

    assert "completed" == world.state().status
    kinds = [e.type for e in world.events() if e.type.startswith(("harness.model", "Budget"))]
    turn = ["harness.model.called", "BudgetReserved", "harness.model.responded", "BudgetSettled"]
    assert turn * 3 == kinds
    assert 24 == world.state().spent.tokens


def test_cost_without_a_price_is_unknown_and_stops_a_budget_of_cost() -> None:
    world = budget_world({"maxCostUsd": 100.0})
    world.reserve = {**RESERVE, "model": "unpriced"}
    world.run()

    assert "runtime_config_error" == world.state().error["causeCode"]
    assert "unpriced" in world.state().error["message"]
    assert not world.ledger.executions


def test_budget_of_cost_is_kept() -> None:
    world = budget_world({"maxCostUsd": 0.05})  # 0.03 reserved, 0.013 used
    world.run()

    assert "budget_exceeded" == world.state().error["causeCode"]
    assert 2 == sum(1 for kind, *_ in world.ledger.executions if kind == "model")


def test_call_lost_in_a_crash_stays_charged() -> None:
    quiet = budget_world({"maxModelCalls": 10})
    quiet.run()
    for point in range(1, quiet.child_points + 1):
        world = budget_world({"maxModelCalls": 10})
        world.kill_child_at = point
        world.run()
        made = sum(1 for kind, *_ in world.ledger.executions if kind == "model")
        assert "completed" == world.state().status
        assert made <= world.state().spent.calls <= made + 1, point
    for point in range(1, quiet.points + 1):
        world = budget_world({"maxModelCalls": 10})
        world.crash_at = point
        world.run()
        made = sum(1 for kind, *_ in world.ledger.executions if kind == "model")
        assert "completed" == world.state().status
        assert made <= world.state().spent.calls <= made + 1, point


def test_replay_is_free_also_when_the_budget_is_used_up() -> None:
    world = budget_world({"maxModelCalls": 3})
    world.run(
        until=lambda: sum(1 for e in world.events() if e.type == "harness.model.responded") == 3
    )
    for process_id in list(world.children):
        world.kill_child(process_id)
    world.run()

    assert "completed" == world.state().status
    assert 3 == world.state().spent.calls


def test_sub_run_has_what_is_left_of_the_budget() -> None:
    world = World(make_tools())
    world.reserve = RESERVE
    inner = planned_lock("inner")

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        if spec["role"] == "planner":
            return {"calls": [["echo", {}]]}  # goes on for ever
        if turn == 0:
            return {"calls": [["start_workflow", {"workflowId": "inner", "input": {}}]]}
        return {"output": results[0]["status"]}

    world.model = model
    entry = {"definitionHash": "sha256:1", "description": "", "lock": inner}
    world.admit_lock(orchestrated_lock({"inner": entry}), {}, budget={"maxModelCalls": 5})
    world.run()

    made = sum(1 for kind, *_ in world.ledger.executions if kind == "model")
    assert 5 == made
    assert "budget_exceeded" == world.state().error["causeCode"]


@pytest.mark.parametrize("allowed", [3, 5, 9])
def test_sub_runs_side_by_side_share_what_is_left(allowed: int) -> None:
    world = World(make_tools())
    world.reserve = RESERVE
    inner = orchestrated_lock({})
    inner["definition"] = {**inner["definition"], "id": "inner"}

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        if spec["runId"] != "run_1":
            return {"calls": [["echo", {}]]} if turn < 2 else {"output": "inner"}
        if turn == 0:
            start = ["start_workflow", {"workflowId": "inner", "input": {}}]
            return {"calls": [start, start, start]}
        return {"output": [result["status"] for result in results]}

    world.model = model
    entry = {"definitionHash": "sha256:1", "description": "", "lock": inner}
    world.admit_lock(orchestrated_lock({"inner": entry}), {}, budget={"maxModelCalls": allowed})
    world.run()

    made = sum(1 for kind, *_ in world.ledger.executions if kind == "model")
    assert allowed == made  # of the eleven that were asked for
    assert "budget_exceeded" == world.state().error["causeCode"]
