"""Importing this makes a workflow with a tool once, so that a forked child finds all of it warm.

Fork servers import it by way of the worker's main module. Without it each child that loaded a
user's module paid 0.3 s of CPU for the first `@tool` and `Workflow` of its life: it imported the
authoring half of planaria, and pydantic built its first schemas.
"""

from typing import Any

from planaria import Workflow, tool


def _echo(text: str, count: int = 1) -> dict[str, str | int]:
    """Returns what it gets."""
    return {"text": text, "count": count}


_tool: Any = tool(effect="read", name="echo")(_echo)
_tool.returns.dump(_echo(**_tool.load_arguments({"text": "warm", "count": 1})))
Workflow(
    id="planaria.warm-up",
    input=dict[str, str],
    tools=[_tool],
    steps=[{"id": "only", "uses": "tool.call", "with": {"tool": "echo", "args": {"text": "warm"}}}],
)
