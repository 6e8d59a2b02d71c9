"""The checker on logs that the kernel itself has written: it finds nothing, whatever was killed."""

from collections.abc import Callable
from typing import Any

import decisions
import programs
import pytest
import test_budgets as budgets
import test_lost_effects as effects
import test_openings as openings
import test_outer_loops as loops
import test_roles as roles
import test_waits as waits
from programs import call
from simulated_logs import check_world
from test_programs import make_tools
from world import World


def run_role(name: str) -> World:
    world, admit = roles.start(name)
    admit()
    world.run()
    return world


def run_loop(*, planned: bool = False, **more: Any) -> World:
    world, lock = loops.open_world(planned)
    loops.start_loop(world, lock, **more)
    world.run()
    return world


def exhaust_loop() -> World:
    world, lock = loops.open_world()
    world.supervise = lambda state: loops.say("continue")
    loops.start_loop(world, lock, cycles_max=2)
    world.run()
    return world


def resume_cancelled_cycle() -> World:
    world, lock = loops.open_world()
    world.hold = lambda tool: True
    loops.start_loop(world, lock)
    world.run(until=lambda: any(c.session for c in world.children.values()))
    world.cancel(loops.cycle_run_id(loops.LOOP, 1))
    world.run()
    world.hold = None
    loops.start_loop(world, lock)
    world.run()
    return world


def retry_twice() -> World:
    world, steps, faults = openings.broken_world()
    world.admit(steps, {})
    world.run()
    openings.retry(world)
    world.run()
    faults.clear()
    openings.retry(world)
    world.run()
    return world


def retry_cancelled() -> World:
    world, steps, faults = openings.broken_world()
    faults.clear()
    world.hold = lambda tool: tool == "flaky"
    world.admit(steps, {})
    world.run(until=lambda: any(c.session.get("stepPath") == "b" for c in world.children.values()))
    world.cancel()
    world.hold = None
    world.run()
    openings.retry(world)
    world.run()
    return world


def retry_group() -> World:
    faults = ["q"]
    tools = make_tools()

    def work(args: Any) -> Any:
        if args["item"] in faults:
            raise RuntimeError("broken")
        return {"item": args["item"]}

    world = World({**tools, "check": work})
    step = call("work", "check", args={"item": "{{ item }}"})
    group = programs.fan_out(step, items="{{ input.items }}", maxConcurrency=1)
    world.admit(programs.document(group), {"items": ["p", "q", "s"]})
    world.run()
    faults.clear()
    openings.retry(world)
    world.run()
    return world


def fork_sequence() -> World:
    world = World(make_tools())
    world.admit(programs.sequence(), {"x": 3})
    world.run()
    at = next(e.sequence for e in world.events() if e.type == "StepCompleted")
    openings.fork(world, programs.sequence(), at, {"x": 3})
    world.run()
    return world


def fork_group() -> World:
    world = World(make_tools())
    world.admit(programs.branches(), {"items": ["p", "q", "s"]})
    world.run()
    ends = [e.sequence for e in world.events() if e.type == "ParallelBranchCompleted"]
    openings.fork(world, programs.branches(), ends[0], {"items": ["p", "q", "s"]})
    world.run()
    return world


def spend(**budget: Any) -> World:
    world = budgets.budget_world(budget)
    world.run()
    return world


def leave_sub_run_alone() -> World:
    """The parent ends before a sub-run that it doesn't wait for."""
    world = World(make_tools())
    inner = roles.steps_lock("inner", call("b", args={"x": 1}))
    step = {**roles.CALL, "needs": [], "with": {**roles.CALL["with"], "input": {}, "wait": False}}
    world.admit_lock(roles.steps_lock("sim", step, workflows={"inner": roles.entry(inner)}), {})
    world.run()
    return world


def plan_what_has_steps() -> World:
    """`plan_workflow` of a workflow that needs no planner, and a workflow that there isn't."""
    world = World(make_tools())
    fixed = roles.steps_lock("fixed", call("b", args={"x": 1}))

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        if turn == 0:
            names = ("fixed", "missing")
            return {"calls": [["plan_workflow", {"workflowId": name}] for name in names]}
        return {"output": sorted(results[0])}

    world.model = model
    world.admit_lock(roles.orchestrated_lock({"fixed": roles.entry(fixed)}), {})
    world.run()
    return world


def lose_mail(*answers: str, effect: str = "once", found: str = "unknown") -> World:
    """A mail that is lost with its process, and what is said of it then."""
    look = ("succeeded", {"n": 1}) if found == "succeeded" else (found, None)
    times = 1 + answers.count("never_happened")
    mail = effects.mail()
    world = effects.lose(mail, effect=effect, times=times, reattach=lambda key: look)
    for answer in answers:
        effects.resolve(world, answer)
        world.run()
    return world


def stop_waiting(how: str) -> World:
    """An approval and a wait that end with their run."""
    options = {"deadlineMs": 60_000} if how == "deadline" else {}
    world = decisions.start(decisions.ask(), decisions.pause_for("w", signal="s"), **options)
    if how == "cancel":
        world.cancel()
    world.run()
    return world


PROGRAMS: dict[str, Callable[[], World]] = {
    **{name: lambda name=name: waits.play(name, World(make_tools())) for name in waits.PLAYS},
    "lost": lose_mail,
    "lost and succeeded": lambda: lose_mail("succeeded"),
    "lost and failed": lambda: lose_mail("failed"),
    "lost and given up": lambda: lose_mail("given_up"),
    "lost, repeated, lost": lambda: lose_mail("never_happened", "succeeded"),
    "found": lambda: lose_mail(effect="managed", found="succeeded"),
    "not found": lambda: lose_mail(effect="managed", found="never_happened"),
    "not known": lambda: lose_mail("succeeded", effect="managed"),
    "stopped waits": lambda: stop_waiting("cancel"),
    "late waits": lambda: stop_waiting("deadline"),
    **{name: lambda name=name: run_role(name) for name in roles.PROGRAMS},
    "loop": run_loop,
    "planned loop": lambda: run_loop(planned=True),
    "exhausted loop": exhaust_loop,
    "cancelled cycle": resume_cancelled_cycle,
    "cycle that timed out": lambda: run_loop(deadlineMs=1),
    "retried twice": retry_twice,
    "retried after a cancellation": retry_cancelled,
    "retried group": retry_group,
    "fork": fork_sequence,
    "fork inside a group": fork_group,
    "budget of calls": lambda: spend(maxModelCalls=2),
    "budget of tokens": lambda: spend(maxTokens=36),
    "budget of cost": lambda: spend(maxCostUsd=0.05),
    "sub-run alone": leave_sub_run_alone,
    "refused sub-run": plan_what_has_steps,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_log_of_a_simulated_program_breaks_nothing(name: str) -> None:
    world = PROGRAMS[name]()

    assert world.log
    assert [] == check_world(world)


@pytest.mark.parametrize("name", ["orchestrate", "fix"])
def test_log_breaks_nothing_wherever_a_process_was_killed(name: str) -> None:
    quiet = run_role(name)
    for kind, points in (("crash_at", quiet.points), ("kill_child_at", quiet.child_points)):
        for point in range(1, points + 1):
            world, admit = roles.start(name)
            setattr(world, kind, point)
            admit()
            world.run()

            assert world.supervisor_crashes + world.child_kills == 1
            assert [] == check_world(world), f"{kind} {point}"


def test_log_of_a_loop_breaks_nothing_wherever_the_supervisor_was_killed() -> None:
    quiet = run_loop(planned=True)
    for point in range(1, quiet.points + 1):
        world, lock = loops.open_world(True)
        world.crash_at = point
        loops.start_loop(world, lock)
        world.run()

        assert [] == check_world(world), f"point {point}"


def test_loop_whose_first_commit_was_lost_is_recorded_as_started() -> None:
    """Its manifest is there already: without the event nothing could make it anew."""
    for point in range(1, run_loop().points + 1):
        world, lock = loops.open_world()
        world.crash_at = point
        loops.start_loop(world, lock)
        world.run()

        assert ["OuterLoopStarted"] == [kind for kind, _ in world.notes], f"point {point}"


def test_log_breaks_nothing_wherever_a_call_with_a_budget_was_lost() -> None:
    quiet = spend(maxModelCalls=10)
    for point in range(1, quiet.child_points + 1):
        world = budgets.budget_world({"maxModelCalls": 10})
        world.kill_child_at = point
        world.run()

        assert [] == check_world(world), f"point {point}"


def test_log_breaks_nothing_wherever_an_orchestrator_was_cancelled() -> None:
    quiet = run_role("orchestrate")
    for length in range(1, len(quiet.log)):
        world = cancel_orchestrator(length)

        assert all(run.is_ended for run in world.fold_log().values()), f"after {length} events"
        assert [] == check_world(world), f"after {length} events"


def cancel_orchestrator(length: int) -> World:
    """Cancels the run once its log has that many events."""
    world, admit = roles.start("orchestrate")
    script = world.model
    assert script is not None

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        if any("error" in result for result in results):
            return {"error": "cancelled: a sub-run was"}
        return script(spec, turn, results)

    world.model = model
    admit()
    world.run(until=lambda: len(world.log) >= length)
    world.cancel()
    world.run()
    return world
