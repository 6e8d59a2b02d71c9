"""Outer loops: every row of the kill table, cut at every append, action, message and file."""

from typing import Any

import pytest
from programs import call, document
from test_programs import make_tools
from test_roles import draft, planned_lock
from world import World

from planaria.protocol.codec import canonical_bytes, hash_jcs, hash_value
from planaria.protocol.events import decode_event
from planaria.protocol.outer_loops import cycle_run_id, dump_manifest
from planaria.supervisor.kernel_messages import AdmitRun, StartLoop
from planaria.supervisor.outer_loop import DONE, EXHAUSTED, STOPPED, describe_loop

GOAL = {"workflowDefinitionHash": "sha256:1", "description": "go"}
LOOP = "ol_1"


def fixed_lock() -> dict[str, Any]:
    made = document(call("a", args={"x": "{{ cycle.number }}", "note": "{{ cycle.note }}"}))
    tools = {"echo": {"effect": "read"}}
    return {"lwir": made, "tools": tools, "models": {}}


def start_loop(world: World, lock: dict[str, Any], *, cycles_max: int = 3, **more: Any) -> Any:
    value = more.get("input", {"x": 3})
    admission = AdmitRun(
        client=None,
        run_id="",
        workflow_id="sim",
        definition_hash=hash_value("sim"),
        version_id="wv_" + hash_jcs(lock)[7:39],
        lock=lock,
        lock_ref=world.library.write(canonical_bytes(lock)),
        input={"input": value},
        input_hash=hash_value(value),
        source={"kind": "sim"},
        trigger="outer_loop",
        options={"deadlineMs": more["deadlineMs"]} if "deadlineMs" in more else {},
    )
    goal = more.get("goal", GOAL)
    world.request(StartLoop(admission, LOOP, cycles_max, goal, {"entry": "s"}))
    return world.answers[-1]


def say(kind: str, value: Any = None) -> dict[str, Any]:
    if kind == "done":
        return {"kind": "done", "output": value}
    return {"kind": "continue", "promptNote": value}


def two_cycles(state: dict[str, Any]) -> dict[str, Any]:
    if len(state["cycles"]) == 1:
        return say("continue", "more")
    return say("done", [cycle["output"] for cycle in state["cycles"]])


def open_world(planned: bool = False, seed: int | None = None) -> tuple[World, dict[str, Any]]:
    world = World(make_tools(), seed=seed)
    world.supervise = two_cycles
    if not planned:
        return world, fixed_lock()

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        cycle = spec["context"]["cycle"]["v"]
        assert len(cycle["prior"]) == cycle["number"] - 1
        assert cycle["note"] == (None if cycle["number"] == 1 else "more")
        return {"output": draft()}

    world.model = model
    return world, planned_lock()


def look(world: World) -> dict[str, Any]:
    return describe_loop(world.kernel.system.loops[LOOP])


FIXED = [{"x": 1, "note": None}, {"x": 2, "note": "more"}]


def check_end(world: World, expected: Any, where: str) -> None:
    shown = look(world)
    assert shown["status"] == DONE, (where, shown)
    assert shown["output"] == expected, where
    completed = [e for e in map(decode_event, world.log) if e.type == "OuterLoopCycleCompleted"]
    assert [1, 2] == [e.payload["cycleNumber"] for e in completed], where
    states: dict[int, Any] = {}
    for state in world.supervised:  # an equal state, however often it is asked
        number = len(state["cycles"])
        assert states.setdefault(number, state) == state, where
    deaths = world.supervisor_crashes + world.child_kills
    assert len(world.supervised) <= 2 + deaths, where
    loop = world.kernel.system.loops[LOOP]
    assert world.manifests[LOOP] == dump_manifest(loop.manifest()), where
    assert "pendingCycleRunId" not in loop.manifest(), where


@pytest.mark.parametrize("planned", [False, True])
def test_loop_ends_with_what_supervise_says(planned: bool) -> None:
    world, lock = open_world(planned)
    start_loop(world, lock)
    world.run()

    check_end(world, [{"x": 3}, {"x": 3}] if planned else FIXED, "quiet")
    assert ["OuterLoopStarted"] == [kind for kind, _ in world.notes]


@pytest.mark.parametrize("planned", [False, True])
def test_supervisor_killed_at_every_point_of_a_loop_changes_nothing(planned: bool) -> None:
    quiet, lock = open_world(planned)
    start_loop(quiet, lock)
    quiet.run()
    expected = look(quiet)["output"]
    for point in range(1, quiet.points + 1):
        world, lock = open_world(planned)
        world.crash_at = point
        start_loop(world, lock)
        world.run()

        assert world.supervisor_crashes == 1, f"point {point} was never reached"
        check_end(world, expected, f"point {point}")


@pytest.mark.parametrize("planned", [False, True])
def test_child_killed_at_every_point_of_a_loop_changes_nothing(planned: bool) -> None:
    quiet, lock = open_world(planned)
    start_loop(quiet, lock)
    quiet.run()
    expected = look(quiet)["output"]
    for point in range(1, quiet.child_points + 1):
        world, lock = open_world(planned)
        world.kill_child_at = point
        start_loop(world, lock)
        world.run()

        assert world.child_kills == 1, f"point {point} was never reached"
        check_end(world, expected, f"point {point}")


def test_finished_loop_gives_its_recorded_output_with_no_run_and_no_supervise() -> None:
    world, lock = open_world()
    start_loop(world, lock)
    world.run()
    events, asked = len(world.log), len(world.supervised)
    world.crash()
    answer = start_loop(world, lock)
    world.run()

    assert answer.error is None and answer.result["attached"]
    assert (DONE, FIXED) == (look(world)["status"], look(world)["output"])
    assert (events, asked) == (len(world.log), len(world.supervised))


def test_exhausted_loop_stays_exhausted_and_nothing_is_run_again() -> None:
    world, lock = open_world()
    world.supervise = lambda state: say("continue")
    start_loop(world, lock, cycles_max=2)
    world.run()
    assert EXHAUSTED == look(world)["status"]
    events = len(world.log)
    world.crash()
    start_loop(world, lock, cycles_max=2)
    world.run()

    assert EXHAUSTED == look(world)["status"] and events == len(world.log)
    assert {"x": 2, "note": None} == look(world)["cycles"][-1]["output"]


def test_failed_run_is_a_failed_cycle_that_supervise_may_rescue() -> None:
    world, lock = open_world()

    def broken(args: Any) -> Any:
        raise RuntimeError("broken")

    world.tools["echo"] = broken
    world.supervise = lambda state: say("done", state["cycles"][0]["status"])
    start_loop(world, lock)
    world.run()

    assert (DONE, "failed") == (look(world)["status"], look(world)["output"])
    assert None is look(world)["cycles"][0]["output"]


def test_cancelled_cycle_stops_the_loop_and_a_resume_takes_a_fresh_run() -> None:
    world, lock = open_world()
    world.hold = lambda tool: True
    start_loop(world, lock)
    world.run(until=lambda: any(c.session for c in world.children.values()))
    first = cycle_run_id(LOOP, 1)
    world.cancel(first)
    world.run()
    assert STOPPED == look(world)["status"] and "cancelled" == look(world)["error"]["causeCode"]
    world.crash()  # by itself it isn't driven again
    world.run()
    assert STOPPED == look(world)["status"]
    world.hold = None
    start_loop(world, lock)
    world.run()

    assert (DONE, FIXED) == (look(world)["status"], look(world)["output"])
    runs = [cycle["runId"] for cycle in look(world)["cycles"]]
    assert [cycle_run_id(LOOP, 1, 1), cycle_run_id(LOOP, 2)] == runs


def test_cycle_that_timed_out_stops_the_loop() -> None:
    world, lock = open_world()
    world.hold = lambda tool: True
    start_loop(world, lock, deadlineMs=1_000)
    world.run()

    assert (STOPPED, "timeout") == (look(world)["status"], look(world)["error"]["causeCode"])


def test_supervise_that_raises_stops_the_loop_and_a_resume_asks_it_again() -> None:
    world, lock = open_world()

    def broken(state: Any) -> Any:
        raise RuntimeError("no idea")

    world.supervise = broken
    start_loop(world, lock)
    world.run()
    error = look(world)["error"]
    assert (STOPPED, "supervise_failed") == (look(world)["status"], error["code"])
    assert "runtime_config_error" == error["causeCode"]
    world.supervise = two_cycles
    start_loop(world, lock)
    world.run()

    assert (DONE, FIXED) == (look(world)["status"], look(world)["output"])
    assert world.supervised[0] == world.supervised[1]


def test_final_output_has_to_fit_the_workflows_schema() -> None:
    world, lock = open_world()
    lock["lwir"]["output"] = {"schema": {"type": "array"}}
    lock["lwir"]["steps"][0]["with"]["args"] = {}
    lock["lwir"]["output"]["schema"] = {"type": "object"}
    world.supervise = lambda state: say("done", "text")
    start_loop(world, lock)
    world.run()

    assert (STOPPED, "step_schema_error") == (
        look(world)["status"],
        look(world)["error"]["causeCode"],
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cycles_max": 4, "goal": {**GOAL, "description": "x"}, "input": 5}, "max_cycles"),
        ({"goal": {**GOAL, "description": "x"}, "input": 5}, "goal"),
        ({"input": 5}, "input"),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_resume_with_another_loop_is_refused_in_the_order_of_the_checks(
    change: dict[str, Any], code: str, ended: bool
) -> None:
    world, lock = open_world()
    if not ended:
        world.hold = lambda tool: True
    start_loop(world, lock)
    world.run(until=None if ended else lambda: any(c.session for c in world.children.values()))
    before = (len(world.log), world.manifests[LOOP])
    answer = start_loop(world, lock, **change)

    assert f"outer_loop_{code}_mismatch" == answer.error.code
    assert "runtime_config_error" == answer.error.cause_code
    assert before == (len(world.log), world.manifests[LOOP])


def test_manifest_without_input_hash_takes_it_from_its_runs() -> None:
    world, lock = open_world()
    start_loop(world, lock)
    world.run()
    legacy = world.kernel.system.loops[LOOP].manifest()
    del legacy["inputHash"]
    world.manifests[LOOP] = dump_manifest(legacy)
    world.crash()

    assert "outer_loop_input_mismatch" == start_loop(world, lock, input=5).error.code
    assert start_loop(world, lock).error is None


def test_manifest_without_input_hash_and_runs_takes_the_calls_input() -> None:
    world, lock = open_world()
    legacy = {"outerLoopId": LOOP, "goal": GOAL, "maxCycles": 3, "cycles": []}
    world.manifests[LOOP] = dump_manifest(legacy)
    world.crash()
    answer = start_loop(world, lock)
    world.run()

    assert answer.error is None
    assert (DONE, FIXED) == (look(world)["status"], look(world)["output"])
    assert hash_value({"x": 3}) == world.kernel.system.loops[LOOP].input_hash


def test_second_caller_joins_and_supervise_is_asked_once_for_each_cycle() -> None:
    world, lock = open_world()
    start_loop(world, lock)
    answer = start_loop(world, lock)
    world.run()

    assert answer.result["attached"]
    assert 2 == len(world.supervised)
    assert (DONE, FIXED) == (look(world)["status"], look(world)["output"])


def test_first_recorded_answer_counts_whatever_supervise_would_say_later() -> None:
    """Cut behind OuterLoopCycleCompleted and before its manifest: it is made from the event."""
    quiet, lock = open_world()
    start_loop(quiet, lock)
    quiet.run()
    kinds = [decode_event(body).type for body in quiet.log]
    at = max(n for n, kind in enumerate(kinds) if kind == "OuterLoopCycleCompleted")
    world, lock = open_world()
    world.supervise = lambda state: say("done", "something else")
    world.log, world.library.blobs = quiet.log[: at + 1], dict(quiet.library.blobs)
    pending = dict(quiet.kernel.system.loops[LOOP].manifest())
    pending["cycles"] = pending["cycles"][:1]
    del pending["result"]
    pending["pendingCycleRunId"] = cycle_run_id(LOOP, 2)
    world.manifests[LOOP] = dump_manifest(pending)
    world.crash()
    world.run()

    assert (DONE, FIXED) == (look(world)["status"], look(world)["output"])
    assert not world.supervised
    assert world.manifests[LOOP] == quiet.manifests[LOOP]
