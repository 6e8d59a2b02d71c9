"""Groups: keys, limits, failure modes, and what a retry takes over."""

from collections import Counter
from typing import Any

import pytest
from programs import call, decide, document, fan_out
from test_order import of, run
from test_programs import make_tools
from world import World

from planaria.supervisor.run_state import RunState


def work_on(**more: Any) -> dict[str, Any]:
    inner = call("work", "pick", {"item": "{{ item }}"}, **more.pop("inner", {}))
    last = call("last", args={"all": "{{ steps.each.output }}"}, needs=["each"])
    steps = document(fan_out(inner, **more), last)
    steps["permissions"]["tools"].append("pick")
    return steps


def picky(fails: set[Any], times: int = 99) -> dict[str, Any]:
    left = Counter({item: times for item in fails})

    def pick(args: Any) -> Any:
        item = args["item"]
        if left[item] > 0:
            left[item] -= 1
            raise RuntimeError(f"no {item}")
        return item * 2

    return {**make_tools(), "pick": pick}


def test_all_settled_group_completes_with_its_failures_inside() -> None:
    world = run(work_on(failureMode="all_settled"), {"items": [1, 2, 3]}, picky({2}))

    entries = world.state().output["all"]
    assert [entry["status"] for entry in entries] == ["completed", "failed", "completed"]
    assert [entry.get("output") for entry in entries] == [2, None, 6]
    assert entries[1]["itemKey"] == "2"
    assert entries[1]["error"]["causeCode"] == "step_failed"
    assert entries[1]["error"]["failedStepPath"] == "each[2].work"


@pytest.mark.parametrize("width", [1, 2, 3])
def test_fail_fast_group_starts_no_branch_after_a_failure_and_lets_others_finish(
    width: int,
) -> None:
    steps = work_on(failureMode="fail_fast", maxConcurrency=width)
    world = run(steps, {"items": [1, 2, 3, 4, 5, 6]}, picky({1}))

    kinds = [event.type for event in world.events()]
    failed = kinds.index("ParallelBranchFailed")
    assert "ParallelBranchScheduled" not in kinds[failed:]
    ends = kinds.count("ParallelBranchFailed") + kinds.count("ParallelBranchCompleted")
    assert kinds.count("ParallelBranchScheduled") == ends
    assert world.state().error["causeCode"] == "step_failed"
    assert world.state().failed_step_path == "each[1].work"


def failing(*texts: str, seed: int, **more: Any) -> RunState:
    """Returns the state of a run whose branch has a step for each text, all of which fail."""
    inner = [call(f"s{n}", "fail", {"text": text}) for n, text in enumerate(texts)]
    steps = document(fan_out(*inner, **more))
    steps["permissions"]["tools"].append("fail")

    def fail(args: Any) -> Any:
        raise RuntimeError(args["text"])

    return run(steps, {"items": ["x", "y"]}, {**make_tools(), "fail": fail}, seed=seed).state()


@pytest.mark.parametrize("mode", ["all_settled", "fail_fast"])
def test_which_of_several_failures_is_told_does_not_depend_on_their_order(mode: str) -> None:
    for seed in range(12):
        state = failing("one", "two", "three", seed=seed, failureMode=mode)
        errors = [e["error"] for e in state.output] if mode == "all_settled" else [state.error]
        assert {error["failedStepPath"] for error in errors} <= {"each[x].s0", "each[y].s0"}, seed
        assert all(error and error["message"].endswith("one") for error in errors), seed


def test_failure_that_fails_the_run_counts_before_one_that_came_first() -> None:
    for seed in range(12):
        text = "runtime_config_error: no key"
        state = failing("one", text, seed=seed, failureMode="all_settled")
        assert (state.status, state.error["causeCode"]) == ("failed", "runtime_config_error"), seed


def test_fail_fast_holds_also_for_branches_that_need_no_process() -> None:
    """All in one turn of the kernel: one branch ends, and owes the next, just before another."""
    inner = [
        decide("d", [], "end", ("item.long", "e")),
        decide("e", ["d"], "f", ("item.b > 0", "f")),
        decide("f", ["e"], "end", ("item.c > 0", "end")),
    ]
    long, short = {"long": True, "b": 1, "c": 1}, {"long": False, "b": 1, "c": 1}
    items = [{**long, "c": "x"}, short, long, {**short, "b": "x"}, long, short]
    world = run(
        document(fan_out(*inner, itemKey="{{ item.n }}", maxConcurrency=2)),
        {"items": [{**item, "n": n} for n, item in enumerate(items)]},
    )

    kinds = [event.type for event in world.events()]
    assert world.state().status == "failed"
    assert "ParallelBranchScheduled" not in kinds[kinds.index("ParallelBranchFailed") :]


def test_retried_group_adopts_the_branches_that_had_completed() -> None:
    steps = work_on(retry={"maxAttempts": 3, "delay": "10ms"}, maxConcurrency=1)
    world = run(steps, {"items": [1, 2, 3]}, picky({2}, times=2))

    assert [entry["output"] for entry in world.state().output["all"]] == [2, 4, 6]
    paths = [event.payload["branchPath"] for event in of(world, "ParallelBranchScheduled")]
    again = ["each@attempt_2[2]", "each@attempt_3[2]", "each@attempt_3[3]"]
    assert paths == ["each[1]", "each[2]", *again]
    assert Counter(tool for tool, *_ in world.ledger.executions)["pick"] == 5


def error_of(world: World) -> dict[str, Any]:
    state: RunState = world.state()
    assert state.status == "failed"
    assert state.error["causeCode"] == "step_failed"
    assert not of(world, "ParallelBranchScheduled")
    return state.error["message"]


def test_duplicate_key_fails_the_group_by_name() -> None:
    assert "'p'" in error_of(run(work_on(), {"items": ["p", "q", "p"]}, picky(set())))


def test_more_items_than_branches_fail_before_any_branch_starts() -> None:
    world = run(work_on(maxBranches=2), {"items": [1, 2, 3]}, picky(set()))

    assert "3 items, but maxBranches is 2" in error_of(world)


def test_items_that_are_no_list_fail_the_group() -> None:
    assert "expected a list" in error_of(run(work_on(), {"items": {"a": 1}}, picky(set())))


def test_group_without_items_has_an_empty_list() -> None:
    assert run(work_on(), {"items": []}, picky(set())).state().output == {"all": []}


def test_key_that_is_no_text_is_its_canonical_json() -> None:
    items = [None, True, 1, 1.5, {"b": 1, "a": [2]}, "x.y/ü"]
    steps = work_on(itemKey="{{ item }}")
    steps["steps"][0]["steps"][0]["with"]["tool"] = "echo"
    world = run(steps, {"items": items})

    keys = [entry["itemKey"] for entry in world.state().output["all"]]
    assert keys == ["null", "true", "1", "1.5", '{"a":[2],"b":1}', "x.y/ü"]
    paths = [event.payload["branchPath"] for event in of(world, "ParallelBranchScheduled")]
    assert paths[-1] == "each[x%2Ey%2F%C3%BC]"
