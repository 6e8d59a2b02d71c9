"""Importing this makes a workflow with a tool once, so that a forked child finds all of it warm.

Fork servers import it by way of the worker's main module. Without it each child that loaded a
user's module paid 0.3 s of CPU for the first `@tool` and `Workflow` of its life: it imported the
authoring half of planaria, and pydantic built its first schemas.
"""

from planaria import Workflow, tool


@tool(effect="read")
def _echo(text: str, count: int = 1) -> dict[str, str | int]:
    """Returns what it gets."""
    return {"text": text, "count": count}


_echo.returns.dump(_echo(**_echo.load_arguments({"text": "warm", "count": 1})))
Workflow(
    id="planaria.warm-up",
    input=dict[str, str],
    tools=[_echo],
    steps=[
        {"id": "only", "uses": "tool.call", "with": {"tool": "_echo", "args": {"text": "warm"}}}
    ],
)
