"""The planner: what it is told, how its draft is completed and checked, and its replay."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ToolCallPart

from planaria.protocol.lwir import validate_lwir
from planaria.protocol.lwir_fields import WITH_FIELDS
from planaria.workers.planner_guide import EXAMPLE, GUIDE

from .memory_supervisor import MemoryTool, SessionLog, carry, make_definition, make_delivery
from .scripted_model import ScriptedModel, say

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STEPS = [{"id": "look", "uses": "tool.call", "with": {"tool": "look", "args": {}}}]
WRONG = [{"id": "look", "uses": "tool.call", "with": {"tool": "loook", "args": {}}}]
TOOL = {
    "effect": "read",
    "description": "Looks around.",
    "parameters": {"type": "object", "properties": {}},
}


def plan_step(**planner: Any) -> dict[str, Any]:
    return {"id": ".plan", "uses": "plan", "with": {"model": "smart", **planner}}


def plan_delivery(step: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {
        "definition": {
            "id": "wf",
            "description": "Find the number.",
            "input": {"schema": SCHEMA},
            "permissions": {"models": ["smart"], "tools": ["look"], "workflows": ["other"]},
        },
        "workflows": {"other": {"description": "Does more.", "isPlanned": False}},
    }
    return make_delivery(
        step,
        input={"n": "SECRET INPUT"},
        **{
            "role": "planner",
            "task": "plan",
            "definition": given,
            "tools": {"look": TOOL},
            "models": {"smart": {"model": "test:model", "descriptorHash": "x"}},
            **more,
        },
    )


def submit(**document: Any) -> list[ToolCallPart]:
    return [ToolCallPart("submit_workflow", document, tool_call_id="d")]


def plan(model: Any, tmp_path: Path, log: SessionLog | None = None, **more: Any) -> SessionLog:
    step = plan_step(**more.pop("planner", {}))
    log = log or SessionLog(plan_delivery(step, **more))
    definition = make_definition(MemoryTool("look", lambda: 1), models={"smart": model})
    return carry(step, definition, tmp_path, log=log)


def output_of(log: SessionLog) -> Any:
    assert log.end is not None and log.end.type == "harness.plan.succeeded", log.end
    return log.end.payload["output"]


def prompt_of(model: ScriptedModel) -> str:
    return "\n".join(str(part.content) for part in model.requests[0][0].parts)


def test_example_of_the_guide_is_a_valid_document() -> None:
    assert [] == validate_lwir(json.loads(EXAMPLE))


def test_guide_names_every_kind_that_runs_and_every_field_of_it() -> None:
    assert [] == [kind for kind in WITH_FIELDS if f"\n{kind} " not in GUIDE]


def test_draft_is_completed_with_what_the_definition_says(tmp_path: Path) -> None:
    drafted = {"schema": {"type": "string"}}
    document = output_of(plan(ScriptedModel(submit(steps=STEPS, input=drafted)), tmp_path))

    assert {
        "apiVersion": "lwir/v1",
        "kind": "Workflow",
        "metadata": {"name": "wf", "description": "Find the number."},
        "input": {"schema": SCHEMA},
        "permissions": {"models": ["smart"], "tools": ["look"], "workflows": ["other"]},
        "steps": STEPS,
    } == document


def test_planner_is_told_the_facts_and_nothing_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANARIA_TEST_KEY", "sesame")
    model = ScriptedModel(submit(steps=STEPS))
    plan(model, tmp_path, planner={"instructions": "Be brief."}, environment={"OTHER": "seed"})

    prompt = prompt_of(model)
    for fact in ("Find the number.", "Looks around.", "test:model", "Does more.", '"n"', "read"):
        assert fact in prompt
    asked = prompt + str(model.requests[0][0].instructions)
    assert not re.search("SECRET INPUT|sesame|seed|lambda", asked)
    assert str(model.requests[0][0].instructions).endswith("Be brief.")


def test_earlier_cycles_and_the_note_reach_the_planner(tmp_path: Path) -> None:
    prior = [{"cycleNumber": 1, "runId": "run_0", "status": "failed", "output": "x" * 30_000}]
    cycle = {"number": 2, "prior": prior, "note": "Try the archive."}
    model = ScriptedModel(submit(steps=STEPS))
    plan(model, tmp_path, context={"cycle": {"v": cycle}})

    prompt = prompt_of(model)
    assert "Try the archive." in prompt and "run_0" in prompt and "cut off" in prompt
    assert len(prompt) < 30_000


def test_findings_go_back_to_the_same_session(tmp_path: Path) -> None:
    model = ScriptedModel(
        submit(steps=WRONG), submit(steps=STEPS, metadata={"name": "other"}), submit(steps=STEPS)
    )
    log = plan(model, tmp_path)

    assert STEPS == output_of(log)["steps"]
    repairs = [e.payload for e in log.own_events() if e.type == "StepRepairAttempted"]
    assert [(".plan", 1), (".plan", 1)] == [(r["stepPath"], r["attempt"]) for r in repairs]
    assert ["lwir.unknown_tool", "lwir.invalid_value"] == [
        finding["code"] for repair in repairs for finding in repair["findings"]
    ]
    told = str(model.requests[1][-1].parts[0])
    assert "lwir.unknown_tool" in told and "$.steps[0].with.tool" in told and "'look'" in told


def test_planner_without_a_valid_draft_says_what_was_found(tmp_path: Path) -> None:
    model = ScriptedModel(*[submit(steps=WRONG)] * 5)
    log = plan(model, tmp_path, planner={"maxRevisions": 2})

    assert log.end is not None and "harness.plan.failed" == log.end.type
    error = log.end.payload["error"]
    assert "planner_validation_exhausted" == error["causeCode"]
    assert "after 2 revision(s)" in error["message"] and "lwir.unknown_tool" in error["message"]
    assert 3 == len(model.requests)
    assert 2 == log.kinds().count("StepRepairAttempted")


def test_planner_that_submits_nothing_is_exhausted_too(tmp_path: Path) -> None:
    log = plan(ScriptedModel(*[say("I would rather not.")] * 5), tmp_path)

    assert log.end is not None
    assert "planner_validation_exhausted" == log.end.payload["error"]["causeCode"]


@pytest.mark.parametrize("steps", [None, [], {}, "x", [1], [{"id": 1}]])
def test_malformed_draft_is_a_finding(steps: Any, tmp_path: Path) -> None:
    log = plan(ScriptedModel(submit(steps=steps), submit(steps=STEPS)), tmp_path)

    assert STEPS == output_of(log)["steps"]


@pytest.mark.parametrize("field", ["metadata", "permissions", "input", "output"])
def test_malformed_head_is_a_finding(field: str, tmp_path: Path) -> None:
    wrong = submit(steps=STEPS, **{field: [1]})
    log = plan(ScriptedModel(wrong, submit(steps=STEPS)), tmp_path)

    assert STEPS == output_of(log)["steps"]


def test_agent_in_the_slot_lends_its_model(tmp_path: Path) -> None:
    model = ScriptedModel(submit(steps=STEPS))

    assert STEPS == output_of(plan(Agent(model), tmp_path))["steps"]


def test_missing_slot_is_a_configuration_error(tmp_path: Path) -> None:
    log = plan(ScriptedModel(), tmp_path, planner={"model": "gone"})

    assert log.end is not None
    assert "runtime_config_error" == log.end.payload["error"]["causeCode"]


def test_planner_cut_after_every_report_ends_the_same(tmp_path: Path) -> None:
    turns = (submit(steps=WRONG), submit(steps=WRONG), submit(steps=STEPS))
    whole = plan(ScriptedModel(*turns), tmp_path)
    assert whole.end is not None
    answers = [n for n, kind in enumerate(whole.kinds(), 1) if kind == "model.responded"]

    for reported in range(whole.reported):
        model = ScriptedModel(*turns)
        log = plan(model, tmp_path, whole.cut(reported))

        assert log.end is not None and whole.end.payload == log.end.payload, reported
        assert 3 - sum(n <= reported for n in answers) == len(model.requests), reported
        assert 2 == log.kinds().count("StepRepairAttempted"), reported
        assert 0 == log.kinds().count("warning")
