"""A planned step's source fails on real data, and an agent repairs it while the run waits.

The planner drafts code that counts the words of docstrings, and forgets that functions may have
none: KeyError. The step names a fixer, an agent that gets the source, the error and the input. It
tries a correction in the sandbox, which fails in another way, tries a better one and hands that in.
Effects of the code aren't repeated: each module's entry is opened once, however many sources ran.
Killed with SIGKILL: the code inside of a tool, the fixer in three turns, the supervisor.

    .venv/bin/python scripts/examples/fixer.py [FOLDER] [--seed N] [--quick]

FOLDER has the Python files; by default those of the standard library's json.
"""

import ast
import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from disturbance import (
    PATH_VARIABLE,
    Example,
    Played,
    Row,
    find_handed_over,
    in_call,
    in_turn,
    of_supervisor,
    read_options,
)
from ledger import noted
from local_models import LATENCY_SECONDS, read_returns
from pydantic import BaseModel
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from reviewers import NotedModel, answer, count_turns
from rich.console import Console

from planaria import Client, Planner, Workflow, current_call, tool

READING_SECONDS = 0.2  # so that a kill finds a module that is being read
FIXES_MAX = 2
# What the planner thinks of; `doc` isn't there for a function without a docstring.
DRAFTED_SOURCE = """\
result = []
for path in input["paths"]:
    module = describe_module(path=path)
    entry = open_entry(module=module["name"])
    words = 0
    for function in module["functions"]:
        words = words + len(function["doc"].split())
    result.append({"entry": entry, "module": module["name"], "words": words})
"""
RESULT_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "entry": {"type": "string"},
            "module": {"type": "string"},
            "words": {"type": "integer"},
        },
        "required": ["entry", "module", "words"],
    },
}


class Modules(BaseModel):
    """The files whose docstrings are counted."""

    paths: list[str]


@tool(effect="read")
def describe_module(path: str) -> dict[str, Any]:
    """Returns a module's name and functions; each has its name, and its docstring if it has one."""
    current = current_call()
    with noted("tool", "describe_module", current.session_id, current.call_id):
        time.sleep(READING_SECONDS)
        functions = []
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                functions.append({"name": node.name} | ({} if text is None else {"doc": text}))
        return {"name": Path(path).name, "functions": functions}


@tool(effect="idempotent")
def open_entry(module: str) -> str:
    """Opens a module's entry in the register and returns the entry's name."""
    current = current_call()
    with noted("tool", "open_entry", current.session_id, current.call_id):
        return f"entry-{Path(module).stem.strip('_')}"


async def draft_count(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Drafts one step of code, with a fixer for the case that it fails."""
    await asyncio.sleep(LATENCY_SECONDS)
    step = {
        "id": "count",
        "uses": "code.run",
        "with": {"source": DRAFTED_SOURCE, "tools": ["describe_module", "open_entry"]},
        "output": {"mode": "array", "schema": RESULT_SCHEMA},
        "onFailure": {"fixer": {"model": "fixer", "maxAttempts": FIXES_MAX}},
    }
    return answer(info, {"steps": [step]})


async def fix_source(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Corrects the source by what its error says, tries it, and hands in what works."""
    await asyncio.sleep(LATENCY_SECONDS)
    if count_turns(messages) == 0:
        source, error = read_failure(messages)
    else:
        source = read_tried_source(messages)
        ((_, tried),) = read_returns(messages)
        if "output" in tried:
            return answer(info, {"source": source})
        error = tried["error"]["message"]
    return ModelResponse([ToolCallPart("try_source", {"source": correct(source, error)})])


def correct(source: str, error: str) -> str:
    """Returns the source with the place corrected that an error points to."""
    missing = re.search(r"KeyError: '?(\w+)", error)
    if missing is not None:
        return source.replace(f'["{missing[1]}"]', f'.get("{missing[1]}")')
    return re.sub(r'\.get\("(\w+)"\)', r'.get("\1", "")', source)  # None has no split()


def read_failure(messages: list[ModelMessage]) -> tuple[str, str]:
    """Returns the source and the error that the fixer's prompt tells."""
    first = messages[0]
    assert isinstance(first, ModelRequest)
    for part in first.parts:
        if isinstance(part, UserPromptPart) and isinstance(part.content, str):
            _, source, rest = re.split(r"```(?:python)?\n?", part.content, maxsplit=2)
            return source, rest.partition("Its input:")[0]
    raise AssertionError("a fixer's first message is its prompt")


def read_tried_source(messages: list[ModelMessage]) -> str:
    """Returns the source that was tried last."""
    for part in messages[-2].parts:
        if isinstance(part, ToolCallPart):
            return str(part.args_as_dict()["source"])
    raise AssertionError("a source was tried")


counting = Workflow(
    id="examples.fixer",
    description="Count the words of the docstrings of each module.",
    input=Modules,
    output=list[dict[str, Any]],
    tools=[describe_module, open_entry],
    models={
        "planner": NotedModel("planner", FunctionModel(draft_count, model_name="local")),
        "fixer": NotedModel("fixer", FunctionModel(fix_source, model_name="local")),
    },
    planner=Planner(model="planner"),
    env=[PATH_VARIABLE],
)


def main() -> int:
    """Runs the example; returns its exit code."""
    options = read_options(__doc__ or "", str(Path(json.__file__).parent))
    paths = [str(path.resolve()) for path in sorted(Path(options.folder).glob("*.py"))]

    def perform(client: Client) -> Any:
        run_id = client.start(counting, {"paths": paths}, run_id="count")
        return client.wait(run_id).output

    blows = [in_call("describe_module"), in_turn("fixer", 1), in_turn("fixer", 3)]
    if not options.quick:
        blows.insert(2, in_turn("fixer", 2))
        blows.append(
            of_supervisor("in the fixer's turn", lambda scene: bool(scene.pids_in("fixer")))
        )

    def find_rows(played: Played) -> list[Row]:
        calls = {e.call for e in played.entries if e.name == "open_entry"}
        metadata = find_metadata(played)
        attempts = metadata.get("fixerAttempts")
        handed_over = len(find_handed_over(played.events["count"]))
        return [
            ("effects answered from an earlier source's", str(handed_over), handed_over > 0),
            ("fixerAttempts, of the step's metadata", str(attempts), attempts == 1),
            (
                "entries opened, each once for all sources",
                f"{len(calls)} of {len(paths)}",
                len(calls) == len(paths),
            ),
        ]

    return Example(perform, blows, find_rows, show, seed=options.seed).main()


def find_metadata(played: Played) -> dict[str, Any]:
    """Returns what the step's completion says beside its output."""
    for event in played.events["count"]:
        if event["type"] == "StepCompleted" and event["payload"]["stepId"] == "count":
            return dict(event["payload"].get("metadata") or {})
    return {}


def show(console: Console, played: Played) -> None:
    """Prints the error, the lines that the fix has changed, and the result."""
    for event in played.events["count"]:
        if event["type"] == "StepFailed":
            console.print(event["payload"]["error"]["message"], markup=False, highlight=False)
    fixed = find_metadata(played).get("fixedSource") or ""
    for old, new in zip(DRAFTED_SOURCE.splitlines(), fixed.splitlines(), strict=False):
        if old != new:
            console.print(f"- {old}\n+ {new}", markup=False, highlight=False)
    console.print(json.dumps(played.result), markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
