"""Workflows that are retried, forked and replayed; see sdk_flows.py."""

import os
from typing import Any

from pydantic import BaseModel

from planaria import Workflow, call, code, generate, tool


class Job(BaseModel):
    ledger: str  # a file in which every effect leaves a line
    flag: str  # a file that mends what fails without it
    n: int = 1


def note(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


@tool(effect="once")
def pay(ledger: str, n: int) -> str:
    note(ledger, f"pay {n}")
    return f"paid {n}"


@tool(effect="idempotent")
def put(ledger: str, n: int) -> str:
    note(ledger, f"put {n}")
    return f"put {n}"


@tool(effect="read")
def look(flag: str) -> str:
    """Fails until a file is there."""
    if not os.path.exists(flag):
        raise LookupError(f"there is no {os.path.basename(flag)}")
    return "looked"


TOOLS = [pay, put, look]
EFFECT = {"ledger": "{{ input.ledger }}", "n": "{{ input.n }}"}
steps: list[dict[str, Any]] = [
    call("pay", pay, args=EFFECT),
    call("put", put, args=EFFECT, needs=["pay"]),
    call("look", look, args={"flag": "{{ input.flag }}"}, needs=["put"]),
    code("close", source="[input, 'done']", input="{{ steps.put.output }}", needs=["look"]),
]
stepwise = Workflow("stepwise", input=Job, tools=TOOLS, steps=steps)
SOURCE = """
done = [pay(ledger=input['ledger'], n=1), put(ledger=input['ledger'], n=2)]
done + [look(flag=input['flag'])]
"""
inside = Workflow("inside", input=Job, tools=TOOLS, steps=[
    code("all", source=SOURCE, tools=["pay", "put", "look"]),
])  # fmt: skip
caller = Workflow("caller", input=Job, workflows=[stepwise], steps=[
    {"id": "call", "uses": "workflow.call",
        "with": {"workflow": "stepwise", "input": "{{ input }}"}},
])  # fmt: skip
asking = Workflow("asking", models={"w": "test"}, input=str, output=str, steps=[
    generate("ask", model="w", prompt="Say {{ input }}.", instructions="Be brief."),
])  # fmt: skip


@tool(effect="read")
def double(n: int) -> int:
    return 2 * n


small = Workflow("small", input=int, tools=[double], steps=[
    call("twice", double, args={"n": "{{ input }}"}),
])  # fmt: skip
