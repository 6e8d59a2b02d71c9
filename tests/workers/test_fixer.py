"""The fixer: sources that it tries, effects that aren't done twice, and its replay in each turn."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart, ToolReturnPart

from planaria.calls import current_call

from .memory_supervisor import (
    MemorySupervisor,
    MemoryTool,
    Process,
    ProcessExit,
    SessionLog,
    carry,
    code_step,
    make_definition,
    make_delivery,
)
from .scripted_model import ScriptedModel, call, say

BROKEN = "send(to='a')\nlook(n=input)['missing']"
HALF = "send(to='a')\nlook(n=input)['miss']"
GOOD = "letter = send(to='a')\n{'letter': letter, 'n': look(n=input)['n']}"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Outside:
    """The world that effects happen in."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def look(self, n: int) -> dict[str, int]:
        return {"n": n}

    def send(self, to: str) -> str:
        self.sent.append(current_call().idempotency_key)
        return f"letter to {to}"

    def definition(self, model: Any, effect: str = "idempotent") -> Any:
        return make_definition(
            MemoryTool("look", self.look, description="Looks it up."),
            MemoryTool("send", self.send, effect=effect),
            models={"smart": model},
        )


def fix_delivery(**more: Any) -> dict[str, Any]:
    step = code_step(BROKEN, "look", "send", output={"mode": "json", "schema": SCHEMA})
    fix = {
        "number": 1,
        "attemptsMax": 2,
        "source": BROKEN,
        "error": {"name": "SandboxError", "message": "KeyError: 'missing'"},
        "earlier": [{"source": HALF, "error": {"name": "SandboxError", "message": "worse"}}],
        "fixer": {"model": "smart", "maxAttempts": 2, "instructions": "Be brief."},
        **more.pop("fix", {}),
    }
    about = {"role": "fixer", "task": "fix_step", "fix": fix, "input": 7}
    return make_delivery(step, **{**about, **more})


def fix(
    model: ScriptedModel,
    tmp_path: Path,
    outside: Outside | None = None,
    log: SessionLog | None = None,
    effect: str = "idempotent",
    **more: Any,
) -> SessionLog:
    log = log or SessionLog(fix_delivery(**more))
    definition = (outside or Outside()).definition(model, effect)
    return carry(log.delivery["step"], definition, tmp_path, log=log)


def attempt(source: str, label: str = "t") -> list[ToolCallPart]:
    return [call("try_source", label, source=source)]


def submit(source: Any) -> list[ToolCallPart]:
    return [call("submit_source", "s", source=source)]


def end_of(log: SessionLog, how: str) -> Any:
    assert log.end is not None and log.end.type == f"harness.fix_step.{how}", log.end
    return log.end.payload


def results(model: ScriptedModel) -> list[Any]:
    return [p.content for m in model.requests[-1] for p in m.parts if isinstance(p, ToolReturnPart)]


def calls_of(log: SessionLog) -> list[dict[str, Any]]:
    return [e.payload for e in log.own_events() if e.type == "harness.tool_call.started"]


def test_tried_source_is_the_result_and_isnt_run_again(tmp_path: Path) -> None:
    outside = Outside()
    model = ScriptedModel(attempt(HALF), attempt(GOOD), submit(GOOD))
    log = fix(model, tmp_path, outside)

    assert {
        "output": {"letter": "letter to a", "n": 7},
        "metadata": {"fixedSource": GOOD},
    } == end_of(log, "succeeded")
    assert ["t1.0", "t1.0.c0", "t1.0.c1", "t2.0", "t2.0.c0", "t2.0.c1"] == [
        c["position"] for c in calls_of(log)
    ]
    first, second = results(model)
    assert "raised" == first["error"]["kind"] and "KeyError" in first["error"]["message"]
    assert {"output": {"letter": "letter to a", "n": 7}} == second


def test_effect_of_an_earlier_try_is_answered_from_the_record(tmp_path: Path) -> None:
    outside = Outside()
    log = fix(
        ScriptedModel(attempt(HALF), attempt(GOOD), submit("x = 1\n" + GOOD)), tmp_path, outside
    )

    assert 1 == len(outside.sent)
    keys = {c["idempotencyKey"] for c in calls_of(log) if c["toolName"] == "send"}
    assert set(outside.sent) == keys
    assert 7 == end_of(log, "succeeded")["output"]["n"]
    assert ["c0", "c1"] == [c["position"] for c in calls_of(log)][-2:]


def test_equal_calls_of_one_try_are_different_effects(tmp_path: Path) -> None:
    outside = Outside()
    twice = "send(to='a')\nsend(to='a')\n{'n': 1}"
    fix(ScriptedModel(attempt(twice), attempt(twice), submit(twice + "\n")), tmp_path, outside)

    assert 2 == len(outside.sent) == len(set(outside.sent))


def test_effect_of_the_failed_attempt_is_handed_over(tmp_path: Path) -> None:
    outside = Outside()
    log = fix(ScriptedModel(submit(GOOD)), tmp_path, outside)
    [key] = outside.sent
    again = Outside()
    inherited = {key: {"v": "letter of before"}}
    log = fix(ScriptedModel(submit(GOOD)), tmp_path, again, inherited=inherited)

    assert [] == again.sent
    assert "letter of before" == end_of(log, "succeeded")["output"]["letter"]


def test_effect_of_the_run_that_this_one_was_forked_from_is_handed_over(tmp_path: Path) -> None:
    outside = Outside()
    fix(ScriptedModel(submit(GOOD)), tmp_path, outside)
    [key] = outside.sent
    again = Outside()
    log = fix(
        ScriptedModel(submit(GOOD)),
        tmp_path,
        again,
        inherited={key: {"v": "letter of the other run"}},
        runId="run_2",
        origins=[["run_0", "wv_0"], ["run_1", "wv_1"]],
    )

    assert [] == again.sent
    assert "letter of the other run" == end_of(log, "succeeded")["output"]["letter"]


def test_two_tries_of_one_turn_follow_each_other(tmp_path: Path) -> None:
    outside = Outside()
    model = ScriptedModel([*attempt(GOOD, "a"), *attempt(GOOD + "\n", "b")], submit(GOOD))
    log = fix(model, tmp_path, outside)

    assert 1 == len(outside.sent)
    positions = [c["position"] for c in calls_of(log)]
    assert ["t1.0", "t1.0.c0", "t1.0.c1", "t1.1", "t1.1.c0", "t1.1.c1"] == positions


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_fixer_cut_after_every_report_ends_the_same(effect: str, tmp_path: Path) -> None:
    turns = (attempt(HALF), attempt(GOOD), submit("x = 1\n" + GOOD))
    whole = fix(ScriptedModel(*turns), tmp_path, effect=effect)
    by_position = {c["position"]: c for c in calls_of(whole)}

    for reported in range(whole.reported):
        log = whole.cut(reported)
        answered = log.kinds().count("model.responded")
        known = {c["toolName"]: c["callId"] not in log.open_calls for c in calls_of(log)}
        model, outside = ScriptedModel(*turns), Outside()
        fix(model, tmp_path, outside, log, effect)

        assert log.end is not None and whole.end is not None
        assert whole.end.payload == log.end.payload, reported
        assert 3 - answered == len(model.requests), reported
        assert by_position == {c["position"]: c for c in calls_of(log)}, reported
        if effect == "idempotent":
            assert (0 if known.get("send") else 1) == len(outside.sent), reported
        assert 0 == log.kinds().count("warning")


def test_source_that_fails_again_is_told(tmp_path: Path) -> None:
    payload = end_of(fix(ScriptedModel(submit(HALF)), tmp_path), "failed")

    assert "KeyError" in payload["error"]["message"]
    assert "step_failed" == payload["error"]["causeCode"]
    assert {"fixedSource": HALF} == payload["metadata"]


def test_output_that_does_not_fit_is_a_schema_error(tmp_path: Path) -> None:
    model = ScriptedModel(attempt("{'n': 'x'}"), submit("{'n': 'x'}"))
    payload = end_of(fix(model, tmp_path), "failed")

    assert "step_schema_error" == payload["error"]["causeCode"]
    assert "$.n" in payload["error"]["message"]
    assert "$.n" in results(model)[0]["findings"]


def test_fixer_without_a_source_says_so(tmp_path: Path) -> None:
    payload = end_of(fix(ScriptedModel(*[say("I can't.")] * 6), tmp_path), "failed")

    assert {"fixedSource": None} == payload["metadata"]


@pytest.mark.parametrize("wrong", [None, 3, "#" * 20_001])
def test_answer_that_is_no_source_is_asked_for_again(wrong: Any, tmp_path: Path) -> None:
    log = fix(ScriptedModel(submit(wrong), submit("{'n': 1}")), tmp_path)

    assert {"n": 1} == end_of(log, "succeeded")["output"]


def test_prompt_has_what_failed_and_what_there_is(tmp_path: Path) -> None:
    model = ScriptedModel(submit("{'n': 1}"))
    fix(model, tmp_path, tools={"look": {"parameters": {"marker": 1}}})

    prompt = str(model.requests[0][0].parts[0].content)
    told = (BROKEN, "KeyError: 'missing'", HALF, "worse", "Its input:\n7", "Looks it up.", "marker")
    for fact in told:
        assert fact in prompt
    instructions = str(model.requests[0][0].instructions)
    assert "datetime" in instructions and instructions.endswith("Be brief.")


def test_sensitive_source_is_not_told(tmp_path: Path) -> None:
    payload = end_of(fix(ScriptedModel(submit(HALF)), tmp_path, sensitive=True), "failed")

    assert {"fixedSource": None} == payload["metadata"]


@pytest.mark.parametrize("reason", ["shutdown", "cancel"])
def test_fixer_that_is_stopped_in_a_try_settles_its_effect_and_leaves(
    reason: str, tmp_path: Path
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def send(to: str) -> str:
        begun.set()
        await release.wait()
        return "sent"

    turns = (attempt("send(to='a')\nsend(to='b')\n{'n': 1}"), submit("{'n': 1}"))
    log = SessionLog(fix_delivery())

    async def run() -> None:
        supervisor = MemorySupervisor()
        definition = Outside().definition(ScriptedModel(*turns))
        definition.tools["send"] = MemoryTool("send", send, effect="once")
        process = Process(supervisor, tmp_path, definition)
        carrying = asyncio.ensure_future(process.carry(log))
        await begun.wait()
        supervisor.stop(reason)
        await asyncio.sleep(0)
        release.set()
        if reason == "shutdown":
            with pytest.raises(ProcessExit) as ended:
                await carrying
            assert 0 == ended.value.args[0]
        else:
            await carrying
        await process.stop()

    asyncio.run(run())

    effects = [c["callId"] for c in calls_of(log) if c["toolName"] == "send"]
    assert 1 == len(effects) and not log.open_calls & set(effects)
    if reason == "shutdown":
        outside = Outside()
        fix(ScriptedModel(*turns), tmp_path, outside, log, "once")
        assert 1 == len(outside.sent)
        assert {"n": 1} == end_of(log, "succeeded")["output"]
    else:
        assert "cancelled" == end_of(log, "failed")["error"]["causeCode"]
