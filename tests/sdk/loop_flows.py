"""Workflows and `supervise` functions of outer loops; see sdk_flows.py."""

import asyncio
import os
import time
from typing import Any

from pydantic import BaseModel

from planaria import Continue, Done, Workflow, call, tool


class Job(BaseModel):
    ledger: str  # a file in which every call and every question leaves a line
    flag: str = ""  # a file that is waited for, or must be there


class Report(BaseModel):
    total: int
    note: str = "é"


def note(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


@tool(effect="read")
def count(job: Job, cycle: int) -> int:
    note(job.ledger, f"cycle {cycle}")
    return 10 * cycle


@tool(effect="read")
def wait_for(job: Job, cycle: int) -> int:
    deadline = time.monotonic() + 30
    while not os.path.exists(job.flag) and time.monotonic() < deadline:
        time.sleep(0.01)
    return cycle


@tool(effect="read")
def fail_first(job: Job, cycle: int) -> int:
    if cycle == 1:
        raise LookupError("no such row")
    return cycle


def flow_of(id: str, used: Any, description: str = "", output: Any = None) -> Workflow:
    arguments = {"job": "{{ input }}", "cycle": "{{ cycle.number }}"}
    return Workflow(id, description, input=Job, output=output, tools=[used], steps=[
        call("a", used, args=arguments),
    ])  # fmt: skip


counting = flow_of("counting", count)
redescribed = flow_of("counting", count, "With another goal.")
reporting = flow_of("reporting", count, output=int)
waiting = flow_of("waiting", wait_for)
failing = flow_of("failing", fail_first)

# -- supervise ------------------------------------------------------------------------------


def after_two(state: dict[str, Any]) -> Done | Continue:
    outputs = [cycle["output"] for cycle in state["cycles"]]
    if len(outputs) < 2:
        return Continue(f"had {outputs[-1]}")
    return Done(Report(total=sum(outputs)))


async def after_two_async(state: dict[str, Any]) -> Done | Continue:
    await asyncio.sleep(0)
    return after_two(state)


def never(state: dict[str, Any]) -> Continue:
    return Continue()


def at_once(state: dict[str, Any]) -> Done:
    return Done(state["cycles"][-1]["output"])


def tell_all(state: dict[str, Any]) -> Done | Continue:
    return Done(state) if len(state["cycles"]) == 2 else Continue("again")


def with_file(state: dict[str, Any]) -> Done:
    """Raises until a file is there, whose name it finds in its own output's folder."""
    if not os.path.exists("supervise-flag"):
        raise FileNotFoundError("supervise-flag")
    return Done("found")


def unfit(state: dict[str, Any]) -> Done:
    """Answers what doesn't fit an integer, until a file is there."""
    return Done(7 if os.path.exists("unfit-flag") else "seven")


def speechless(state: dict[str, Any]) -> None:
    return None
