"""Workflows with a planner, orchestrators, and what they may start: their locks and hashes."""

import re
from typing import Any

import pytest

from planaria import (
    InputSchemaError,
    Orchestrator,
    Planner,
    Skill,
    UsageError,
    Workflow,
    WorkflowInvalidError,
    call,
    tool,
)
from planaria.protocol.codec import hash_jcs
from planaria.protocol.errors import InvalidIdError
from planaria.protocol.locks import check_lock, make_version_id


@tool(effect="read")
def look(key: str) -> str:
    """Looks something up."""
    return key


@tool(effect="read", name="read_skill")
def own_reader() -> str:
    return ""


@tool(effect="once", name="start_workflow")
def own_starter() -> str:
    return ""


@tool(effect="once", name="write_file")
def own_writer() -> str:
    return ""


STEPS = [call("a", look, args={"key": "x"})]
inner = Workflow("inner", "Looks.", input=str, tools=[look], steps=STEPS)
TONE = Skill("tone", "How we write.", "skills/tone.md")


def plan(**changes: Any) -> Workflow:
    parts: dict[str, Any] = {
        "id": "p",
        "description": "Sorts.",
        "input": str,
        "output": list[int],
        "models": {"fast": "test", "deep": "openai:gpt-5"},
        "tools": [look],
        "planner": Planner("fast", "Be brief."),
    }
    return Workflow(**{**parts, **changes})


def orchestrate(**changes: Any) -> Orchestrator:
    parts: dict[str, Any] = {
        "id": "o",
        "description": "Leads.",
        "model": "fast",
        "models": {"fast": "test"},
        "workflows": [inner],
    }
    return Orchestrator(**{**parts, **changes})


def call_inner(**more: Any) -> Workflow:
    step = {"id": "s", "uses": "workflow.call", "with": {"workflow": "inner", "input": "x"}}
    return Workflow("outer", workflows=[inner], steps=[step], **more)


def find(make: Any) -> list[tuple[str, str]]:
    with pytest.raises(WorkflowInvalidError) as refused:
        make()
    return [(f["code"], f["path"]) for f in refused.value.fields["findings"]]


# -- planned --------------------------------------------------------------------------------


def test_lock_of_a_planned_workflow_has_its_planner_and_no_steps() -> None:
    lock = plan().lock

    assert lock["planner"] == {
        "model": "fast",
        "instructions": "Be brief.",
        "maxRevisions": 3,
        "maxTurns": 25,
    }
    assert lock["definition"] == {
        "id": "p",
        "description": "Sorts.",
        "input": {"schema": {"type": "string"}},
        "output": {"schema": {"type": "array", "items": {"type": "integer"}}},
        "permissions": {"models": ["deep", "fast"], "tools": ["look"], "workflows": []},
    }
    assert lock["tools"].keys() == {"look"} and lock["models"].keys() == {"deep", "fast"}
    assert lock.keys() == {"planner", "definition", "tools", "models"}
    assert check_lock(lock) == []


def test_planned_workflow_has_no_version_before_it_is_planned() -> None:
    workflow = plan()

    assert (workflow.version_id, workflow.document) == (None, None)
    assert repr(workflow) == "<workflow p planned>"


def test_planned_workflow_takes_input_and_gives_output_like_any() -> None:
    assert plan().dump_input("x") == "x"
    assert plan().load_output([1]) == [1]
    with pytest.raises(InputSchemaError):
        plan().dump_input(3)


def test_planner_on_a_model_itself_makes_a_slot_of_its_name() -> None:
    lock = plan(planner=Planner("openai:gpt-5-mini")).lock

    assert lock["planner"]["model"] == "openai:gpt-5-mini"
    assert lock["models"]["openai:gpt-5-mini"]["model"] == "openai:gpt-5-mini"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"steps": STEPS}, ("lwir.invalid_value", "$.planner")),
        ({"output_step": "a"}, ("lwir.invalid_value", "$.planner")),
        ({"planner": None}, ("lwir.invalid_value", "$.steps")),
        ({"planner": "fast"}, ("lwir.invalid_value", "$.planner")),
        ({"planner": Planner("slow")}, ("lwir.unknown_model", "$.planner.model")),
        (
            {"input": {"type": "integer", "maximum": 2**60}},
            ("lwir.invalid_value", "$.input.schema.maximum"),
        ),
    ],
)
def test_workflow_has_steps_or_a_planner(change: Any, found: tuple[str, str]) -> None:
    assert find(lambda: plan(**change)) == [found]


@pytest.mark.parametrize(
    "change",
    [
        {"planner": Planner("deep", "Be brief.")},
        {"planner": Planner("fast", "Be long.")},
        {"planner": Planner("fast", "Be brief.", max_revisions=2)},
        {"planner": Planner("fast", "Be brief.", max_turns=2)},
        {"memory": ["org"]},
        {"workflows": [inner]},
        {"tools": []},
    ],
)
def test_definition_hash_tells_what_a_planned_workflow_is(change: Any) -> None:
    assert plan(**change).definition_hash != plan().definition_hash


def test_order_and_skills_are_no_difference_of_the_definition() -> None:
    one = plan(memory=["org", "workflow"], skills=[TONE])
    other = plan(memory=["workflow", "org", "org"], models={"deep": "openai:gpt-5", "fast": "test"})

    assert one.definition_hash == other.definition_hash


# -- memory and skills ------------------------------------------------------------------------


def test_memory_and_skills_stand_in_the_lock_sorted() -> None:
    first = Skill("a", "First.", "skills/a.md")
    workflow = plan(memory=["workflow", "org"], skills=[TONE, first])

    assert workflow.lock["memory"] == ["org", "workflow"]
    assert workflow.lock["skills"] == [first.describe(), TONE.describe()]
    assert workflow.skills == {"a": "skills/a.md", "tone": "skills/tone.md"}
    assert Workflow("w", tools=[look], steps=STEPS, memory=["org"]).lock["memory"] == ["org"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"memory": "org"}, "the memory of 'p' is 'org'; expected a list of 'org', 'pipeline'"),
        ({"memory": ["disk"]}, "the memory of 'p' has 'disk'"),
        ({"skills": ["tone"]}, "skills[0] of 'p' is a str; expected Skill("),
        ({"skills": [TONE, Skill("tone", "x", "y")]}, "two skills named 'tone'"),
        ({"skills": [TONE], "tools": [own_reader]}, "a tool of 'p' is named 'read_skill'"),
        ({"memory": ["org"], "tools": [own_writer]}, "a tool of 'p' is named 'write_file'"),
    ],
)
def test_what_can_not_be_memory_or_skill_is_refused(change: Any, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        plan(**change)


def test_reserved_names_are_free_where_nobody_has_them() -> None:
    assert plan(tools=[own_reader, own_writer, own_starter]).tools.keys() == {
        "read_skill",
        "start_workflow",
        "write_file",
    }


# -- what may be started ------------------------------------------------------------------------


def test_workflows_stand_whole_in_the_lock_and_by_id_in_the_permissions() -> None:
    outer = call_inner()

    assert outer.document is not None
    assert outer.document["permissions"] == {"models": [], "tools": [], "workflows": ["inner"]}
    assert outer.lock["workflows"] == {
        "inner": {
            "definitionHash": inner.definition_hash,
            "description": "Looks.",
            "lock": inner.lock,
        }
    }
    assert outer.workflows == {"inner": inner}
    assert outer.version_id == make_version_id(outer.lock)
    assert check_lock(outer.lock) == []


def test_document_of_its_own_names_the_workflows_that_it_may_start() -> None:
    document = call_inner().document
    assert document is not None

    again = Workflow.from_document(document, workflows=[inner, plan()])
    assert again.lock == call_inner().lock

    del document["permissions"]["workflows"]
    found = find(lambda: Workflow.from_document(document, workflows=[inner]))
    assert found == [("lwir.unknown_workflow", "$.steps[0].with.workflow")]


def test_call_of_an_unknown_workflow_is_a_finding() -> None:
    step = {"id": "s", "uses": "workflow.call", "with": {"workflow": "gone", "input": "x"}}

    found = find(lambda: Workflow("outer", workflows=[inner], steps=[step]))

    assert found == [("lwir.unknown_workflow", "$.steps[0].with.workflow")]


def test_fixer_is_part_of_a_step() -> None:
    step = {
        "id": "s",
        "uses": "code.run",
        "with": {"source": "1"},
        "onFailure": {"fixer": {"model": "fast", "maxAttempts": 2}},
    }

    workflow = Workflow("w", models={"fast": "test"}, steps=[step])

    assert workflow.document is not None
    assert workflow.document["steps"][0]["onFailure"]["fixer"]["model"] == "fast"


@pytest.mark.parametrize(
    ("workflows", "text"),
    [
        ([inner, inner], "workflows[1] of 'p' has an id that another one has, 'inner'"),
        ([Workflow("p", tools=[look], steps=STEPS)], "workflows[0] of 'p' has its own id"),
        (["inner"], "workflows[0] of 'p' is a str; expected the Workflow or Orchestrator"),
    ],
)
def test_what_can_not_be_started_is_refused(workflows: Any, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        plan(workflows=workflows)


def test_workflows_nested_without_end_are_refused() -> None:
    outer: Workflow = inner
    with pytest.raises(UsageError, match="nested 12 deep"):
        for depth in range(20):
            step = {"id": "s", "uses": "workflow.call", "with": {"workflow": outer.id, "input": 1}}
            outer = Workflow(f"w{depth}", workflows=[outer], steps=[step])

    assert outer.id == "w10"
    assert [one.id for one in outer.family()][-1] == "inner"


# -- orchestrators ------------------------------------------------------------------------------


def test_lock_of_an_orchestrator_has_its_agent_and_its_workflows() -> None:
    orchestrator = orchestrate(input=str, tools=[look], instructions="Lead.", memory=["org"])

    assert orchestrator.lock["orchestrator"] == {
        "model": "fast",
        "instructions": "Lead.",
        "maxConcurrentSubRuns": 10,
        "maxTurns": 50,
    }
    assert orchestrator.lock["definition"] == {
        "id": "o",
        "description": "Leads.",
        "input": {"schema": {"type": "string"}},
        "permissions": {"models": ["fast"], "tools": ["look"], "workflows": ["inner"]},
    }
    assert orchestrator.lock["workflows"].keys() == {"inner"}
    assert orchestrator.lock["memory"] == ["org"]
    assert orchestrator.version_id == "wv_" + hash_jcs(orchestrator.lock)[7:39]
    assert repr(orchestrator) == f"<orchestrator o {orchestrator.version_id}>"
    assert orchestrator.dump_input("x") == "x"
    assert check_lock(orchestrator.lock) == []


def test_orchestrator_takes_a_model_itself() -> None:
    pydantic_model = pytest.importorskip("pydantic_ai.models.test").TestModel()

    named = orchestrate(model="openai:gpt-5", models=None)
    held = orchestrate(model=pydantic_model, models={"fast": "test"})

    assert named.models == {"openai:gpt-5": "openai:gpt-5"}
    assert named.lock["orchestrator"]["model"] == "openai:gpt-5"
    assert held.models == {"fast": "test", "orchestrator": pydantic_model}
    assert held.lock["orchestrator"]["model"] == "orchestrator"


@pytest.mark.parametrize(
    "change",
    [
        {"instructions": "Lead."},
        {"max_turns": 3},
        {"max_concurrent_sub_runs": 3},
        {"workflows": [inner, plan()]},
        {"memory": ["org"]},
    ],
)
def test_definition_hash_tells_what_an_orchestrator_is(change: Any) -> None:
    assert orchestrate(**change).definition_hash != orchestrate().definition_hash


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workflows": []}, "orchestrator 'o' has no workflows"),
        ({"tools": [own_starter]}, "a tool of 'o' is named 'start_workflow'"),
        ({"max_turns": 0}, "max_turns of orchestrator 'o' is '0'"),
        ({"max_concurrent_sub_runs": True}, "max_concurrent_sub_runs of orchestrator 'o'"),
        ({"instructions": None}, "the instructions of orchestrator 'o' are NoneType"),
        ({"id": "a b"}, "no legal workflow id"),
        ({"model": 3}, "model slot 'orchestrator' holds a int"),
    ],
)
def test_what_can_not_orchestrate_is_refused(change: Any, text: str) -> None:
    with pytest.raises((UsageError, InvalidIdError), match=re.escape(text)):
        orchestrate(**change)


def test_orchestrator_without_its_slot_has_a_finding() -> None:
    found = find(lambda: orchestrate(model="slow"))

    assert found == [("lwir.unknown_model", "$.orchestrator.model")]


def test_family_is_each_definition_once() -> None:
    outer = orchestrate(workflows=[inner, plan(workflows=[inner])])

    assert [one.id for one in outer.family()] == ["o", "inner", "p"]
