"""Sub-runs and roles: limits, waits without a process, cancellation, refusals, and failures."""

from typing import Any

import pytest
from programs import call
from test_programs import make_tools
from test_roles import (
    CALL,
    MODELS,
    describe_tools,
    draft,
    entry,
    orchestrated_lock,
    planned_lock,
    steps_lock,
)
from world import World

from planaria.protocol.events import decode_event
from planaria.protocol.ids import sub_run_id
from planaria.protocol.limits import SUB_RUN_DEPTH_MAX
from planaria.protocol.messages import Refused
from planaria.supervisor.kernel_messages import Send, SessionReported
from planaria.supervisor.system_state import BOUND


def ask_for(count: int, cap: int = 10, **more: Any) -> tuple[World, dict[str, Any]]:
    """An orchestrator that asks for so many sub-runs in one turn, and gives their outputs."""
    world = World(make_tools(), children_max=64, **more)

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        if turn == 0:
            start = [
                ["start_workflow", {"workflowId": "inner", "input": {"x": n}}] for n in range(count)
            ]
            return {"calls": start}
        return {"output": [result.get("output", result["status"]) for result in results]}

    world.model = model
    inner = steps_lock("inner", call("b", args={"x": "{{ input.x }}"}))
    return world, orchestrated_lock({"inner": entry(inner)}, cap=cap)


def open_sub_runs(world: World) -> list[str]:
    runs = world.fold_log()
    return [r for r, run in runs.items() if r != "run_1" and not run.is_ended]


def test_fifty_sub_runs_of_one_turn_run_side_by_side_up_to_the_cap() -> None:
    world, lock = ask_for(50)
    most = 0
    world.admit_lock(lock, {})

    def watch() -> bool:
        nonlocal most
        most = max(most, len(world.kernel.system.runs["run_1"].sub_runs))
        return False

    world.run(until=watch)

    assert "completed" == world.state().status
    assert [{"x": n} for n in range(50)] == world.state().output
    assert 10 == most
    assert 50 == sum(1 for kind, *_ in world.ledger.executions if kind == "echo")


def test_waiting_orchestrator_holds_no_process() -> None:
    world, lock = ask_for(2)
    world.hold = lambda tool: tool == "echo"
    world.admit_lock(lock, {})
    world.run(until=lambda: len(open_sub_runs(world)) == 2)
    for _ in range(2_000):
        if not world._step():
            break
        processes = world.kernel.system.processes.values()
        if not any(p.status == BOUND and p.run_id == "run_1" for p in processes):
            break
    processes = world.kernel.system.processes.values()
    assert not any(p.status == BOUND and p.run_id == "run_1" for p in processes)
    state = world.state()
    assert state.sessions and not state.waiting, "it is put away, and not queued either"
    world.hold = None
    world.run()

    assert [{"x": 0}, {"x": 1}] == world.state().output
    exits = [e.payload["reason"] for e in world.events() if e.type == "ProcessExited"]
    assert ["put_away"] == exits
    assert 2 == sum(1 for kind, *_ in world.ledger.executions if kind == "model")


def test_supervisor_restarted_while_a_parent_waits_gives_it_no_process() -> None:
    world, lock = ask_for(2)
    world.hold = lambda tool: tool == "echo"
    world.admit_lock(lock, {})
    world.run(until=lambda: len(open_sub_runs(world)) == 2)
    world.crash()

    assert not world.kernel.system.runs["run_1"].waiting
    world.hold = None
    world.run()
    assert [{"x": 0}, {"x": 1}] == world.state().output


def test_cancelled_parent_cancels_its_sub_runs_and_ends_after_them() -> None:
    world, lock = ask_for(3)
    world.hold = lambda tool: tool == "echo"
    world.admit_lock(lock, {})
    world.run(until=lambda: len(open_sub_runs(world)) == 3)
    world.cancel()
    world.run()

    runs = world.fold_log()
    assert {"cancelled"} == {run.status for run in runs.values()}
    ends = [e.run_id for e in map(decode_event, world.log) if e.type == "RunCancelled"]
    assert "run_1" == ends[-1]


@pytest.mark.parametrize("point", range(1, 30))
def test_supervisor_killed_while_a_family_is_cancelled_leaves_none_running(point: int) -> None:
    world, lock = ask_for(3)
    world.hold = lambda tool: tool == "echo"
    world.admit_lock(lock, {})
    world.run(until=lambda: len(open_sub_runs(world)) == 3)
    world.points, world.crash_at = 0, point
    world.cancel()
    world.run()

    runs = world.fold_log()
    assert {"cancelled"} == {run.status for run in runs.values()}


def test_failed_sub_run_reaches_an_orchestrator_as_a_result_with_its_error() -> None:
    world, lock = ask_for(1)

    def broken(args: Any) -> Any:
        raise RuntimeError("broken")

    world.tools["echo"] = broken
    world.admit_lock(lock, {})
    world.run()

    assert ("completed", ["failed"]) == (world.state().status, world.state().output)


def call_world(**arguments: Any) -> tuple[World, dict[str, Any]]:
    step = {**CALL, "with": {**CALL["with"], **arguments.pop("args", {})}, **arguments}
    inner = steps_lock("inner", call("b", args={"x": "{{ input.x + 1 }}"}))
    first = call("a", args={"x": "{{ input.x }}"})
    return World(make_tools()), steps_lock("sim", first, step, workflows={"inner": entry(inner)})


def test_failed_sub_run_reaches_its_step_as_a_typed_error() -> None:
    world, lock = call_world()
    world.tools["echo"] = lambda args: {"x": args["x"]} if args["x"] == 3 else 1 / 0
    world.admit_lock(lock, {"x": 3})
    world.run()

    error = world.state().error
    assert ("SubRunFailed", "step_failed") == (error["name"], error["causeCode"])
    assert sub_run_id("run_1", "sub", 1) in error["message"]


def test_retried_call_starts_another_sub_run() -> None:
    world, lock = call_world(retry={"maxAttempts": 2})
    attempts = []

    def flaky(args: Any) -> Any:
        attempts.append(args)
        if len(attempts) == 2:
            raise RuntimeError("once")
        return {"x": args["x"]}

    world.tools["echo"] = flaky
    world.admit_lock(lock, {"x": 3})
    world.run()

    assert ("completed", {"x": 4}) == (world.state().status, world.state().output)
    assert {"run_1", sub_run_id("run_1", "sub", 1), sub_run_id("run_1", "sub", 2)} == set(
        world.fold_log()
    )


def test_call_that_does_not_wait_ends_at_once_and_its_run_goes_on() -> None:
    world, lock = call_world(args={"wait": False})
    world.admit_lock(lock, {"x": 3})
    world.run()

    sub_run = sub_run_id("run_1", "sub", 1)
    assert {"subRunId": sub_run} == world.state().output
    assert "completed" == world.fold_log()[sub_run].status


def test_call_that_takes_too_long_is_cancelled_and_times_out() -> None:
    world, lock = call_world(timeout="2s")
    held = []

    def hold(tool: str) -> bool:
        return bool(held)

    world.hold = hold
    world.admit_lock(lock, {"x": 3})
    world.run(until=lambda: bool(open_sub_runs(world)))
    held.append(1)
    world.run()

    assert "step_timeout" == world.state().error["causeCode"]
    assert "cancelled" == world.fold_log()[sub_run_id("run_1", "sub", 1)].status


def test_input_that_does_not_fit_a_workflow_is_refused_before_it_starts() -> None:
    inner = steps_lock("inner", call("b", args={"x": 1}))
    inner["lwir"]["input"] = {"schema": {"type": "object", "required": ["y"]}}
    world = World(make_tools())
    lock = steps_lock("sim", call("a", args={"x": 1}), CALL, workflows={"inner": entry(inner)})
    world.admit_lock(lock, {})
    world.run()

    assert "SubRunRefused" == world.state().error["name"]
    assert ["run_1"] == list(world.fold_log())


def test_workflow_that_would_call_itself_is_refused() -> None:
    loop = {
        "id": "again",
        "uses": "workflow.call",
        "with": {"workflow": "sim", "input": {}},
    }
    inner = steps_lock("inner", loop, workflows={"sim": entry(steps_lock("sim", call("x")))})
    lock = steps_lock("sim", call("a", args={"x": 1}), CALL, workflows={"inner": entry(inner)})
    world = World(make_tools())
    world.admit_lock(lock, {})
    world.run()

    assert "failed" == world.state().status
    assert "sim → inner → sim" in world.state().error["message"]
    assert 2 == len(world.fold_log())


@pytest.mark.parametrize(
    ("depth", "status"), [(SUB_RUN_DEPTH_MAX - 1, "completed"), (SUB_RUN_DEPTH_MAX, "failed")]
)
def test_calls_nested_deeper_than_the_limit_are_refused(depth: int, status: str) -> None:
    world, lock = call_world()
    world.admit_lock(lock, {"x": 3})
    # As if it were itself so many calls deep.
    world.kernel.system.runs["run_1"].admission["callPath"] = ["p"] * (depth - 1)
    world.run(until=lambda: world.kernel.system.runs["run_1"].is_ended)
    run = world.kernel.system.runs["run_1"]

    assert status == run.status
    assert status == "completed" or "nested deeper than 32" in run.error["message"]


def test_planner_whose_draft_has_findings_fails_the_run_as_exhausted() -> None:
    world = World(make_tools())
    wrong = draft()
    wrong["steps"][0]["with"]["tool"] = "nonsense"
    world.model = lambda spec, turn, results: {"output": wrong}
    world.admit_lock(planned_lock(), {"x": 1})
    world.run()

    assert "planner_validation_exhausted" == world.state().error["causeCode"]
    assert "WorkflowVersionRegistered" not in {e.type for e in world.events()}


def test_run_never_plans_again_once_its_version_is_registered() -> None:
    world = World(make_tools())
    world.model = lambda spec, turn, results: {"output": draft()}
    world.admit_lock(planned_lock(), {"x": 1})
    world.run(until=lambda: any(e.type == "WorkflowVersionRegistered" for e in world.events()))
    world.model = None
    world.crash()
    world.run()

    assert ("completed", {"x": 1}) == (world.state().status, world.state().output)


def test_planner_may_not_report_what_only_a_worker_does() -> None:
    world = World(make_tools())
    world.model = lambda spec, turn, results: {"output": draft()}
    world.admit_lock(planned_lock(), {"x": 1})
    world.run(until=lambda: any(c.session for c in world.children.values()))
    child = next(iter(world.children.values()))
    number = (child.session["sessionId"], child.session["incarnation"], child.reported)
    event = ["harness.execute_step.succeeded", {"output": 1}]
    turn = world.kernel.handle(SessionReported(child.process_id, *number, [event]), world.now())

    sent = [a.message for a in turn.actions if isinstance(a, Send)]
    assert [True] == [isinstance(m, Refused) for m in sent]


def test_orchestrator_can_not_say_itself_how_its_sub_run_ended() -> None:
    world, lock = ask_for(1)
    world.hold = lambda tool: tool == "echo"
    world.admit_lock(lock, {})
    world.run(until=lambda: len(open_sub_runs(world)) == 1)
    child = next(c for c in world.children.values() if c.session.get("role") == "orchestrator")
    session = next(iter(world.kernel.system.runs["run_1"].sessions.values()))
    call_id = next(iter(session.open_calls))
    event = ["harness.tool_call.succeeded", {"callId": call_id, "result": {}}]
    number = (session.id, session.incarnation, session.reported)
    turn = world.kernel.handle(SessionReported(child.process_id, *number, [event]), world.now())

    assert any(isinstance(a, Send) and isinstance(a.message, Refused) for a in turn.actions)


def fix_world(fixes: int, cause: str = "step_failed") -> World:
    world = World(make_tools())

    def broken(args: Any) -> Any:
        raise RuntimeError(f"{cause}: wrong source")

    world.tools["broken"] = broken
    world.model = lambda spec, turn, results: {"error": "no good"}
    code = {
        "id": "c",
        "uses": "code.run",
        "with": {"source": "wrong", "tools": ["broken"]},
        "onFailure": {"fixer": {"model": "fast", "maxAttempts": fixes}},
    }
    lock = steps_lock("sim", code)
    lock["lwir"]["permissions"] = {"models": ["fast"], "tools": ["broken"]}
    lock["tools"] = describe_tools("broken")
    world.admit_lock({**lock, "models": MODELS}, {})
    return world


def test_fixes_in_vain_fail_the_step_with_its_own_error_and_the_last_fixes() -> None:
    world = fix_world(3)
    world.run()

    error = world.state().error
    assert "step_failed" == error["causeCode"]
    assert "wrong source" in error["message"] and "3 fix(es) failed" in error["message"]
    fixes = [e.payload.get("fixAttempt") for e in world.events() if e.type == "StepAttemptStarted"]
    assert [None, 1, 2, 3] == fixes


@pytest.mark.parametrize(
    "cause", ["cancelled", "capability_drift", "runtime_config_error", "interrupted"]
)
def test_fixer_is_never_asked_about_what_no_source_would_mend(cause: str) -> None:
    world = fix_world(3, cause)
    world.run()

    assert "failed" == world.state().status
    assert not any("fixAttempt" in e.payload for e in world.events())


def test_fixes_are_counted_over_restarts() -> None:
    for point in range(1, 40):
        world = fix_world(2)
        world.points, world.crash_at = 0, point
        world.run()
        fixes = [e.payload["fixAttempt"] for e in world.events() if "fixAttempt" in e.payload]
        assert [1, 2] == fixes, point


def admit_again(world: World, lock: dict[str, Any], value: Any) -> Any:
    world.admit_lock(lock, value)
    return world.answers[-1]


def test_orchestrated_runs_input_is_compared_on_resume() -> None:
    world, lock = ask_for(1)
    world.admit_lock(lock, {"x": 1})
    world.run()
    before = len(world.log)

    assert "RunInputMismatchError" == type(admit_again(world, lock, {"x": 2}).error).__name__
    assert admit_again(world, lock, {"x": 1}).error is None
    assert before == len(world.log)


def test_admission_names_the_parent_and_the_way_to_it() -> None:
    world, lock = call_world()
    world.admit_lock(lock, {"x": 3})
    world.run()
    sub_run = world.fold_log()[sub_run_id("run_1", "sub", 1)]

    assert "run_1" == sub_run.admission["parentRunId"]
    assert "sub" == sub_run.admission["parentStepPath"]
    assert ["sim"] == sub_run.admission["callPath"]
    assert ["inner"] == sub_run.admission["source"]["within"]
