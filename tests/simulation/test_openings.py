"""Retry and fork: what is opened again does nothing twice."""

from typing import Any

import programs
import pytest
from programs import call, document
from test_programs import make_tools
from world import World

from planaria.protocol.codec import canonical_bytes, hash_jcs, hash_value
from planaria.protocol.errors import ConflictError
from planaria.supervisor.fold import fold
from planaria.supervisor.forking import inherit
from planaria.supervisor.kernel_messages import AdmitRun, ForkRun, RetryRun
from planaria.supervisor.run_state import RunState


def retry(world: World, run_id: str = "run_1") -> Any:
    run = world.fold_log()[run_id]
    world.kernel.system.runs.setdefault(run_id, run)
    world.request(RetryRun(None, run_id, "ann", "again"))
    return world.answers[-1]


def fork(world: World, document: dict[str, Any], at: int, value: Any, run_id: str = "fork") -> Any:
    """Forks run_1 as the desk does; the same document, maybe another input."""
    source = RunState("run_1")
    for event in world.events("run_1")[:at]:
        fold(source, event, world.library)
    inherited_ref = world.library.write(canonical_bytes(inherit(source).dump()))
    lock = {"lwir": document, "models": {}}
    lock["tools"] = {n: {"effect": world.effects.get(n, "read")} for n in world.tools}
    admission = AdmitRun(
        client=None,
        run_id=run_id,
        workflow_id="sim",
        definition_hash=hash_value("sim"),
        version_id="wv_" + hash_jcs(lock)[7:39],
        lock=lock,
        lock_ref=world.library.write(canonical_bytes(lock)),
        input={"input": value},
        input_hash=hash_value(value),
        source={"kind": "sim"},
        trigger="fork",
    )
    world.request(ForkRun(admission, "run_1", at, "ann", {}, inherited_ref))
    return world.answers[-1]


def broken_world(effect: str = "read") -> tuple[World, dict[str, Any], list[str]]:
    """A sequence whose second step fails until it is mended."""
    faults = ["broken"]
    tools = make_tools()

    def fragile(args: Any) -> Any:
        if faults:
            raise RuntimeError(faults[0])
        return {"x": args["x"] + 1}

    tools["flaky"] = fragile
    world = World(tools, effects={"mail": "idempotent", "flaky": effect})
    steps = document(
        call("a", "mail", args={"x": 1}),
        call("b", "flaky", args={"x": "{{ steps.a.output.x }}"}, needs=["a"]),
        call("c", args={"x": "{{ steps.b.output.x }}"}, needs=["b"]),
    )
    world.tools["mail"] = lambda args: {"x": args["x"]}
    return world, steps, faults


def test_retry_does_the_failed_step_and_what_follows_and_nothing_before_it() -> None:
    world, steps, faults = broken_world()
    world.admit(steps, {})
    world.run()
    assert world.state().status == "failed"
    faults.clear()

    answer = retry(world)
    world.run()

    assert answer.error is None
    state = world.state()
    assert (state.status, state.output) == ("completed", {"x": 2})
    assert [tool for tool, _, _, _ in world.ledger.executions] == ["mail", "flaky", "flaky", "echo"]
    attempts = [
        (e.payload["stepId"], e.payload["attempt"])
        for e in world.events()
        if e.type == "StepAttemptStarted"
    ]
    assert attempts == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]


def test_retry_that_fails_again_can_be_retried_again() -> None:
    world, steps, faults = broken_world()
    world.admit(steps, {})
    world.run()
    retry(world)
    world.run()
    assert world.state().status == "failed"
    faults.clear()
    retry(world)
    world.run()

    assert world.state().status == "completed"
    assert 2 == sum(1 for e in world.events() if e.type == "RunReopened")


def test_retry_of_a_group_takes_over_the_branches_that_had_completed() -> None:
    faults = ["q"]
    tools = make_tools()

    def work(args: Any) -> Any:
        if args["item"] in faults:
            raise RuntimeError("broken")
        return {"item": args["item"]}

    tools["check"] = work
    world = World(tools)
    group = {
        "id": "each",
        "uses": "parallel",
        "with": {
            "items": "{{ input.items }}",
            "itemKey": "{{ item }}",
            "maxBranches": 10,
            "maxConcurrency": 1,
            "failureMode": "fail_fast",
            "fanIn": {"order": "input"},
        },
        "steps": [call("work", "check", args={"item": "{{ item }}"})],
    }
    world.admit(document(group), {"items": ["p", "q", "s"]})
    world.run()
    assert world.state().status == "failed"
    faults.clear()
    retry(world)
    world.run()

    assert world.state().status == "completed"
    assert ["p", "q", "s"] == [entry["itemKey"] for entry in world.state().output]
    assert 4 == len(world.ledger.executions)  # p, q (failed), q, s


def test_cancelled_run_goes_on_after_a_retry() -> None:
    world, steps, faults = broken_world()
    faults.clear()
    world.hold = lambda tool: tool == "flaky"
    world.admit(steps, {})
    world.run(
        until=lambda: any(
            e.type == "harness.tool_call.started" and e.payload["toolName"] == "flaky"
            for e in world.events()
        )
    )
    world.cancel()
    world.hold = None
    world.run()
    assert world.state().status == "cancelled"
    retry(world)
    world.run()

    assert (world.state().status, world.state().output) == ("completed", {"x": 2})


def test_retry_is_refused_while_an_effect_is_unknown() -> None:
    world, steps, faults = broken_world("once")
    faults.clear()
    world.hold = lambda tool: tool == "flaky"
    world.admit(steps, {})
    world.run(
        until=lambda: any(
            c.session.get("stepPath") == "b" and c.upto for c in world.children.values()
        )
    )
    child = next(c for c in world.children.values() if c.session.get("stepPath") == "b")
    world.kill_child(child.process_id)
    world.run()
    assert world.state().status == "interrupted"
    world.cancel()
    world.run()
    assert world.state().status == "cancelled"

    answer = retry(world)

    assert isinstance(answer.error, ConflictError) and "flaky" in str(answer.error)
    assert world.state().status == "cancelled"


@pytest.mark.parametrize("at_point", range(1, 40))
def test_supervisor_killed_around_a_retry_changes_nothing(at_point: int) -> None:
    world, steps, faults = broken_world("idempotent")
    world.admit(steps, {})
    world.run()
    faults.clear()
    world.points, world.crash_at = 0, at_point
    run = world.fold_log()["run_1"]
    world.kernel.system.runs.setdefault("run_1", run)
    try:
        world.handle(RetryRun(None, "run_1", "ann", "again"))
    except Exception:
        world.crash_at = None
        world._restart_after_crash()
    world.run()
    if world.state().status == "failed":  # cut before the commit
        retry(world)
        world.run()

    assert (world.state().status, world.state().output) == ("completed", {"x": 2})


def test_completed_run_is_not_retried() -> None:
    world = World(make_tools())
    world.admit(programs.sequence(), {"x": 3})
    world.run()

    assert isinstance(retry(world).error, ConflictError)


@pytest.mark.parametrize("name", ["sequence", "loop", "branches", "skip"])
def test_fork_at_any_sequence_gives_the_same_output_and_repeats_no_inherited_effect(
    name: str,
) -> None:
    program = {
        "sequence": (programs.sequence(), {"x": 3}),
        "loop": (programs.loop(), {}),
        "branches": (programs.branches(), {"items": ["p", "q.r", "s"]}),
        "skip": (programs.skip(), {"ok": True}),
    }[name]
    effects = dict.fromkeys(make_tools(), "idempotent")
    quiet = World(make_tools(), effects=effects)
    quiet.admit(*program)
    quiet.run()
    expected = quiet.state().output
    last = len(quiet.events()) - 1
    for at in range(3, last):
        world = World(make_tools(), effects=effects)
        world.admit(*program)
        world.run()
        done = {
            (e.payload["stepPath"], e.payload.get("visitIndex"))
            for e in world.events()[:at]
            if e.type == "StepCompleted"
        }
        before = len(world.ledger.executions)
        try:
            fork(world, program[0], at, program[1])
        except ConflictError as error:
            assert "in flight" in str(error)
            continue
        world.run()
        forked = world.fold_log()["fork"]

        assert (forked.status, forked.output) == ("completed", expected), at
        again = [
            e.payload["stepPath"]
            for e in world.events("fork")
            if e.type == "harness.session.started"
        ]
        assert not {path for path, _ in done} & set(again), at
        performed = sum(1 for e in world.events()[:at] if e.type == "harness.tool_call.succeeded")
        assert before - performed == len(world.ledger.executions) - before, at


def test_fork_with_another_input_goes_on_from_what_it_inherits() -> None:
    world = World(make_tools())
    steps = document(
        call("a", args={"x": "{{ input.x }}"}),
        call("b", needs=["a"], args={"x": "{{ steps.a.output.x + input.y }}"}),
    )
    world.admit(steps, {"x": 1, "y": 1})
    world.run()
    at = next(e.sequence for e in world.events() if e.type == "StepCompleted")
    fork(world, steps, at, {"x": 100, "y": 10})
    world.run()

    assert {"x": 11} == world.fold_log()["fork"].output
    assert "fork" != "run_1" and {"x": 2} == world.state().output
