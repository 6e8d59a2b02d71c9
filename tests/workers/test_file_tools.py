"""File tools and skills in the hands of agents: journaled, reported, and there when asked for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart

from planaria.protocol.codec import hash_bytes

from .memory_supervisor import (
    MemorySupervisor,
    Process,
    SessionLog,
    carry,
    make_definition,
    make_delivery,
)
from .scripted_model import ScriptedModel, call, say

STEP = {"id": "s", "uses": "ai.generate", "with": {"model": "fast", "prompt": "go"}}
SKILLS = [{"name": "mail", "description": "How to write."}, {"name": "out", "description": "x"}]
TURNS = (
    [call("write_file", "a", path="memory/org/n", content="one")],
    [call("write_file", "b", path="scratch/n", content="two")],
    [
        call("read_file", "c", path="memory/org/n"),
        call("read_file", "d", path="../n"),
        call("list_files", "e", path="memory/org"),
    ],
    say("done"),
)


def generate(
    model: Any, tmp_path: Path, log: SessionLog | None = None, **more: Any
) -> tuple[SessionLog, list[Any]]:
    about: dict[str, Any] = {"role": "worker", "memory": ["org"], **more}
    log = log or SessionLog(make_delivery(STEP, **about))
    definition = make_definition(models={"fast": model})
    definition.skills = {"mail": "skills/mail.md", "out": "../../../secret"}
    carry(STEP, definition, tmp_path, log=log)
    scripted = model.model if isinstance(model, Agent) else model
    asked = scripted.requests[-1]
    return log, [p.content for m in asked for p in m.parts if isinstance(p, ToolReturnPart)]


def as_planner(**more: Any) -> dict[str, Any]:
    return {"role": "planner", **more}  # of the worker's task: only the role decides about writing


def test_agent_writes_reads_and_is_refused(tmp_path: Path) -> None:
    log, results = generate(ScriptedModel(*TURNS), tmp_path, **as_planner())

    assert log.end is not None and "done" == log.end.payload["output"]
    assert ["written", "written", "one"] == results[:3]
    assert "no '..'" in results[3]
    assert {"files": [{"path": "memory/org/n", "bytes": 3}], "leftOut": 0} == results[4]
    assert "one" == (tmp_path / "memory/org/n").read_text()
    effects = [
        e.payload["effect"] for e in log.own_events() if e.type == "harness.tool_call.started"
    ]
    assert ["idempotent", "idempotent", "read", "read", "read"] == effects
    assert 0 == log.kinds().count("warning")


def test_write_to_memory_is_on_record_and_one_to_scratch_is_not(tmp_path: Path) -> None:
    log, _ = generate(ScriptedModel(*TURNS), tmp_path, **as_planner())

    written = [e.payload for e in log.own_events() if e.type == "harness.memory.written"]
    assert [{"store": "org", "path": "n", "sha256": hash_bytes(b"one")}] == written


def test_worker_may_not_write_to_memory(tmp_path: Path) -> None:
    log, results = generate(ScriptedModel(*TURNS), tmp_path)

    assert "read only" in results[0]
    assert "written" == results[1]
    assert "memory.written" not in log.kinds()
    assert not (tmp_path / "memory").exists()


def test_writing_session_cut_after_every_report_ends_the_same(tmp_path: Path) -> None:
    whole, _ = generate(ScriptedModel(*TURNS), tmp_path, **as_planner())
    assert whole.end is not None

    for reported in range(whole.reported):
        log = whole.cut(reported)
        answered = log.kinds().count("model.responded")
        model = ScriptedModel(*TURNS)
        # Killed before its last turn was on record, so that there is a request to look at.
        if answered < len(TURNS):
            generate(model, tmp_path, log)
        else:
            carry(STEP, make_definition(models={"fast": model}), tmp_path, log=log)

        assert log.end is not None and whole.end.payload == log.end.payload, reported
        assert len(TURNS) - answered == len(model.requests), reported
        assert "memory.written" in log.kinds()
        assert "one" == (tmp_path / "memory/org/n").read_text()


def test_file_of_another_attempt_is_no_reason_not_to_write(tmp_path: Path) -> None:
    log, _ = generate(ScriptedModel(*TURNS), tmp_path, **as_planner())
    inherited = {
        e.payload["idempotencyKey"]: {"v": "written"}
        for e in log.own_events()
        if e.type == "harness.tool_call.started" and e.payload["toolName"] == "write_file"
    }
    about = as_planner(session_id="hs_2", attempt=2, inherited=inherited)
    generate(ScriptedModel(*TURNS), tmp_path, **about)

    assert "two" == (tmp_path / "runs/run_1/harness/hs_2/n").read_text()


def test_agent_of_the_users_own_gets_them_too(tmp_path: Path) -> None:
    _, results = generate(Agent(ScriptedModel(*TURNS)), tmp_path)

    assert "written" == results[1]


def test_without_memory_and_skills_there_are_no_such_tools(tmp_path: Path) -> None:
    model = ScriptedModel(say("done"))
    generate(model, tmp_path, memory=[])

    assert [] == [tool.name for tool in model.infos[0].function_tools]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mail", "Write politely."), ("none", "there are: mail, out"), ("out", "isn't pinned")],
)
def test_skill_is_read_from_the_pinned_modules(name: str, expected: str, tmp_path: Path) -> None:
    pin = tmp_path / "artifacts" / "modules" / "pin"
    (pin / "skills").mkdir(parents=True)
    (pin / "skills" / "mail.md").write_text("Write politely.")
    (tmp_path / "secret").write_text("secret")
    model = ScriptedModel([call("read_skill", "a", name=name)], say("done"))
    delivery = make_delivery(STEP, skills=SKILLS)
    delivery["source"] = {"kind": "memory", "modulesRef": "pin"}
    log = SessionLog(delivery)
    definition = make_definition(models={"fast": model})
    definition.skills = {"mail": "skills/mail.md", "out": "../../../secret"}

    async def run() -> None:
        process = Process(MemorySupervisor(), tmp_path / "artifacts" / "modules", definition)
        await process.carry(log)
        await process.stop()

    asyncio.run(run())

    [result] = [p.content for p in model.requests[-1][-1].parts if isinstance(p, ToolReturnPart)]
    assert expected in result
    assert "How to write." in str(model.infos[0].function_tools[0].description)
