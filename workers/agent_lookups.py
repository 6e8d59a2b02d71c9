"""Lookups of an agent's `managed` tools: what they find, in the form of the calls themselves."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.durable_exec._toolset import CallToolResult, wrap_tool_call_result
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_ai.toolsets.function import FunctionToolsetTool

from planaria.lookups import Reattach
from planaria.protocol.codec import Json

from .agent_codec import dump_result, dump_untyped, encode_outcome, return_annotation
from .reattaching import Lookup


class ToolLookups:
    """The lookups of one agent, by the names of its tools."""

    def __init__(self, reattach: Mapping[str, Reattach]) -> None:
        self._reattach = dict(reattach)

    def of(
        self,
        names: Iterable[str],
        tool: ToolsetTool[Any] | ToolDefinition | None,
        toolset: WrapperToolset[Any] | None,
    ) -> Lookup | None:
        """Returns the lookup of a tool; `names` as in ToolEffects.of, `toolset` wraps its leaf.

        What it finds is checked by the type that the tool's function declares, where it is seen.
        """
        names = tuple(names)
        ask = next((self._reattach[name] for name in names if name in self._reattach), None)
        if ask is None:
            return None

        async def encode(result: Any) -> Json:
            if isinstance(tool, FunctionToolsetTool):
                leaf = None if toolset is None else toolset.wrapped
                source = getattr(leaf, "tools", {}).get(tool.original_name or names[-1])
                annotation = Any if source is None else return_annotation(source.function)
                dumped = dump_result(result, annotation)
            else:
                dumped = dump_untyped(result)
            payload = await wrap_tool_call_result(_give(dumped))
            return encode_outcome(JSON_CODEC.dump(CallToolResult, payload), None)

        return Lookup(ask, encode)


async def _give(value: Any) -> Any:
    return value
