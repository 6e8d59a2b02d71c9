"""A planner designs the code review that the demo has written by hand, then the review runs.

The planner is an agent. It is told the goal, the input's schema, and of each tool its description
and parameters, and drafts the workflow from these. Its first draft has a mistake: the validation
refuses it with findings, and the planner mends that. The version that was accepted reviews real
files. Killed with SIGKILL: the planner in both of its turns, a reviewer, a critic, the supervisor.

    .venv/bin/python scripts/examples/planned_review.py [FOLDER] [--seed N] [--quick]

FOLDER has the Python files to review; by default those of the standard library's json.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from disturbance import (
    PATH_VARIABLE,
    Example,
    Played,
    Row,
    in_turn,
    of_supervisor,
    read_options,
)
from local_models import LATENCY_SECONDS
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from review import (
    RANK_SOURCE,
    REVIEW_PROMPT,
    REVIEW_SCHEMA,
    VERDICT_PROMPT,
    VERDICT_SCHEMA,
    Request,
    conclude_review,
    list_files,
    measure,
    read_source,
    render_report,
)
from reviewers import NotedModel, answer, count_turns, make_models
from rich.console import Console

from planaria import Client, Planner, Workflow

REPORT_LINES_SHOWN = 12
VISITS_MAX = 4


async def draft_review(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Drafts the review from what the prompt says; forgets at first that a loop has an end."""
    await asyncio.sleep(LATENCY_SECONDS)
    steps = draft_steps(read_facts(messages))
    if count_turns(messages) == 0:
        for step in steps[1]["steps"]:
            step.pop("maxVisits", None)
    return answer(info, {"steps": steps})


def read_facts(messages: list[ModelMessage]) -> dict[str, Any]:
    """Returns the definition that the planner's prompt has as JSON."""
    first = messages[0]
    assert isinstance(first, ModelRequest)
    for part in first.parts:
        if isinstance(part, UserPromptPart) and isinstance(part.content, str):
            facts, _ = json.JSONDecoder().raw_decode(part.content, part.content.index("{"))
            assert isinstance(facts, dict)
            return facts
    raise AssertionError("a planner's first message is its prompt")


def draft_steps(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the steps, with each tool chosen by the parameters that it takes."""
    by_parameters = {
        frozenset(tool["parameters"]["properties"]): tool["name"] for tool in facts["tools"]
    }
    (asked,) = facts["inputSchema"]["properties"]  # the folders
    lister = by_parameters[frozenset({asked})]
    concluder = next(name for taken, name in by_parameters.items() if "points" in taken)
    writer = next(name for taken, name in by_parameters.items() if "ranking" in taken)
    readers = [
        tool["name"] for tool in facts["tools"] if set(tool["parameters"]["properties"]) == {"path"}
    ]
    critic, reviewer = (
        next(slot["slot"] for slot in facts["modelSlots"] if slot["slot"] == name)
        for name in ("critic", "reviewer")
    )
    return [
        {
            "id": "files",
            "uses": "tool.call",
            "with": {"tool": lister, "args": {asked: f"{{{{ input.{asked} }}}}"}},
        },
        {
            "id": "each",
            "uses": "parallel",
            "needs": ["files"],
            "with": {
                "items": "{{ steps.files.output }}",
                "itemKey": "{{ item.key }}",
                "maxBranches": 500,
                "maxConcurrency": 6,
                "failureMode": "all_settled",
                "fanIn": {"order": "input", "outputStep": "conclude"},
            },
            "steps": draft_branch(reviewer, critic, readers, concluder),
        },
        {
            "id": "rank",
            "uses": "code.run",
            "needs": ["each"],
            "input": "{{ steps.each.output }}",
            "with": {"source": RANK_SOURCE},
        },
        {
            "id": "report",
            "uses": "tool.call",
            "needs": ["rank"],
            "with": {"tool": writer, "args": {"ranking": "{{ steps.rank.output }}"}},
        },
    ]


def draft_branch(
    reviewer: str, critic: str, readers: list[str], concluder: str
) -> list[dict[str, Any]]:
    """Returns the steps for one file: a reviewer and a critic in a loop, then the conclusion."""
    return [
        {
            "id": "write",
            "uses": "ai.generate",
            "maxVisits": VISITS_MAX,
            "with": {"model": reviewer, "prompt": REVIEW_PROMPT, "tools": readers},
            "input": {
                "path": "{{ item.path }}",
                "visit": "{{ size(steps.write.allVisits) }}",
                "feedback": "{{ steps.judge.lastOutput.feedback }}",
                "earlier": "{{ steps.write.lastOutput.points }}",
            },
            "output": {"mode": "object", "schema": REVIEW_SCHEMA},
        },
        {
            "id": "judge",
            "uses": "ai.generate",
            "needs": ["write"],
            "maxVisits": VISITS_MAX,
            "with": {"model": critic, "prompt": VERDICT_PROMPT},
            "input": {"file": "{{ item.key }}", "review": "{{ steps.write.lastOutput }}"},
            "output": {"mode": "object", "schema": VERDICT_SCHEMA},
        },
        {
            "id": "gate",
            "uses": "decision",
            "needs": ["judge"],
            "with": {
                "cases": [{"when": "{{ steps.judge.lastOutput.passed }}", "to": "conclude"}],
                "default": "write",
            },
        },
        {
            "id": "conclude",
            "uses": "tool.call",
            "needs": ["gate"],
            "with": {
                "tool": concluder,
                "args": {
                    "file": "{{ item }}",
                    "points": "{{ steps.write.lastOutput.points }}",
                    "visits": "{{ size(steps.write.allVisits) }}",
                },
            },
        },
    ]


planned_review = Workflow(
    id="examples.planned_review",
    description="Review every Python file below some folders; rank the files by what is most "
    "pressing, and write a report in Markdown.",
    input=Request,
    output=str,
    tools=[list_files, read_source, measure, conclude_review, render_report],
    models={
        **make_models(None),
        "planner": NotedModel("planner", FunctionModel(draft_review, model_name="local")),
    },
    planner=Planner(model="planner"),
    env=[PATH_VARIABLE],
)


def main() -> int:
    """Runs the example; returns its exit code."""
    options = read_options(__doc__ or "", str(Path(json.__file__).parent))

    def perform(client: Client) -> str:
        run_id = client.start(planned_review, {"folders": [options.folder]}, run_id="review")
        output = client.wait(run_id, workflow=planned_review).output
        assert isinstance(output, str)
        return output

    blows = [in_turn("planner", 1), in_turn("planner", 2), in_turn("reviewer", 2)]
    if not options.quick:
        blows += [
            of_supervisor("as reviews go on", lambda scene: scene.count_ended("reviewer") > 2),
            in_turn("critic", 1),
        ]
    return Example(perform, blows, find_rows, show, seed=options.seed).main()


def find_rows(played: Played) -> list[Row]:
    """Returns what became of the drafts."""
    events = played.events["review"]
    refused = [event for event in events if event["type"] == "StepRepairAttempted"]
    versions = [event for event in events if event["type"] == "WorkflowVersionRegistered"]
    return [
        ("drafts that the validation refused", str(len(refused)), len(refused) == 1),
        ("versions that were made", str(len(versions)), len(versions) == 1),
    ]


def show(console: Console, played: Played) -> None:
    """Prints why the first draft was refused, and the report's beginning."""
    for event in played.events["review"]:
        if event["type"] == "StepRepairAttempted":
            for finding in event["payload"]["findings"]:
                console.print(f"refused: {finding['path']}: {finding['message']}", markup=False)
    console.print("\n".join(played.result.splitlines()[:REPORT_LINES_SHOWN]), markup=False)


if __name__ == "__main__":
    sys.exit(main())
