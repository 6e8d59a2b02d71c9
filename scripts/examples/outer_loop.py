"""An outer loop writes a glossary of a package in cycles until it covers what it should.

Each cycle runs the workflow once: an agent reads the modules that the note names, and explains
their public names. After each cycle planaria calls `supervise` with the outputs so far. It measures
how many of the package's public names are explained: below 90% it asks for another cycle, with a
note that names the modules with the most names missing. Killed with SIGKILL: the agent inside a
cycle, the process that runs `supervise`, and the supervisor between two cycles. The finished loop
is then called again: that returns the recorded output and runs nothing.

    .venv/bin/python scripts/examples/outer_loop.py [FOLDER] [--seed N] [--quick]

FOLDER is a package; by default the standard library's json, without --quick its asyncio.
"""

import ast
import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from disturbance import (
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
from local_models import LATENCY_SECONDS, read_returns
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from reviewers import NotedModel, answer, count_turns, read_input
from rich.console import Console

from planaria import Client, Continue, Done, Workflow, current_call, tool
from planaria.steps import call, generate

LOOP_ID = "glossary"
CYCLES_MAX = 12
COVERAGE_WANTED = 0.9
MODULES_PER_CYCLE = 2  # in the first one; each further cycle may read two more
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Package(BaseModel):
    """What the glossary is of."""

    folder: str


class Term(BaseModel):
    """A public name of a module."""

    module: str
    name: str


def find_definitions(path: Path) -> list[Definition]:
    """Returns the public functions and classes that a module defines at its top."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")
    ]


@tool(effect="read")
def list_terms(folder: str) -> list[Term]:
    """Lists the public names that a package's modules define."""
    current = current_call()
    with noted("tool", "list_terms", current.session_id, current.call_id):
        return [
            Term(module=path.name, name=node.name)
            for path in sorted(Path(folder).glob("*.py"))
            for node in find_definitions(path)
        ]


@tool(effect="read")
def read_definitions(folder: str, module: str) -> dict[str, str]:
    """Returns the public names of one module, each with its docstring or its first line."""
    current = current_call()
    with noted("tool", "read_definitions", current.session_id, current.call_id):
        path = Path(folder) / Path(module).name
        lines = path.read_text(encoding="utf-8").splitlines()
        return {
            node.name: ast.get_docstring(node) or lines[node.lineno - 1].strip()
            for node in find_definitions(path)
        }


async def write_glossary(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Reads the modules that the note names, and explains each of their names by one line."""
    await asyncio.sleep(LATENCY_SECONDS)
    asked = read_input(messages)
    if count_turns(messages) == 0:
        modules = [word.strip(",.") for word in (asked["note"] or "").split() if ".py" in word]
        if not modules:
            modules = sorted({term["module"] for term in asked["terms"]})[:MODULES_PER_CYCLE]
        return ModelResponse(
            [
                ToolCallPart("read_definitions", {"folder": asked["folder"], "module": module})
                for module in modules
            ]
        )
    entries = {}
    for _, definitions in read_returns(messages):
        entries.update({name: text.splitlines()[0] for name, text in definitions.items()})
    return answer(info, {"entries": entries, "terms": asked["terms"]})


glossary = Workflow(
    id="examples.outer_loop",
    description="Write a glossary of a package's public names.",
    input=Package,
    models={"writer": NotedModel("writer", FunctionModel(write_glossary, model_name="local"))},
    tools=[list_terms, read_definitions],
    env=[PATH_VARIABLE],
    steps=[
        call("terms", list_terms, args={"folder": "{{ input.folder }}"}),
        generate(
            "write",
            needs=["terms"],
            model="writer",
            prompt="Explain the public names of the modules that the note names, each in a line.",
            tools=[read_definitions],
            input={
                "folder": "{{ input.folder }}",
                "terms": "{{ steps.terms.output }}",
                "note": "{{ cycle.note }}",
            },
            output={"mode": "object", "schema": {"type": "object"}},
        ),
    ],
)


def supervise(state: dict[str, Any]) -> Done | Continue:
    """Measures the coverage so far; enough is done, else says where the most is missing."""
    cycles = state["cycles"]
    with noted("function", "supervise", LOOP_ID, f"supervise/{len(cycles)}"):
        time.sleep(LATENCY_SECONDS)
        entries: dict[str, str] = {}
        for cycle in cycles:
            entries.update(cycle["output"]["entries"])
        terms = cycles[-1]["output"]["terms"]
        missing = Counter(term["module"] for term in terms if term["name"] not in entries)
        coverage = 1 - missing.total() / max(1, len(terms))
        if coverage >= COVERAGE_WANTED:
            return Done({"names": len(terms), "coverage": round(coverage, 3), "glossary": entries})
        ordered = sorted(missing, key=lambda module: (-missing[module], module))
        modules = ordered[: MODULES_PER_CYCLE * (len(cycles) + 1)]
        return Continue(f"{coverage:.0%} is covered. Now read {', '.join(modules)}")


def main() -> int:
    """Runs the example; returns its exit code."""
    package = Path(json.__file__).parent if "--quick" in sys.argv else Path(asyncio.__file__).parent
    options = read_options(__doc__ or "", str(package))
    counted: list[int] = []

    def run_loop(client: Client) -> Any:
        loop_id = client.start_loop(
            glossary,
            {"folder": os.path.abspath(options.folder)},
            max_outer_cycles=CYCLES_MAX,
            outer_loop_id=LOOP_ID,
            supervise=supervise,
        )
        result = client.wait_loop(loop_id)
        return {"output": result.output, "notes": [c.get("summary") for c in result.cycles]}

    def perform(client: Client) -> Any:
        found = run_loop(client)
        before = len(client.runs(limit=1_000))
        again = run_loop(client)
        assert again == found, "the finished loop answered something else"
        counted.append(len(client.runs(limit=1_000)) - before)
        return found

    blows = [
        in_turn("writer", 2),
        Blow("`supervise`", lambda scene: next(iter(scene.pids_in("supervise")), None)),
        of_supervisor("between two cycles", is_between_cycles),
    ]

    def find_rows(played: Played) -> list[Row]:
        asked = [entry for entry in played.entries if entry.name == "supervise"]
        cycles = len(played.result["notes"])
        return [
            ("cycles", str(cycles), 1 < cycles <= CYCLES_MAX),
            ("answers of `supervise`", str(sum(e.has_ended for e in asked)), True),
            (
                "runs that the finished loop made when called again",
                str(counted[-1]),
                not counted[-1],
            ),
        ]

    return Example(perform, blows, find_rows, show, seed=options.seed).main()


def is_between_cycles(scene: Scene) -> bool:
    """Says whether `supervise` has answered, and the next cycle has carried out nothing yet."""
    return 0 < scene.count_ended("supervise") == scene.count_ended("list_terms")


def show(console: Console, played: Played) -> None:
    """Prints the note of each cycle, and how it ended."""
    for number, note in enumerate(played.result["notes"], 1):
        console.print(f"cycle {number}: {note or 'done'}", markup=False, highlight=False)
    output = played.result["output"]
    console.print(
        f"{len(output['glossary'])} of {output['names']} names, {output['coverage']:.1%}",
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
