"""The orchestrator: sub-runs that the supervisor carries out, waited for over any death."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ToolReturnPart

from planaria.protocol.effects import SUB_RUN_TOOLS
from planaria.protocol.ids import call_id, sub_run_id

from .memory_supervisor import (
    RUN_ID,
    MemorySupervisor,
    MemoryTool,
    Process,
    ProcessExit,
    SessionLog,
    carry,
    make_definition,
    make_delivery,
)
from .scripted_model import ScriptedModel, Turn, call, say

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WORKFLOWS = {
    "double": {"description": "Doubles.", "input": NUMBER, "isPlanned": True},
    "tell": {"description": "Tells.", "isPlanned": False},
}
STEP = {
    "id": ".orchestrate",
    "uses": "orchestrate",
    "with": {"model": "smart", "instructions": "Be brief."},
}
FAN_OUT: tuple[Turn, ...] = (
    [call("plan_workflow", "p", workflowId="double")],
    [
        call("run_workflow", "a", workflowVersionId="wv_double", input={"n": 1}),
        call("run_workflow", "b", workflowVersionId="wv_double", input={"n": 2}),
        call("start_workflow", "c", workflowId="tell", input=None),
    ],
    say("done"),
)


def delivery(output: Any = None, **more: Any) -> dict[str, Any]:
    definition: dict[str, Any] = {
        "id": "boss",
        "description": "Lead.",
        "permissions": {"models": ["smart"], "tools": ["look"], "workflows": list(WORKFLOWS)},
    }
    if output is not None:
        definition["output"] = {"schema": output}
    given = {"definition": definition, "workflows": WORKFLOWS}
    about = {"role": "orchestrator", "task": "orchestrate", "definition": given}
    return make_delivery(STEP, input="all", tools={"look": {}}, **about, **more)


def definition_of(model: Any, look: Any = lambda: 1) -> Any:
    return make_definition(MemoryTool("look", look), models={"smart": model})


def answer(payload: dict[str, Any]) -> Any:
    if payload["toolName"] == "plan_workflow":
        return {"workflowVersionId": "wv_" + payload["args"]["workflowId"]}
    output = payload["args"].get("input")
    return {"subRunId": payload["args"]["subRunId"], "status": "completed", "output": output}


def answer_at_once(
    supervisor: MemorySupervisor, log: SessionLog, kind: str, payload: dict[str, Any]
) -> None:
    if kind == "harness.tool_call.started" and payload["effect"] == "managed":
        supervisor.settle(log, payload["callId"], answer(payload))


def orchestrate(*turns: Turn, tmp_path: Path, **more: Any) -> tuple[SessionLog, ScriptedModel]:
    model = ScriptedModel(*turns)
    log = more.pop("log", None) or SessionLog(delivery(**more))
    carry(STEP, definition_of(model), tmp_path, log=log, on_recorded=answer_at_once)
    return log, model


def output_of(log: SessionLog) -> Any:
    assert log.end is not None and log.end.type == "harness.orchestrate.succeeded", log.end
    return log.end.payload["output"]


def returned(messages: list[ModelMessage]) -> list[Any]:
    return [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]


def calls_of(log: SessionLog) -> list[dict[str, Any]]:
    return [e.payload for e in log.own_events() if e.type == "harness.tool_call.started"]


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_model_gets_what_its_sub_runs_gave(tmp_path: Path) -> None:
    log, model = orchestrate(*FAN_OUT, tmp_path=tmp_path)

    assert "done" == output_of(log)
    results = returned(model.requests[-1])
    assert {"workflowVersionId": "wv_double"} == results[0]
    assert [{"n": 1}, {"n": 2}, None] == [result["output"] for result in results[1:]]


def test_intent_reserves_the_id_of_the_sub_run_at_the_position_of_the_call(tmp_path: Path) -> None:
    log, _ = orchestrate(*FAN_OUT, tmp_path=tmp_path)

    calls = calls_of(log)
    assert ["t1.0", "t2.0", "t2.1", "t2.2"] == sorted(c["position"] for c in calls)
    for started in calls:
        own = call_id("hs_1", started["position"])
        assert ("model", "managed", own) == tuple(
            started[name] for name in ("caller", "effect", "callId")
        )
        assert sub_run_id(RUN_ID, own) == started["args"]["subRunId"]
    assert {"workflowVersionId", "input", "subRunId"} == calls[1]["args"].keys()
    assert 0 == sum(kind == "tool_call.succeeded" for kind in log.kinds())


def test_calls_of_one_turn_are_side_by_side_and_answered_in_any_order(tmp_path: Path) -> None:
    model = ScriptedModel(*FAN_OUT)

    async def run() -> SessionLog:
        supervisor = MemorySupervisor()
        process = Process(supervisor, tmp_path, definition_of(model))
        log = SessionLog(delivery())
        carrying = asyncio.ensure_future(process.carry(log))
        await wait_for(lambda: len(calls_of(log)) == 1)
        supervisor.settle(log, calls_of(log)[0]["callId"], {"workflowVersionId": "wv_double"})
        await wait_for(lambda: len(calls_of(log)) == 4)
        for started in reversed(calls_of(log)[1:]):
            supervisor.settle(log, started["callId"], answer(started))
        await carrying
        await process.stop()
        return log

    log = asyncio.run(run())

    assert "done" == output_of(log)
    outputs = [r["output"] for r in returned(model.requests[-1])[1:]]
    assert [{"n": 1}, {"n": 2}, None] == outputs


def test_session_is_put_away_while_it_waits_and_goes_on(tmp_path: Path) -> None:
    log = SessionLog(delivery())

    async def first() -> None:
        supervisor = MemorySupervisor()
        process = Process(supervisor, tmp_path, definition_of(ScriptedModel(*FAN_OUT)))
        carrying = asyncio.ensure_future(process.carry(log))
        await wait_for(lambda: len(calls_of(log)) == 1)
        supervisor.stop("shutdown")
        with pytest.raises(ProcessExit) as ended:
            await carrying
        assert 0 == ended.value.args[0]
        [open_call] = log.open_calls
        supervisor.settle(log, open_call, {"workflowVersionId": "wv_double"}, is_told=False)
        await process.stop()

    asyncio.run(first())
    log, model = orchestrate(*FAN_OUT[:], tmp_path=tmp_path, log=log)

    assert "done" == output_of(log)
    assert 2 == len(model.requests)


def test_answer_that_comes_before_its_question_is_replayed_is_kept(tmp_path: Path) -> None:
    log = SessionLog(delivery())
    whole, _ = orchestrate(*FAN_OUT, tmp_path=tmp_path)
    log = whole.cut(whole.kinds().index("tool_call.started") + 1)
    log.bodies = [body for body, e in zip(log.bodies, log.events(), strict=True) if e.incarnation]
    [open_call] = [c["callId"] for c in calls_of(log)]
    log.open_calls = {open_call}

    async def run() -> None:
        supervisor = MemorySupervisor()
        supervisor.on_recorded = lambda *event: answer_at_once(supervisor, *event)
        process = Process(supervisor, tmp_path, definition_of(ScriptedModel(*FAN_OUT)))
        carrying = asyncio.ensure_future(process.carry(log))
        await wait_for(lambda: "session.resumed" in log.kinds())
        supervisor.settle(log, open_call, {"workflowVersionId": "wv_double"})
        await carrying
        await process.stop()

    asyncio.run(run())

    assert "done" == output_of(log)


def test_cancelled_session_does_not_wait_for_its_sub_runs(tmp_path: Path) -> None:
    async def run() -> SessionLog:
        supervisor = MemorySupervisor()
        process = Process(supervisor, tmp_path, definition_of(ScriptedModel(*FAN_OUT)))
        log = SessionLog(delivery())
        carrying = asyncio.ensure_future(process.carry(log))
        await wait_for(lambda: len(calls_of(log)) == 1)
        supervisor.stop("cancel")
        await carrying
        await process.stop()
        return log

    log = asyncio.run(run())

    assert log.end is not None and "harness.orchestrate.failed" == log.end.type
    assert "cancelled" == log.end.payload["error"]["causeCode"]


def test_orchestrator_cut_after_every_report_ends_the_same(tmp_path: Path) -> None:
    whole, _ = orchestrate(*FAN_OUT, tmp_path=tmp_path)
    assert whole.end is not None
    by_position = {c["position"]: c for c in calls_of(whole)}

    for reported in range(whole.reported):
        log = whole.cut(reported)
        answered = log.kinds().count("model.responded")
        for started in calls_of(log):
            if started["callId"] in log.open_calls:
                supervisor = MemorySupervisor()
                supervisor.logs["hs_1"] = log
                supervisor.settle(log, started["callId"], answer(started), is_told=False)
        log, model = orchestrate(*FAN_OUT, tmp_path=tmp_path, log=log)

        assert log.end is not None and whole.end.payload == log.end.payload, reported
        assert by_position == {c["position"]: c for c in calls_of(log)}, reported
        assert 3 - answered == len(model.requests), reported
        assert 0 == log.kinds().count("warning")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (call("plan_workflow", "x", workflowId="gone"), "no workflow 'gone'; there are: double"),
        (call("start_workflow", "x", workflowId="gone", input=1), "no workflow 'gone'"),
        (call("start_workflow", "x", workflowId="double", input={"n": "1"}), "$.n"),
        (call("start_workflow", "x", workflowId="double"), "does not fit the workflow's schema"),
        (call("run_workflow", "x", workflowVersionId="wv_x", input={"n": 1}), "no version 'wv_x'"),
    ],
)
def test_what_cannot_start_is_answered_before_anything_is_recorded(
    wrong: Any, text: str, tmp_path: Path
) -> None:
    log, model = orchestrate([wrong], say("I see"), tmp_path=tmp_path)

    assert "I see" == output_of(log)
    assert [] == calls_of(log)
    assert text in str(model.requests[1][-1].parts[0])


def test_version_of_the_same_turn_is_not_known_yet(tmp_path: Path) -> None:
    log, _ = orchestrate(
        [
            call("plan_workflow", "a", workflowId="tell"),
            call("run_workflow", "b", workflowVersionId="wv_tell"),
        ],
        [call("run_workflow", "c", workflowVersionId="wv_tell")],
        say("done"),
        tmp_path=tmp_path,
    )

    assert ["t1.0", "t2.0"] == [c["position"] for c in calls_of(log)]


def test_own_tools_work_beside_the_built_in_ones(tmp_path: Path) -> None:
    log, model = orchestrate(
        [call("look", "a"), call("start_workflow", "b", workflowId="tell", input=5)],
        say("done"),
        tmp_path=tmp_path,
    )

    assert [1, 5] == [
        r["output"] if isinstance(r, dict) else r for r in returned(model.requests[1])
    ]
    assert "done" == output_of(log)


def test_instructions_list_the_workflows_and_the_prompt_has_the_input(tmp_path: Path) -> None:
    _, model = orchestrate(say("done"), tmp_path=tmp_path)

    first = model.requests[0][0]
    instructions = str(first.instructions)
    assert "- double: Doubles." in instructions and '"integer"' in instructions
    assert instructions.endswith("Be brief.")
    assert "Lead.\n\nInput:\nall" == first.parts[0].content


@pytest.mark.parametrize(
    ("schema", "turn", "expected"),
    [
        (NUMBER, [call("final_result", "f", n=1)], {"n": 1}),
        ({"type": "array", "items": {}}, [call("final_result", "f", items=[1])], [1]),
        ({"type": "string"}, say("text"), "text"),
        ({"type": ["integer", "null"]}, [call("final_result", "f", value=None)], None),
    ],
)
def test_output_follows_the_schema_of_the_definition(
    schema: Any, turn: Any, expected: Any, tmp_path: Path
) -> None:
    log, _ = orchestrate(turn, tmp_path=tmp_path, output=schema)

    assert expected == output_of(log)


def test_tool_that_raises_does_not_wait_for_a_sub_run(tmp_path: Path) -> None:
    def fail() -> None:
        raise LookupError("none")

    model = ScriptedModel([call("look", "a"), call("start_workflow", "b", workflowId="tell")])
    log = SessionLog(delivery())
    carry(STEP, definition_of(model, fail), tmp_path, log=log)

    assert log.end is not None and "LookupError" == log.end.payload["error"]["name"]


def test_reserved_name_of_a_tool_is_a_configuration_error(tmp_path: Path) -> None:
    log = SessionLog(delivery())
    log.delivery["tools"] = {"plan_workflow": {}}
    log.delivery["definition"]["definition"]["permissions"]["tools"] = ["plan_workflow"]
    definition = make_definition(
        MemoryTool("plan_workflow", lambda: 1), models={"smart": ScriptedModel(say("x"))}
    )
    carry(STEP, definition, tmp_path, log=log)

    assert log.end is not None
    assert "runtime_config_error" == log.end.payload["error"]["causeCode"]


def test_built_in_tools_are_those_that_the_supervisor_knows(tmp_path: Path) -> None:
    _, model = orchestrate(say("done"), tmp_path=tmp_path)

    names = {tool.name for tool in model.infos[0].function_tools}
    assert SUB_RUN_TOOLS | {"look"} == names


def test_more_calls_than_a_session_may_have_open_wait_their_turn(tmp_path: Path) -> None:
    most = 0

    def watch(supervisor: MemorySupervisor, log: SessionLog, kind: str, payload: Any) -> None:
        nonlocal most
        most = max(most, len(log.open_calls))
        answer_at_once(supervisor, log, kind, payload)

    many = [call("start_workflow", f"c{n}", workflowId="tell", input=n) for n in range(100)]
    model = ScriptedModel(many, say("done"))
    log = SessionLog(delivery())
    carry(STEP, definition_of(model), tmp_path, log=log, on_recorded=watch)

    assert list(range(100)) == [r["output"] for r in returned(model.requests[1])]
    assert most <= 64


def test_outcome_that_comes_after_the_delivery_is_not_counted_as_delivered(tmp_path: Path) -> None:
    whole, _ = orchestrate(*FAN_OUT, tmp_path=tmp_path)
    log = whole.cut(whole.kinds().index("tool_call.started") + 1)
    log.bodies = [body for body, e in zip(log.bodies, log.events(), strict=True) if e.incarnation]
    [open_call] = log.open_calls = {calls_of(log)[0]["callId"]}
    delivered = 0

    async def run() -> None:
        nonlocal delivered
        supervisor = MemorySupervisor()
        supervisor.on_recorded = lambda *event: answer_at_once(supervisor, *event)
        process = Process(supervisor, tmp_path, definition_of(ScriptedModel(*FAN_OUT)))
        carrying = asyncio.ensure_future(process.carry(log))
        await asyncio.sleep(0)  # delivered, and nothing of the history is read yet
        delivered = len(log.bodies)
        supervisor.settle(log, open_call, {"workflowVersionId": "wv_double"})
        await carrying
        await process.stop()

    asyncio.run(run())

    [resumed] = [e.payload for e in log.events() if e.type == "harness.session.resumed"]
    assert delivered == resumed["replayedEvents"]
    assert "done" == output_of(log)


def test_input_that_is_no_json_is_answered(tmp_path: Path) -> None:
    wrong = call("start_workflow", "x", workflowId="tell", input=float("nan"))
    log, _ = orchestrate([wrong], say("I see"), tmp_path=tmp_path)

    assert "I see" == output_of(log)
