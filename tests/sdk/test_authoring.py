"""A workflow is compiled when it is made: its document, findings, lock and hashes."""

import datetime
import re
import subprocess
import sys
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import planaria
from planaria import (
    AgentWorker,
    InputSchemaError,
    Succeeded,
    UsageError,
    ValueRefusedError,
    Workflow,
    WorkflowInvalidError,
    approval,
    call,
    generate,
    parallel,
    tool,
    wait,
)
from planaria.protocol.codec import hash_jcs
from planaria.protocol.errors import InvalidIdError


class Kind(Enum):
    BUG = "bug"
    IDEA = "idea"


class Ticket(BaseModel):
    id: str
    kind: Kind
    opened: datetime.date
    owner: int | str | None = None
    size: tuple[int, int] = (1, 1)


class Batch(BaseModel):
    tickets: list[Ticket]


class Tree(BaseModel):
    parts: "list[Tree]" = []


@tool(effect="read")
def look(key: str, deep: bool = False) -> str:
    """Looks something up."""
    return key


@tool(effect="once")
def send(text: str) -> None:
    """Sends a text."""


def make(**changes: Any) -> Workflow:
    parts: dict[str, Any] = {
        "id": "support.triage",
        "description": "Sorts tickets.",
        "input": Batch,
        "output": list[Ticket],
        "models": {"fast": "anthropic:claude-haiku-4-5"},
        "tools": [send, look],
        "steps": [
            call("first", look, args={"key": "{{ input.tickets }}"}),
            generate("draft", model="fast", prompt="Draft.", needs=["first"]),
        ],
    }
    return Workflow(**{**parts, **changes})


def find(**changes: Any) -> list[tuple[str, str]]:
    with pytest.raises(WorkflowInvalidError) as refused:
        make(**changes)
    return [(f["code"], f["path"]) for f in refused.value.fields["findings"]]


def test_importing_planaria_loads_neither_zmq_nor_pydantic() -> None:
    program = "import planaria, sys; print(*sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"zmq", "pydantic", "pydantic_ai", "msgpack", "yaml", "dill", "asyncio"}


def test_every_public_name_is_there() -> None:
    for name in dir(planaria):
        assert getattr(planaria, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Workflw'"):
        planaria.Workflw  # noqa: B018


def test_document_is_what_was_written() -> None:
    document = make(output_step="draft").document

    assert document["apiVersion"] == "lwir/v1"
    assert document["metadata"] == {"name": "support.triage", "description": "Sorts tickets."}
    assert document["permissions"] == {"models": ["fast"], "tools": ["look", "send"]}
    assert [step["id"] for step in document["steps"]] == ["first", "draft"]
    assert document["output"]["step"] == "draft"
    ticket = document["input"]["schema"]["properties"]["tickets"]["items"]
    assert ticket["properties"]["kind"]["enum"] == ["bug", "idea"]
    assert "$ref" not in str(document)


def test_lock_and_version_hold_all_that_a_run_may_use() -> None:
    workflow = make()

    lock = workflow.lock
    assert lock["lwir"] == workflow.document
    assert lock["tools"].keys() == {"look", "send"}
    assert lock["tools"]["look"].keys() == {"effect", "description", "parameters", "descriptorHash"}
    assert lock["models"]["fast"].keys() == {"model", "descriptorHash"}
    assert lock["models"]["fast"]["model"] == "anthropic:claude-haiku-4-5"
    assert workflow.version_id == "wv_" + hash_jcs(lock)[7:39]
    assert repr(workflow) == f"<workflow support.triage {workflow.version_id}>"


def test_order_of_tools_and_slots_is_no_difference() -> None:
    one = make(models={"a": "test", "fast": "test"})
    other = make(tools=[look, send], models={"fast": "test", "a": "test"})

    assert (one.version_id, one.definition_hash) == (other.version_id, other.definition_hash)


def test_steps_change_the_version_and_not_the_definition() -> None:
    one, other = make(), make(steps=[call("x", look, args={"key": "a"})])

    assert one.version_id != other.version_id
    assert one.definition_hash == other.definition_hash


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"description": "Else."},
        {"input": None},
        {"output": str},
        {"tools": [look]},
        {"models": {"fast": "test", "slow": "test"}},
        {"models": {"fast": Agent(TestModel(), name="a")}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_identity_changes_the_definition_hash(change: dict[str, Any]) -> None:
    steps = [call("x", look, args={"key": "a"})]

    assert make(steps=steps, **change).definition_hash != make(steps=steps).definition_hash


def test_document_does_not_follow_what_it_was_made_of() -> None:
    step = call("x", look, args={"key": "a"})
    workflow = make(steps=[step])
    version = workflow.version_id

    step["with"]["args"]["key"] = "b"

    assert workflow.document["steps"][0]["with"]["args"] == {"key": "a"}
    assert make(steps=[step]).version_id != version


def test_all_findings_come_at_once() -> None:
    steps = [
        call("a", "unknown", args={}, needs=["nobody"]),
        generate("b", model="slow", prompt="{{ steps.zzz.output }}"),
    ]

    assert find(steps=steps) == [
        ("lwir.unknown_tool", "$.steps[0].with.tool"),
        ("lwir.unknown_need", "$.steps[0].needs[0]"),
        ("lwir.unknown_model", "$.steps[1].with.model"),
        ("expression.invalid", "$.steps[1].with.prompt"),
    ]


def test_workflow_without_steps_has_a_finding() -> None:
    assert find(steps=[]) == [("lwir.invalid_value", "$.steps")]
    assert find(steps="x") == [("lwir.invalid_value", "$.steps")]


def test_arguments_that_a_tool_does_not_have_or_lacks_are_findings() -> None:
    inner = call("in", look, args={"kye": "{{ item }}", "deep": True})
    steps = [call("out", look, args="{{ input }}"), parallel("all", items=[1], steps=[inner])]

    assert find(steps=steps) == [
        ("lwir.unknown_field", "$.steps[1].steps[0].with.args.kye"),
        ("lwir.missing_field", "$.steps[1].steps[0].with.args.key"),
    ]


def test_builders_of_waits_and_approvals_make_valid_steps() -> None:
    day = datetime.timedelta(days=1)
    noon = datetime.datetime(2030, 1, 31, 12, tzinfo=datetime.UTC)
    steps = [
        wait("pause", duration=day),
        wait("noon", until=noon, needs=["pause"]),
        wait("paid", signal="payment", expires_in=day, needs=["noon"]),
        approval("ask", prompt="Ship it?", data="{{ steps.paid.output }}", needs=["paid"],
                 expires_in=day, on_timeout="fail"),
    ]  # fmt: skip

    assert make(steps=steps).document["steps"] == steps
    assert [step["with"] for step in steps] == [
        {"for": "1d"},
        {"until": "2030-01-31T12:00:00+00:00"},
        {"signal": "payment", "expiresIn": "1d"},
        {
            "prompt": "Ship it?",
            "data": "{{ steps.paid.output }}",
            "expiresIn": "1d",
            "onTimeout": "fail",
        },
    ]


def test_integer_without_a_canonical_form_is_a_finding() -> None:
    steps = [call("a", look, args={"key": "x"}, input={"n": [2**60]})]

    assert find(steps=steps) == [("lwir.invalid_value", "$.steps[0].input.n[0]")]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": "no spaces"}, "no legal workflow id"),
        ({"id": ""}, "no legal workflow id"),
        ({"tools": [len]}, "tools[0] of workflow 'support.triage' is 'len', which is no tool"),
        ({"tools": [look, planaria.tool(effect="read", name="look")(send.function)]}, "two tools"),
        ({"models": {"fast": "claude"}}, "model slot 'fast' holds 'claude'; write it with its"),
        ({"models": {"fast": 3}}, "model slot 'fast' holds a int; expected a name such as"),
        ({"input": Tree}, "the input of workflow 'support.triage': 'Tree' in the schema"),
        ({"output": Tree}, "the output of workflow 'support.triage': 'Tree' in the schema"),
        ({"input": pytest.MonkeyPatch}, "no JSON form is known for the type MonkeyPatch"),
    ],
)
def test_what_can_not_be_part_of_a_workflow_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises((UsageError, InvalidIdError), match=re.escape(text)):
        make(**change)


def test_input_is_the_same_as_a_model_and_as_json() -> None:
    ticket = Ticket(id="a", kind=Kind.BUG, opened=datetime.date(2024, 5, 6), owner=3)
    written = {"tickets": [{"id": "a", "kind": "bug", "opened": "2024-05-06", "owner": 3}]}

    dumped = make().dump_input(Batch(tickets=[ticket]))

    assert dumped == {
        "tickets": [{"id": "a", "kind": "bug", "opened": "2024-05-06", "owner": 3, "size": [1, 1]}]
    }
    assert make().dump_input(written) == dumped


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"tickets": [{"id": "a", "kind": "x", "opened": "2024-05-06"}]}, "$.tickets[0].kind"),
        ({}, "$.tickets: Field required"),
        (None, "$: "),
        (Ticket(id="a", kind=Kind.BUG, opened=datetime.date(2024, 5, 6)), "Ticket can't be"),
        (object(), "$: "),
    ],
)
def test_input_that_does_not_fit_its_type_is_refused_with_its_path(value: Any, text: str) -> None:
    with pytest.raises(InputSchemaError, match=re.escape(text)):
        make().dump_input(value)


def test_input_by_schema_is_checked_by_it() -> None:
    workflow = make(input={"type": "object", "required": ["tickets"]}, output={"type": "string"})

    assert workflow.dump_input({"tickets": 1}) == {"tickets": 1}
    assert workflow.load_output("x") == "x"
    with pytest.raises(InputSchemaError, match=r"\$\.tickets: expected a value"):
        workflow.dump_input({})
    with pytest.raises(InputSchemaError, match=r"\$\.tickets: "):
        workflow.dump_input({"tickets": {1, 2}})


def test_workflow_without_an_input_type_takes_any_json() -> None:
    workflow = make(input=None, output=None)

    assert "input" not in workflow.document
    assert workflow.dump_input({"a": [None]}) == {"a": [None]}
    assert workflow.load_output([1]) == [1]
    with pytest.raises(InputSchemaError, match="tuple is no JSON value"):
        workflow.dump_input((1,))


def test_output_comes_back_with_its_type() -> None:
    recorded = [{"id": "a", "kind": "idea", "opened": "2024-05-06", "size": [2, 3]}]

    (ticket,) = make().load_output(recorded)

    assert ticket == Ticket(id="a", kind=Kind.IDEA, opened=datetime.date(2024, 5, 6), size=(2, 3))
    with pytest.raises(ValueRefusedError):
        make().load_output([{"id": 1}])


def test_slots_take_names_models_agents_and_workers() -> None:
    agent = Agent("openai:gpt-5", name="writer", defer_model_check=True)

    @agent.tool_plain
    def search(text: str) -> str:
        return text

    models = {
        "a": "openai:gpt-5",
        "b": TestModel(),
        "c": agent,
        "fast": AgentWorker(agent, deps=dict, effects={"search": "read"}),
    }
    locked = make(models=models).lock["models"]

    assert [locked[slot]["model"] for slot in "abc"] == [
        "openai:gpt-5",
        "test:test",
        "openai:gpt-5",
    ]
    assert locked["fast"]["model"] == "openai:gpt-5"
    assert len({slot["descriptorHash"] for slot in locked.values()}) == 4
    assert locked == make(models=dict(reversed(models.items()))).lock["models"]


def test_agent_worker_refuses_what_it_can_not_run() -> None:
    with pytest.raises(TypeError, match="takes a pydantic-ai Agent, got a str"):
        AgentWorker("openai:gpt-5")
    with pytest.raises(TypeError, match="give a function that makes the dependencies"):
        AgentWorker(Agent(TestModel()), deps=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tool 'search' has effect 'write'"):
        AgentWorker(Agent(TestModel()), effects={"search": "write"})
    with pytest.raises(ValueError, match="tool 'search' is 'managed' and has no lookup"):
        AgentWorker(Agent(TestModel()), effects={"search": "managed"})
    with pytest.raises(ValueError, match=r"'search' has a lookup \(reattach\) and effect 'once'"):
        AgentWorker(Agent(TestModel()), effects={"search": "once"}, reattach={"search": Succeeded})
    with pytest.raises(ValueError, match=r"'search' has a lookup \(reattach\) and no declared eff"):
        AgentWorker(Agent(TestModel()), reattach={"search": Succeeded})


def test_document_makes_the_same_workflow_again() -> None:
    first = make(input=None, output=None)

    again = Workflow.from_document(first.document, tools=[look, send], models=first.models)

    assert again.version_id == first.version_id
    assert again.definition_hash == first.definition_hash
    assert (again.id, again.description) == (first.id, first.description)


def test_document_may_use_less_than_its_module_has() -> None:
    document = make(input=None, output=None).document
    document["permissions"]["tools"] = ["look"]

    workflow = Workflow.from_document(document, tools=[look, send], models={"fast": "test"})

    assert workflow.lock["tools"].keys() == {"look"}


@pytest.mark.parametrize("document", [None, [], {}, {"metadata": {"name": 3}}])
def test_broken_document_has_findings(document: Any) -> None:
    with pytest.raises(WorkflowInvalidError):
        Workflow.from_document(document)


def test_document_without_its_tools_says_which_are_missing() -> None:
    with pytest.raises(WorkflowInvalidError) as refused:
        Workflow.from_document(make().document, models={"fast": "test"})

    codes = {(f["code"], f["path"]) for f in refused.value.fields["findings"]}
    assert codes == {
        ("lwir.unknown_tool", "$.permissions.tools[0]"),
        ("lwir.unknown_tool", "$.permissions.tools[1]"),
    }
