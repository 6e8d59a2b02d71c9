"""Planners, orchestrators, fixers and sub-runs, cut at every append, action and message."""

from typing import Any

import pytest
from programs import call, document
from test_programs import make_tools
from world import World

from planaria.protocol.events import decode_event
from planaria.protocol.ids import sub_run_id

MODELS = {"fast": {"model": "sim", "descriptorHash": "sha256:0"}}
DEFINITION = {"id": "sim", "description": "", "permissions": {"models": [], "tools": ["echo"]}}


def describe_tools(*names: str) -> dict[str, Any]:
    return {name: {"effect": "read"} for name in names}


def steps_lock(name: str, *steps: dict[str, Any], workflows: Any = None) -> dict[str, Any]:
    made = document(*steps, metadata={"name": name})
    made["permissions"] = {"models": [], "tools": ["echo"], "workflows": sorted(workflows or ())}
    lock = {"lwir": made, "tools": describe_tools("echo"), "models": {}}
    return {**lock, "workflows": workflows} if workflows else lock


def entry(lock: dict[str, Any]) -> dict[str, Any]:
    return {"definitionHash": "sha256:1", "description": "", "lock": lock}


def planned_lock(name: str = "sim", **more: Any) -> dict[str, Any]:
    planner = {"model": "fast", "instructions": "", "maxRevisions": 3, "maxTurns": 25}
    definition = {**DEFINITION, "id": name}
    tools = describe_tools("echo")
    return {"planner": planner, "definition": definition, "tools": tools, "models": MODELS, **more}


def orchestrated_lock(workflows: dict[str, Any], cap: int = 10) -> dict[str, Any]:
    agent = {"model": "fast", "instructions": "", "maxTurns": 25, "maxConcurrentSubRuns": cap}
    lock = {"orchestrator": agent, "definition": DEFINITION, "tools": describe_tools("echo")}
    return {**lock, "models": MODELS, "workflows": workflows}


def draft(name: str = "sim") -> dict[str, Any]:
    made = document(call("a", args={"x": "{{ input.x }}"}), metadata={"name": name})
    del made["input"], made["output"]
    made["permissions"] = {"models": [], "tools": ["echo"]}
    return made


CALL = {
    "id": "sub",
    "uses": "workflow.call",
    "needs": ["a"],
    "with": {"workflow": "inner", "input": {"x": "{{ steps.a.output.x }}"}},
}


def plan_program(world: World) -> dict[str, Any]:
    """Turn 0 asks a read tool, turn 1 emits the draft."""
    world.model = lambda spec, turn, results: (
        {"calls": [["echo", {"look": 1}]]} if turn == 0 else {"output": draft()}
    )
    return planned_lock()


def call_program(world: World) -> dict[str, Any]:
    inner = steps_lock("inner", call("b", args={"x": "{{ input.x + 1 }}"}))
    return steps_lock(
        "sim", call("a", args={"x": "{{ input.x }}"}), CALL, workflows={"inner": entry(inner)}
    )


def orchestrate_program(world: World) -> dict[str, Any]:
    """Plans once, runs that version three times side by side, then starts one and answers."""

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        if spec["role"] == "planner":
            return {"output": draft("inner")}
        if turn == 0:
            return {"calls": [["plan_workflow", {"workflowId": "inner"}]]}
        if turn == 1:
            version = results[0]["workflowVersionId"]
            return {
                "calls": [
                    ["run_workflow", {"workflowVersionId": version, "input": {"x": n}}]
                    for n in range(3)
                ]
            }
        if turn == 2:
            return {"calls": [["start_workflow", {"workflowId": "fixed", "input": {"x": 9}}]]}
        return {"output": [entry["output"]["x"] for entry in results[1:]]}

    world.model = model
    fixed = steps_lock("fixed", call("b", args={"x": "{{ input.x }}"}))
    return orchestrated_lock({"inner": entry(planned_lock("inner")), "fixed": entry(fixed)}, cap=2)


def fix_program(world: World) -> dict[str, Any]:
    """The code fails, the first fix too; the second one tries a tool and gives an output."""
    code = {
        "id": "c",
        "uses": "code.run",
        "with": {"source": "wrong"},
        "onFailure": {"fixer": {"model": "fast", "maxAttempts": 2}},
    }

    def model(spec: dict[str, Any], turn: int, results: list[Any]) -> dict[str, Any]:
        number = spec["fix"]["number"]
        if number == 1:
            return {"error": "no good", "metadata": {"fixedSource": "worse"}}
        assert [e["source"] for e in spec["fix"]["earlier"]] == ["worse"]
        if turn == 0:
            return {"calls": [["echo", {"x": 5}]]}
        return {"output": results[0], "metadata": {"fixedSource": "right"}}

    world.model = model

    def answer(path: str, attempt: int, asked: Any) -> Any:
        raise RuntimeError("wrong source")

    world.tools["broken"] = lambda args: answer("", 0, None)
    code["with"]["tools"] = ["broken"]
    lock = steps_lock("sim", code)
    lock["lwir"]["permissions"] = {"models": ["fast"], "tools": ["broken", "echo"]}
    lock["tools"] = describe_tools("broken", "echo")
    return {**lock, "models": MODELS}


PROGRAMS = {
    "plan": plan_program,
    "call": call_program,
    "orchestrate": orchestrate_program,
    "fix": fix_program,
}
EXPECTED = {
    "plan": {"x": 3},
    "call": {"x": 4},
    "orchestrate": [0, 1, 2, 9],
    "fix": {"x": 5},
}


def start(name: str, seed: int | None = None) -> tuple[World, Any]:
    world = World(make_tools(), seed=seed)
    lock = PROGRAMS[name](world)
    return world, lambda: world.admit_lock(lock, {"x": 3})


def check_end(world: World, name: str, where: str) -> None:
    runs = world.fold_log()
    for run in runs.values():
        assert run.is_ended, (where, run.run_id, run.status, list(run.owed))
        assert not run.sessions and not run.owed and not run.sub_runs, where
    assert (runs["run_1"].status, runs["run_1"].output) == ("completed", EXPECTED[name]), where
    ends = [
        e.payload["callId"]
        for e in (e for run_id in runs for e in world.events(run_id))
        if e.type in ("harness.tool_call.succeeded", "harness.model.responded")
    ]
    assert len(ends) == len(set(ends)), where
    deaths = world.supervisor_crashes + world.child_kills
    extra = sum(count - 1 for count in world.ledger.count().values())
    assert extra <= deaths * 3, (where, "calls were made again without a death")


@pytest.mark.parametrize("name", PROGRAMS)
def test_role_ends_undisturbed(name: str) -> None:
    world, admit = start(name)
    admit()
    world.run()

    check_end(world, name, "undisturbed")


@pytest.mark.parametrize("name", PROGRAMS)
def test_supervisor_killed_at_every_point_of_a_role_changes_nothing(name: str) -> None:
    quiet, admit = start(name)
    admit()
    quiet.run()
    for point in range(1, quiet.points + 1):
        world, admit = start(name)
        world.crash_at = point
        admit()
        world.run()

        assert world.supervisor_crashes == 1, f"point {point} was never reached"
        check_end(world, name, f"point {point}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_child_of_a_role_killed_at_every_point_changes_nothing(name: str) -> None:
    quiet, admit = start(name)
    admit()
    quiet.run()
    for point in range(1, quiet.child_points + 1):
        world, admit = start(name)
        world.kill_child_at = point
        admit()
        world.run()

        assert world.child_kills == 1, f"point {point} was never reached"
        check_end(world, name, f"point {point}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_prefix_of_a_roles_log_reaches_its_end(name: str) -> None:
    quiet, admit = start(name)
    admit()
    quiet.run()
    for length in range(2, len(quiet.log)):
        world, _ = start(name)
        last = decode_event(quiet.log[length - 1])
        if last.type == "RunAdmitted" and "definitionRef" not in last.payload:
            continue  # it and its version are one commit
        world.log = quiet.log[:length]
        world.library.blobs = dict(quiet.library.blobs)
        world.crash()
        world.run()

        check_end(world, name, f"prefix {length}")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(20))
def test_lost_repeated_and_late_messages_of_a_role_change_nothing(name: str, seed: int) -> None:
    world, admit = start(name, seed)
    world.lossy = True
    admit()
    world.run()

    check_end(world, name, f"seed {seed}")


def test_sub_run_id_is_reserved_before_anything_starts() -> None:
    world, admit = start("call")
    admit()
    world.run()
    order = [(e.run_id, e.type) for e in map_events(world)]
    sub_run = sub_run_id("run_1", "sub", 1)

    requested = order.index(("run_1", "SubRunRequested"))
    assert order.index((sub_run, "RunAdmitted")) == requested + 1
    assert order.index(("run_1", "SubRunSettled")) > order.index((sub_run, "RunCompleted"))


def map_events(world: World) -> list[Any]:
    return [decode_event(body) for body in world.log]
