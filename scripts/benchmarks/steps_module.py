"""What the steps of the benchmark do, for planaria: the module that its children import."""

import os
import time
from pathlib import Path
from typing import Any

from planaria import Workflow, tool


@tool(effect="read")
def echo(n: int) -> dict[str, int]:
    """The trivial step body, the same for all peers."""
    return {"n": n}


@tool(effect="read")
def work(n: int, folder: str) -> dict[str, int]:
    """Notes that it works; the first time in each step it then waits to be killed."""
    path = Path(folder) / f"work-{n}"
    is_first = not path.exists()
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {time.monotonic_ns()}\n")
    if is_first:
        time.sleep(60)
    return {"n": n}


def make_chain(name: str, arguments: list[dict[str, Any]]) -> Workflow:
    """Returns the workflow that calls a tool with these arguments, one after another."""
    steps: list[dict[str, Any]] = []
    for i, args in enumerate(arguments):
        needs = {"needs": [f"s{i - 1}"]} if i else {}
        step = {"id": f"s{i}", "uses": "tool.call", "with": {"tool": name, "args": args}}
        steps.append({**step, **needs})
    return Workflow(id="bench.chain", tools=[echo, work], steps=steps)


# The object that a child looks up: only its tools are used there, the steps come with the run.
flow = make_chain("echo", [{"n": 0}])
