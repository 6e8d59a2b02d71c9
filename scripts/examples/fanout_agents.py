"""The orchestrator of the fan-out, and the workflow that it has planned and runs for each file.

Apart from the script that kills them: more than fifty processes load this module, and it is light.
"""

import asyncio
import time
from pathlib import Path

from ledger import PATH_VARIABLE, noted
from local_models import LATENCY_SECONDS, read_returns
from measures import measure_file
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from reviewers import NotedModel, answer, count_turns, read_input

from planaria import Orchestrator, Planner, Workflow, current_call, tool

AT_ONCE = 10
MEASURING_SECONDS = 0.1  # so that kills find files that are being measured
LARGEST_SHOWN = 5


class Place(BaseModel):
    """Where the files are, and how many count."""

    folder: str
    files: int


class Size(BaseModel):
    """What is told of one file."""

    name: str
    lines: int
    functions: int
    undocumented: int


SIZE_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "lines": {"type": "integer"},
        "functions": {"type": "integer"},
        "undocumented": {"type": "integer"},
    },
    "required": ["name", "lines", "functions", "undocumented"],
    "additionalProperties": False,
}


class Summary(BaseModel):
    """What is told of all of them."""

    files: int
    lines: int
    functions: int
    undocumented: int
    largest: list[Size]


class File(BaseModel):
    """The input of a sub-run."""

    path: str


@tool(effect="read")
def find_sources(folder: str, files: int) -> list[str]:
    """Lists the first Python files of a folder, by name."""
    current = current_call()
    with noted("tool", "find_sources", current.session_id, current.call_id):
        return [str(path) for path in sorted(Path(folder).glob("*.py"))[:files]]


@tool(effect="read")
def measure_source(path: str) -> Size:
    """Measures a Python file by its syntax tree."""
    current = current_call()
    with noted("tool", "measure_source", current.session_id, current.call_id):
        time.sleep(MEASURING_SECONDS)
        found = measure_file(Path(path))
        return Size(
            name=Path(path).name,
            lines=found.lines,
            functions=found.functions,
            undocumented=len(found.undocumented),
        )


async def draft_measuring(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Drafts the workflow for one file: a single agent with a tool."""
    await asyncio.sleep(LATENCY_SECONDS)
    step = {
        "id": "measure",
        "uses": "ai.generate",
        "with": {
            "model": "measurer",
            "prompt": "Measure the file in the input.",
            "tools": ["measure_source"],
        },
        "output": {"mode": "object", "schema": SIZE_SCHEMA},
    }
    return answer(info, {"steps": [step]})


async def measure_by_tool(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Calls the tool for the file, and answers what it returned."""
    await asyncio.sleep(LATENCY_SECONDS)
    if count_turns(messages) == 0:
        return ModelResponse([ToolCallPart("measure_source", read_input(messages))])
    ((_, size),) = read_returns(messages)
    return answer(info, size)


async def conduct(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Lists and plans, then asks for all sub-runs in one turn, then sums up."""
    await asyncio.sleep(LATENCY_SECONDS)
    turn = count_turns(messages)
    if turn == 0:
        return ModelResponse(
            [
                ToolCallPart("find_sources", read_input(messages)),
                ToolCallPart("plan_workflow", {"workflowId": measuring.id}),
            ]
        )
    returned = read_returns(messages)
    if turn == 1:
        by_tool = dict(returned)
        version = by_tool["plan_workflow"]["workflowVersionId"]
        return ModelResponse(
            [
                ToolCallPart(
                    "run_workflow", {"workflowVersionId": version, "input": {"path": path}}
                )
                for path in by_tool["find_sources"]
            ]
        )
    sizes = [Size.model_validate(result["output"]) for _, result in returned]
    largest = sorted(sizes, key=lambda size: (-size.lines, size.name))[:LARGEST_SHOWN]
    summary = Summary(
        files=len(sizes),
        lines=sum(size.lines for size in sizes),
        functions=sum(size.functions for size in sizes),
        undocumented=sum(size.undocumented for size in sizes),
        largest=largest,
    )
    return answer(info, summary.model_dump())


measuring = Workflow(
    id="examples.measuring",
    description="Measure one Python file.",
    input=File,
    output=Size,
    tools=[measure_source],
    models={
        "planner": NotedModel("planner", FunctionModel(draft_measuring, model_name="local")),
        "measurer": NotedModel("measurer", FunctionModel(measure_by_tool, model_name="local")),
    },
    planner=Planner(model="planner"),
    env=[PATH_VARIABLE],
)
fanout = Orchestrator(
    id="examples.orchestrated_fanout",
    description="Measure the first Python files of a folder and sum up what was found.",
    input=Place,
    output=Summary,
    model=NotedModel("orchestrator", FunctionModel(conduct, model_name="local")),
    tools=[find_sources],
    workflows=[measuring],
    max_concurrent_sub_runs=AT_ONCE,
    env=[PATH_VARIABLE],
)
