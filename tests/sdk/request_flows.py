"""Definitions that requests are made of; a fixture copies this file to a project of its own."""

from typing import Any

from planaria import Continue, Done, Planner, Workflow, call, tool


@tool(effect="read")
def look(key: str) -> str:
    return key


flow = Workflow(
    "flow", "Looks.", input=str, tools=[look], steps=[call("a", look, args={"key": "{{ input }}"})]
)
planned = Workflow("planned", "Plans.", models={"m": "test"}, planner=Planner("m"))
outer = Workflow(
    "outer",
    workflows=[flow],
    steps=[{"id": "s", "uses": "workflow.call", "with": {"workflow": "flow", "input": "x"}}],
)


def supervise(state: Any) -> Done | Continue:
    return Done(state)
