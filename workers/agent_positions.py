"""Where in an agent's run an operation stands; never when it arrived.

An async hook of varying speed swaps the order in which two tool calls of one turn arrive. By order
of arrival their recorded answers would be swapped on replay, so a call's position is its index in
the model's response (test_slow_hooks_do_not_swap_answers).
"""

from collections import Counter
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelResponse, ToolCallPart


class Positions:
    """Hands out the positions of one agent run."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of_model_request(self, ctx: RunContext[Any]) -> str:
        """Returns `m<step>.<n>`: requests of one step follow each other, so counting is stable."""
        return f"m{ctx.run_step}.{self._count(f'm{ctx.run_step}')}"

    def of_tool_call(self, ctx: RunContext[Any], tool_name: str) -> tuple[str, int | None]:
        """Returns `t<step>.<index>` and the call's index in the response."""
        index = call_index(ctx)
        return self._of_call("t", ctx, tool_name, index), index

    def of_validation(self, ctx: RunContext[Any], tool_name: str) -> str:
        """Returns `v<step>.<index>`: checking the arguments of a call comes before the call."""
        return self._of_call("v", ctx, tool_name, call_index(ctx))

    def of_operation(self, name: str) -> str:
        """Returns `o.<name>.<n>`; operations of one name follow each other."""
        return f"o.{name}.{self._count('o.' + name)}"

    def _of_call(self, kind: str, ctx: RunContext[Any], tool_name: str, index: int | None) -> str:
        # A call that stands in no response (made by code, not by the model) is counted by name.
        place = f"{kind}{ctx.run_step}.{tool_name if index is None else index}"
        again = self._count(place)
        # A capability may call a tool twice for one call of the model; such a repetition is another
        # call. The first one has no suffix.
        return f"{place}.{again}" if again or index is None else place

    def _count(self, place: str) -> int:
        seen = self._seen[place]
        self._seen[place] += 1
        return seen


def call_index(ctx: RunContext[Any]) -> int | None:
    """Returns the index of the context's tool call among the calls of the last response."""
    for message in reversed(ctx.messages):
        if isinstance(message, ModelResponse):
            calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
            for index, part in enumerate(calls):
                if part.tool_call_id == ctx.tool_call_id:
                    return index
            return None
    return None
