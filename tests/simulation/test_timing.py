"""Due times to the microsecond, limits on what lives at once, and large values."""

from typing import Any

import programs
import pytest
from programs import call, document, fan_out
from test_groups import picky, work_on
from test_order import of, run
from test_programs import make_tools
from world import World

from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.protocol.payloads import Ref
from planaria.supervisor.kernel_messages import Tick


def flaky_step(**policy: Any) -> dict[str, Any]:
    return document(call("a", "flaky", {"n": 1}, retry={"maxAttempts": 10, **policy}))


@pytest.mark.parametrize(
    ("policy", "delays_ms"),
    [
        ({"delay": "1ms"}, [1, 1, 1, 1]),
        ({"backoff": "fixed", "delay": "3s"}, [3_000] * 4),
        ({"backoff": "exponential", "delay": "100ms"}, [100, 200, 400, 800]),
        ({"backoff": "exponential", "delay": "1s", "maxDelay": "3s"}, [1_000, 2_000, 3_000, 3_000]),
        ({}, [0, 0, 0, 0]),
    ],
)
def test_attempt_starts_exactly_its_delay_after_the_failure(
    policy: dict[str, Any], delays_ms: list[int]
) -> None:
    world = run(flaky_step(**policy), {}, make_tools(failures=4))

    failed = [event.at for event in of(world, "StepFailed")]
    started = [event.at for event in of(world, "StepAttemptStarted")]
    due = [event.payload["dueAt"] for event in of(world, "StepRetryScheduled")]
    expected = [at + 1_000 * delay for at, delay in zip(failed, delays_ms, strict=True)]
    assert due == started[1:] == expected
    assert world.state().status == "completed"


def wait_for_retry() -> tuple[World, int]:
    world = World(make_tools(failures=1))
    world.admit(flaky_step(delay="100ms"), {})
    world.run(until=lambda: bool(of(world, "StepRetryScheduled")))
    return world, of(world, "StepRetryScheduled")[0].payload["dueAt"]


def attempts(world: World) -> int:
    return len(of(world, "StepAttemptStarted"))


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("early_us", [99_999, 1_000, 1])
def test_retry_is_not_due_a_microsecond_early_and_is_due_at_its_instant(
    early_us: int, is_restarted: bool
) -> None:
    world, due_at = wait_for_retry()
    world.at = due_at - early_us
    if is_restarted:
        world.crash()
    world.handle(Tick())
    assert attempts(world) == 1
    world.at = due_at
    world.handle(Tick())
    assert attempts(world) == 2
    world.handle(Tick())
    assert attempts(world) == 2


def test_retry_that_fell_due_while_nobody_lived_starts_once() -> None:
    world, due_at = wait_for_retry()
    world.at = due_at + 3_600_000_000
    world.crash()
    world.crash()
    world.run()

    assert attempts(world) == 2
    assert world.state().status == "completed"


def held(*steps: dict[str, Any], **more: Any) -> World:
    """Returns a world with a run whose tools never answer."""
    world = World(make_tools(), effects=more.pop("effects", None))
    world.hold = lambda tool: True
    world.admit(document(*steps), {}, **more)
    return world


@pytest.mark.parametrize("is_restarted", [False, True])
def test_deadline_ends_the_run_as_timeout_at_its_instant(is_restarted: bool) -> None:
    world = held(call("a", retry={"maxAttempts": 5}), deadlineMs=500)
    admitted_at = world.at
    if is_restarted:
        world.run(until=lambda: bool(of(world, "harness.tool_call.started")))
        world.at += 499_999
        world.crash()
        assert not of(world, "CancellationRequested")
    world.run()

    request = of(world, "CancellationRequested")[0]
    assert request.at == admitted_at + 500_000
    assert world.state().status == "failed"
    assert world.state().error["causeCode"] == "timeout"
    assert attempts(world) == 1


def test_deadline_in_the_past_ends_a_recovered_run_without_running_a_step() -> None:
    world = held(call("a"), call("b", needs=["a"]), deadlineMs=500)
    world.at += 10_000_000
    world.crash()
    world.run()

    assert world.state().error["causeCode"] == "timeout"
    assert not world.ledger.executions


def test_deadline_ends_a_run_that_waits_for_its_retry() -> None:
    world = World(make_tools())
    world.admit(flaky_step(delay="1h"), {}, deadlineMs=1_000)
    world.run()

    assert world.state().error["causeCode"] == "timeout"
    assert attempts(world) == 1


def test_step_timeout_ends_the_attempt_at_its_instant_and_the_next_one_runs() -> None:
    world = World(make_tools())
    world.hold = lambda tool: attempts(world) == 1
    retry = {"maxAttempts": 2, "delay": "10ms"}
    world.admit(document(call("a", timeout="250ms", retry=retry)), {})
    world.run()

    started, failed = of(world, "StepAttemptStarted")[0], of(world, "StepFailed")[0]
    assert failed.at - started.at == 250_000
    assert failed.payload["error"]["causeCode"] == "step_timeout"
    assert world.state().status == "completed"
    assert attempts(world) == 2


def test_step_timeout_counts_from_the_attempts_start_over_a_restart() -> None:
    world = held(call("a", timeout="1s"))
    world.run(until=lambda: bool(of(world, "harness.tool_call.started")))
    world.at += 999_999
    world.crash()
    world.handle(Tick())
    assert not of(world, "StepFailed")
    world.at += 1
    world.handle(Tick())

    assert of(world, "StepFailed")[0].payload["error"]["causeCode"] == "step_timeout"
    assert attempts(world) == 1


def test_step_timeout_with_an_unknown_effect_holds_the_run() -> None:
    effects = {"mail": "once"}
    world = held(call("m", "mail", timeout="1s", retry={"maxAttempts": 3}), effects=effects)
    world.run()

    assert world.state().status == "interrupted"
    assert not world.ledger.executions and attempts(world) == 1


@pytest.mark.parametrize("width", [1, 4])
def test_group_timeout_ends_its_branches_and_the_retry_adopts_what_was_done(width: int) -> None:
    world = World(make_tools(), children_max=8)
    done = lambda: len(of(world, "ParallelBranchCompleted"))  # noqa: E731
    world.hold = lambda tool: attempts_of(world, "each") == 1 and done() >= 1
    retry = {"maxAttempts": 2, "delay": "10ms"}
    group = fan_out(
        call("w", args={"item": "{{ item }}"}),
        items="{{ [1, 2, 3, 4] }}",
        timeout="2s",
        retry=retry,
        maxConcurrency=width,
    )
    world.admit(document(group), {})
    world.run()

    timed_out = of(world, "ParallelGroupTimedOut")
    started = [e for e in of(world, "StepAttemptStarted") if e.payload["stepId"] == "each"]
    assert len(timed_out) == 1 and timed_out[0].at - started[0].at == 2_000_000
    state = world.state()
    assert state.status == "completed", state.error
    assert [entry["output"]["item"] for entry in state.output] == [1, 2, 3, 4]
    completed = [event.payload["itemKey"] for event in of(world, "ParallelBranchCompleted")]
    assert sorted(completed) == ["1", "2", "3", "4"]
    again = [e.payload["branchPath"] for e in of(world, "ParallelBranchScheduled")]
    assert sum("@attempt_2" in path for path in again) < 4


def attempts_of(world: World, step_id: str) -> int:
    return sum(e.payload["stepId"] == step_id for e in of(world, "StepAttemptStarted"))


def test_group_timeout_without_retry_fails_the_run() -> None:
    group = fan_out(call("w"), items="{{ [1, 2] }}", timeout="2s")
    world = held(group)
    world.run()

    assert world.state().error["causeCode"] == "step_timeout"
    assert world.state().status == "failed"


def test_group_timeout_while_its_steps_wait_for_retries_ends_it() -> None:
    inner = call("w", "flaky", retry={"maxAttempts": 5, "delay": "1h"})
    world = World(make_tools(failures=99))
    world.admit(document(fan_out(inner, items="{{ [1, 2] }}", timeout="2s")), {})
    world.run()

    assert world.state().error["causeCode"] == "step_timeout"
    assert not world.state().backoffs


def test_wide_group_never_exceeds_its_concurrency_nor_the_childrens_limit() -> None:
    items = list(range(300))
    world = World(picky(set()), children_max=5)
    world.admit(work_on(maxConcurrency=7), {"items": items})
    most = [0, 0]

    def look() -> bool:
        most[0] = max(most[0], len(world.children))
        most[1] = max(most[1], len(world.kernel.system.processes))
        return False

    world.run(until=look)

    live = peak = 0
    for event in world.events():
        live += event.type == "ParallelBranchScheduled"
        live -= event.type == "ParallelBranchCompleted"
        peak = max(peak, live)
    assert peak == 7
    assert most == [5, 5]
    assert [entry["output"] for entry in world.state().output["all"]] == [2 * n for n in items]


@pytest.mark.parametrize("children_max", [2, 3, 5])
@pytest.mark.parametrize("first", ["run_1", "run_2"])
def test_narrow_run_gets_its_share_beside_a_wide_one(children_max: int, first: str) -> None:
    world = World(picky(set()), children_max=children_max, seed=children_max)
    runs = {
        "run_1": lambda: world.admit(work_on(), {"items": list(range(80))}),
        "run_2": lambda: world.admit(programs.sequence(), {"x": 3}, run_id="run_2"),
    }
    runs.pop(first)()
    world.step(60 if first == "run_1" else 5)
    runs.popitem()[1]()
    before = len(of(world, "ParallelBranchCompleted"))
    world.run(until=lambda: world.kernel.system.runs["run_2"].is_ended)

    # Meanwhile the one run took three steps, and on each process of the other it was about so many.
    assert len(of(world, "ParallelBranchCompleted")) - before <= 8 * children_max
    world.run()
    assert world.state().status == world.state("run_2").status == "completed"


def test_equal_runs_do_not_take_processes_from_each_other_for_ever() -> None:
    world = World(picky(set()), children_max=5, seed=1)
    for number in range(3):
        world.admit(work_on(), {"items": list(range(30))}, run_id=f"run_{number}")
    world.run()

    assert all(run.status == "completed" for run in world.fold_log().values())
    assert world.kernel.system.processes_made <= 15


@pytest.mark.parametrize("extra", [-100, 0, 100])
def test_large_value_goes_through_the_blob_store_and_comes_back(extra: int) -> None:
    text = "ü" + "x" * (INLINE_BYTES_MAX + extra)
    steps = document(
        call("a", args={"text": "{{ input.text }}"}),
        call(
            "b",
            needs=["a"],
            args={"n": "{{ size(steps.a.output.text) }}", "t": "{{ steps.a.output }}"},
        ),
    )
    quiet = run(steps, {"text": text})
    assert quiet.library.value(quiet.state().output) == {"n": len(text), "t": {"text": text}}
    for event in quiet.events():
        if event.type == "StepCompleted":
            assert ("outputRef" in event.payload) == (extra >= 0)
    assert isinstance(quiet.state().output, Ref) == (extra >= 0)
    if extra > 0:
        assert max(map(len, quiet.log[2:])) < 10_000

    for point in range(1, quiet.points + 1, 7):
        world = World(make_tools())
        world.crash_at = point
        world.admit(steps, {"text": text})
        world.run()
        assert world.library.value(world.state().output) == {"n": len(text), "t": {"text": text}}


def test_large_items_and_fan_in_are_values_like_others() -> None:
    items = [{"id": n, "text": "x" * 100_000} for n in range(5)]
    steps = work_on(itemKey="{{ item.id }}")
    steps["steps"][0]["steps"][0]["with"]["tool"] = "echo"
    world = run(steps, {"items": items})

    output = world.library.value(world.state().output)
    assert [entry["output"]["item"] for entry in output["all"]] == items
