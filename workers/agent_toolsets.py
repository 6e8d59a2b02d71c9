"""Tools inside of their unit: own usage, checked results, no timeout, and none outside of it."""

import copy
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.durable_exec import ParameterTransports, ToolsetCallToolParams
from pydantic_ai.durable_exec._toolset import DurableToolsetBase
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, ToolsetTool, WrapperToolset
from pydantic_ai.toolsets.function import FunctionToolsetTool
from pydantic_ai.usage import RunUsage

from planaria.protocol.errors import UsageError, ValueRefusedError

from .agent_codec import dump_result, return_annotation
from .agent_effects import ToolEffects

# 31 years: a tool's own timeout that fires while its thread goes on would be recorded as a definite
# failure of an effect that may yet happen. None would fall back to the toolset's timeout.
UNLIMITED_SECONDS = 1e9


@dataclass(slots=True)
class Unit:
    """One body that runs: what it used of the model, apart from what its siblings use."""

    usage: RunUsage | None = None  # the tool's own counter, started at the run's
    usage_before: RunUsage | None = None

    def used(self) -> RunUsage | None:
        """Returns what agents inside of the body added, if anything."""
        if self.usage is None or self.usage_before is None:
            return None
        delta = self.usage - self.usage_before
        return delta if delta.requests or delta.tool_calls or delta.has_values() else None


# Set around every body. An operation that starts inside of one (an agent in a tool) belongs to it
# and has no position of its own: on replay the outer call comes from the journal and the inner
# ones don't happen at all.
CURRENT_UNIT: ContextVar[Unit | None] = ContextVar("planaria_unit", default=None)


class Transports(ParameterTransports):
    """Prepares a function tool inside of its unit: own usage, checked result, no timeout."""

    def __init__(self, effects: ToolEffects) -> None:
        self._effects = effects

    async def prepare_function_call(
        self, toolset: FunctionToolset[Any], params: ToolsetCallToolParams
    ) -> ToolsetCallToolParams:
        ctx, unit, tool = params.ctx, CURRENT_UNIT.get(), params.tool
        if unit is not None and unit.usage is None:
            unit.usage, unit.usage_before = copy.deepcopy(ctx.usage), copy.deepcopy(ctx.usage)
            ctx = replace(ctx, usage=unit.usage)
        if isinstance(tool, FunctionToolsetTool):
            source = getattr(toolset, "tools", {}).get(tool.original_name or params.name)
            annotation = Any if source is None else return_annotation(source.function)
            names = (ctx.tool_name or params.name, params.name)
            limited = tool.tool_def.timeout is not None or toolset.timeout is not None
            definition = tool.tool_def
            if limited and self._effects.of("function", names, definition) != "read":
                definition = replace(definition, timeout=UNLIMITED_SECONDS)
            tool = replace(
                tool,
                tool_def=definition,
                call_func=_checked_call(params.name, tool.call_func, annotation),
            )
        return replace(params, ctx=ctx, tool=tool)


def _checked_call(
    name: str, call: Callable[[dict[str, Any], RunContext[Any]], Awaitable[Any]], annotation: Any
) -> Callable[[dict[str, Any], RunContext[Any]], Awaitable[Any]]:
    async def checked(args: dict[str, Any], ctx: RunContext[Any]) -> Any:
        result = await call(args, ctx)
        try:
            return dump_result(result, annotation)
        except ValueRefusedError as error:
            refusal = error.said_of(f"the result of tool {name!r} can't be recorded exactly")
        raise refusal  # not chained, as in ToolRunner

    return checked


class GuardedToolset(WrapperToolset[Any]):
    """A toolset that came in by a way which the journal doesn't see: calling it is refused."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if CURRENT_UNIT.get() is None:
            raise UsageError(
                message=f"tool {name!r} of {self.wrapped.label} would run outside of the journal "
                "and again on every replay: it was given at run time. Give its toolset to the "
                "Agent when that is built, or to the worker as one of its own"
            )
        return await super().call_tool(name, tool_args, ctx, tool)


def guard_leaf(leaf: AbstractToolset[Any]) -> AbstractToolset[Any]:
    if isinstance(leaf, DurableToolsetBase | ExternalToolset | GuardedToolset):
        return leaf
    return GuardedToolset(leaf)


def give_ids(toolsets: Sequence[AbstractToolset[Any]]) -> None:
    """Names the leaf toolsets that have no id, by their place: pydantic-ai refuses them else."""
    leaves: list[AbstractToolset[Any]] = []
    for toolset in toolsets:
        toolset.apply(leaves.append)
    for index, leaf in enumerate(leaves):
        if leaf._explicit_id is None and hasattr(leaf, "_id"):
            setter = getattr(leaf, "_set_id", None)  # MCP: also says that it was chosen
            if setter is not None:
                setter(f"toolset-{index}")
            else:
                vars(leaf)["_id"] = f"toolset-{index}"
