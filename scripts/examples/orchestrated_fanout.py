"""An orchestrator plans a workflow once and runs that version for 50 files, ten at a time.

The orchestrator is an agent whose tools are workflows. In its first turn it lists the files and has
the workflow planned, in its second one it asks for all sub-runs at once, in its third one it sums
them up. Each sub-run measures a real file in a process of its own. Killed with SIGKILL: the
planner, a measuring tool, the orchestrator when 30 of 50 sub-runs are done, and the supervisor.
In the end there are 50 sub-runs, and each file was measured once.

    .venv/bin/python scripts/examples/orchestrated_fanout.py [FOLDER] [--seed N] [--quick]

FOLDER has the Python files, of which the first 50 count; by default the standard library's.
--quick takes 12 files.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from disturbance import (
    LATENCY_SECONDS,
    PATH_VARIABLE,
    Blow,
    Example,
    Played,
    Row,
    Scene,
    in_turn,
    of_supervisor,
    read_options,
)
from ledger import noted
from measures import measure_file
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from reviewers import NotedModel, answer, count_turns, read_input
from rich.console import Console

from planaria import Client, Orchestrator, Planner, Workflow, current_call, tool

FILES = 50
FILES_QUICK = 12
AT_ONCE = 10
MEASURING_SECONDS = 0.05  # so that kills find files that are being measured
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
    """Drafts the workflow for one file: a single call."""
    await asyncio.sleep(LATENCY_SECONDS)
    step = {
        "id": "measure",
        "uses": "tool.call",
        "with": {"tool": "measure_source", "args": {"path": "{{ input.path }}"}},
    }
    return answer(info, {"steps": [step]})


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
    returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if turn == 1:
        by_tool: dict[str, Any] = {part.tool_name: part.content for part in returned}
        version = by_tool["plan_workflow"]["workflowVersionId"]
        return ModelResponse(
            [
                ToolCallPart(
                    "run_workflow", {"workflowVersionId": version, "input": {"path": path}}
                )
                for path in by_tool["find_sources"]
            ]
        )
    sizes = [Size.model_validate(part.content["output"]) for part in returned]  # type: ignore[index]
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
    models={"planner": NotedModel("planner", FunctionModel(draft_measuring, model_name="local"))},
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


def main() -> int:
    """Runs the example; returns its exit code."""
    options = read_options(__doc__ or "", str(Path(json.__file__).parents[1]))
    wanted = FILES_QUICK if options.quick else FILES
    files = len(list(Path(options.folder).glob("*.py"))[:wanted])

    def perform(client: Client) -> Any:
        place = {"folder": options.folder, "files": files}
        run_id = client.start(fanout, place, run_id="fanout")
        return client.wait(run_id).output

    def find_orchestrator(scene: Scene) -> int | None:
        if scene.count_ended("measure_source") < files * 3 // 5:
            return None
        own = [p["pid"] for p in scene.processes if p["stepPath"] == ".orchestrate"]
        return own[0] if own else None

    def find_measuring(scene: Scene) -> int | None:
        return next(iter(scene.pids_in("measure_source")), None)

    blows = [
        in_turn("planner", 1),
        Blow("a sub-run, inside of its tool", find_measuring),
        of_supervisor(
            f"when {files // 5} of {files} are done",
            lambda scene: scene.count_ended("measure_source") >= files // 5,
        ),
        Blow(f"the orchestrator, when {files * 3 // 5} of {files} are done", find_orchestrator),
        in_turn("orchestrator", 3),
    ]

    def find_rows(played: Played) -> list[Row]:
        return list_sub_runs(played, files)

    return Example(perform, blows, find_rows, show, seed=options.seed).main()


def list_sub_runs(played: Played, files: int) -> list[Row]:
    """Returns how many sub-runs there were, and how many versions."""
    runs = [run for run_id, run in played.events.items() if run_id != "fanout"]
    started = [run for run in runs if any(event["type"] == "RunStarted" for event in run)]
    done = [run for run in started if any(event["type"] == "RunCompleted" for event in run)]
    planned = [
        run for run in runs if any(e["payload"].get("role") == "planner" for e in run)
    ]
    recorded = [event for run in started for event in run if _is_measured(event)]
    return [
        ("sub-runs, each completed once", f"{len(done)} of {files}", len(done) == files),
        ("files measured and recorded", str(len(recorded)), len(recorded) == files),
        ("times the workflow was planned", str(len(planned)), len(planned) == 1),
        ("sub-runs at once, at most", str(_count_at_once(played)), _count_at_once(played) <= 10),
    ]


def _is_measured(event: dict[str, Any]) -> bool:
    return bool(event["type"] == "harness.tool_call.succeeded")


def _count_at_once(played: Played) -> int:
    """Returns how many sub-runs ran at once, by the order of the events in the log."""
    ends = ("RunCompleted", "RunFailed", "RunCancelled")
    changes = [
        (event["position"], 1 if event["type"] == "RunStarted" else -1)
        for run_id, run in played.events.items()
        if run_id != "fanout" and any(event["type"] == "RunStarted" for event in run)
        for event in run
        if event["type"] in ("RunStarted", *ends)
    ]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def show(console: Console, played: Played) -> None:
    """Prints the orchestrator's summary."""
    console.print(json.dumps(played.result), markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
