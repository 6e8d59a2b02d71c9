"""Planners, orchestrators, fixers and agents with memory, on scripted models; see sdk_flows.py."""

import json
import os
from collections.abc import Callable
from typing import Any

from call_flows import failing
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from planaria import Orchestrator, Planner, Skill, Workflow, call, code, generate, tool

Answers = Callable[[list[ModelMessage], AgentInfo], ModelResponse]


def turn_of(messages: list[ModelMessage]) -> int:
    return sum(isinstance(message, ModelResponse) for message in messages)


def returns_of(messages: list[ModelMessage]) -> list[Any]:
    """Returns what tools have given back, in order; a retry is its text."""
    return [
        part.content
        for message in messages
        for part in message.parts
        if part.part_kind == "tool-return" or (part.part_kind == "retry-prompt" and part.tool_name)
    ]


def prompt_of(messages: list[ModelMessage]) -> str:
    return next(str(p.content) for p in messages[0].parts if p.part_kind == "user-prompt")


def ask(*calls: tuple[str, dict[str, Any]]) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in calls])


def say(value: Any) -> ModelResponse:
    return ModelResponse(parts=[TextPart(value if isinstance(value, str) else json.dumps(value))])


# -- planned --------------------------------------------------------------------------------

NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@tool(effect="read")
def double(x: int) -> int:
    """Doubles a number, says DESCRIPTION-CANARY."""
    assert "SOURCE-" + "CANARY" != str(x)  # SOURCE-CANARY-7: tool source is no planner's matter
    return 2 * x


@tool(effect="read")
def count_secret(x: int) -> int:
    """Says how long a secret is."""
    return len(os.environ["ROLE_SECRET"])


def steps_of(tool_name: str) -> list[dict[str, Any]]:
    arguments = {"tool": tool_name, "args": {"x": "{{ input.x }}"}}
    return [{"id": "a", "uses": "tool.call", "with": arguments}]


def drafting(*drafts: list[dict[str, Any]]) -> FunctionModel:
    """Returns a planner that hands in these steps, the last ones again and again."""

    def draft(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        steps = drafts[min(turn_of(messages), len(drafts) - 1)]
        return ask(("submit_workflow", {"steps": steps}))

    return FunctionModel(draft, model_name="drafter")


WRONG = [{"id": "a", "uses": "nonsense"}]
UNKNOWN = steps_of("nobody")

planned = Workflow("planned", "Double x.", input=NUMBER, tools=[double],
    models={"p": drafting(steps_of("double"))}, planner=Planner("p"),
)  # fmt: skip
mended = Workflow("mended", input=NUMBER, tools=[double],
    models={"p": drafting(WRONG, UNKNOWN, steps_of("double"))}, planner=Planner("p"),
)  # fmt: skip
last_chance = Workflow("last.chance", input=NUMBER, tools=[double],
    models={"p": drafting(WRONG, steps_of("double"))}, planner=Planner("p", max_revisions=1),
)  # fmt: skip
stubborn = Workflow("stubborn", input=NUMBER, tools=[double],
    models={"p": drafting(UNKNOWN, WRONG)}, planner=Planner("p"),
)  # fmt: skip
secretive = Workflow("secretive", "GOAL-CANARY", tools=[double, count_secret],
    input={"type": "object", "properties": {"x": {"type": "integer", "title": "INPUT-CANARY"}}},
    output={"type": "integer", "title": "OUTPUT-CANARY"},
    models={"p": drafting(steps_of("count_secret")), "slot_canary": "openai:gpt-canary"},
    planner=Planner("p", instructions="INSTRUCTIONS-CANARY"), env=["ROLE_SECRET"],
)  # fmt: skip


# -- orchestrated ---------------------------------------------------------------------------


class Totals(BaseModel):
    outputs: list[int]
    failures: list[str]
    refusals: list[str]


def conduct(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn, got = turn_of(messages), returns_of(messages)
    if turn == 0:
        return ask(
            ("plan_workflow", {"workflowId": "nobody"}),
            ("start_workflow", {"workflowId": "planned", "input": {"x": "three"}}),
            ("run_workflow", {"workflowVersionId": "wv_0", "input": {"x": 1}}),
        )
    if turn == 1:
        return ask(("plan_workflow", {"workflowId": "planned"}))
    if turn == 2:
        version = got[-1]["workflowVersionId"]
        runs = [
            ("run_workflow", {"workflowVersionId": version, "input": {"x": x}}) for x in range(3)
        ]
        return ask(*runs, ("start_workflow", {"workflowId": "failing", "input": None}))
    [output] = info.output_tools
    totals = {
        "refusals": [str(text) for text in got[:3]],
        "outputs": [result["output"] for result in got[4:7]],
        "failures": [got[7]["status"], got[7]["error"]["message"]],
    }
    return ask((output.name, totals))


boss = Orchestrator("boss", "Double all.", model=FunctionModel(conduct), input=int, output=Totals,
    workflows=[planned, failing],
)  # fmt: skip

# -- nested ---------------------------------------------------------------------------------


@tool(effect="read")
def see(name: str) -> str | None:
    return os.environ.get(name)


def read_up(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if turn_of(messages) == 0:
        return ask(("read_skill", {"name": "cooking"}), ("see", {"name": "ROLE_INNER"}))
    return say([str(text) for text in returns_of(messages)])


inner = Workflow("inner", tools=[see], models={"m": FunctionModel(read_up)}, env=["ROLE_INNER"],
    skills=[Skill("cooking", "How to cook.", "cooking.md")],
    steps=[generate("look", model="m", prompt="Look.", tools=[see])],
)  # fmt: skip
middle = Workflow("middle", workflows=[inner], steps=[
    {"id": "call", "uses": "workflow.call", "with": {"workflow": "inner", "input": None}},
])  # fmt: skip
outer = Workflow("outer", workflows=[middle], tools=[see], steps=[
    call("own", see, args={"name": "ROLE_INNER"}),
    {"id": "call", "uses": "workflow.call", "with": {"workflow": "middle", "input": None}},
    code("both", source="[input['own'], input['called']]", needs=["own", "call"],
        input={"own": "{{ steps.own.output }}", "called": "{{ steps.call.output }}"}),
])  # fmt: skip

# -- fixed ----------------------------------------------------------------------------------


def fixing(*sources: str) -> FunctionModel:
    """Returns a fixer that hands in the n-th source in its n-th attempt."""

    def fix(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        failed = prompt_of(messages).count(" failed too: ")
        return ask(("submit_source", {"source": sources[min(failed, len(sources) - 1)]}))

    return FunctionModel(fix)


def with_fixer(id: str, fixer: FunctionModel, source: str) -> Workflow:
    mending = {"fixer": {"model": "f", "maxAttempts": 2, "instructions": "FIX-CANARY"}}
    return Workflow(id, input=int, models={"f": fixer}, steps=[
        code("sum", source=source, output=int, on_failure=mending),
    ])  # fmt: skip


repaired = with_fixer("repaired", fixing("input / 0", "input + 2"), "input / nothing")
unmendable = with_fixer("unmendable", fixing("input / 0"), "input / nothing")
mistyped = with_fixer("mistyped", fixing("input * 10"), "str(input)")

# -- remembering ----------------------------------------------------------------------------

ESCAPES = [
    "memory/workflow/../../../secret.txt", "/etc/passwd", "memory/workflow/link.txt",
    "memory/workflow/away/secret.txt", "memory/workflow/a\0b", "memory/workflow/" + "x" * 300,
    "memory/workflow/" + "y/" * 3_000 + "z", "secret.txt", "memory/org/none.txt",
]  # fmt: skip


def remember(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Reads what an earlier run's planner has left, adds to it, and tries to get out."""
    turn, got = turn_of(messages), returns_of(messages)
    if turn == 0:
        return ask(("read_file", {"path": "memory/workflow/deep/notes.md"}))
    if turn == 1:
        before = "" if "no such file" in got[0] else got[0]
        notes = {"path": "memory/workflow/deep/notes.md", "content": before + "é."}
        escapes = [("write_file", {"path": path, "content": "planted"}) for path in ESCAPES[2:4]]
        return ask(("write_file", notes), *escapes)
    steps = [
        {"id": "use", "uses": "ai.generate", "with": {"model": "w", "prompt": json.dumps(got[1:])}}
    ]
    return ask(("submit_workflow", {"steps": steps}))


def use(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if turn_of(messages) == 0:
        writes = [
            ("write_file", {"path": "memory/workflow/deep/notes.md", "content": "gone"}),
            ("write_file", {"path": "scratch/a/b.txt", "content": "mine"}),
        ]
        reads = [("read_file", {"path": path}) for path in ESCAPES]
        notes = ("read_file", {"path": "memory/workflow/deep/notes.md"})
        return ask(notes, *writes, ("list_files", {"path": ""}), *reads)
    if turn_of(messages) == 1:
        return ask(("read_file", {"path": "scratch/a/b.txt"}))
    return say({"planner": prompt_of(messages), "worker": returns_of(messages)})


remembering = Workflow("remembering", memory=["workflow"], planner=Planner("p"),
    models={"p": FunctionModel(remember), "w": FunctionModel(use)},
)  # fmt: skip
