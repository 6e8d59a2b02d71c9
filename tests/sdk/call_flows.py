"""Workflows that are called by others and ask no model; see sdk_flows.py.

Apart from role_flows.py, so that their children need no pydantic-ai (1.6 s).
"""

import asyncio
import os

from planaria import Workflow, call, tool


@tool(effect="read")
def fail(text: str) -> str:
    raise LookupError(text)


@tool(effect="once")
async def wait_for(path: str) -> str:
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    return "passed"


failing = Workflow("failing", "Fails.", tools=[fail], steps=[
    call("bad", fail, args={"text": "no such row"}),
])  # fmt: skip
gated = Workflow("gated", input=str, tools=[wait_for], steps=[
    call("gate", wait_for, args={"path": "{{ input }}"}),
])  # fmt: skip
forgetful = Workflow("forgetful", input=str, workflows=[gated], steps=[
    {"id": "call", "uses": "workflow.call",
        "with": {"workflow": "gated", "input": "{{ input }}", "wait": False}},
])  # fmt: skip
impatient = Workflow("impatient", input=str, workflows=[gated], steps=[
    {"id": "call", "uses": "workflow.call", "timeout": "200ms",
        "with": {"workflow": "gated", "input": "{{ input }}"}},
])  # fmt: skip
relying = Workflow("relying", workflows=[failing], steps=[
    {"id": "call", "uses": "workflow.call", "with": {"workflow": "failing", "input": None}},
])  # fmt: skip
