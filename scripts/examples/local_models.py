"""What the examples' local models share: they need no key, and work from what the tools return."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart

LATENCY_SECONDS = 0.25  # a provider takes seconds; so much is enough for a kill to come


def read_returns(messages: Sequence[ModelMessage]) -> list[tuple[str, Any]]:
    """Returns what the tools returned in the last turn, each with the tool's name."""
    parts = messages[-1].parts
    return [(part.tool_name, part.content) for part in parts if isinstance(part, ToolReturnPart)]
