"""Tools of an agent that the session itself carries out, each with its own way into the journal."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai import FunctionToolset, Tool

from planaria.protocol.codec import Json

from .agent_effects import METADATA_KEY


@dataclass(frozen=True, slots=True)
class HostedCall:
    """A call by the model: where it stands in the run, and what it asks for."""

    position: str
    turn: int
    index: int | None
    tool_name: str
    args: dict[str, Json]

    @property
    def details(self) -> dict[str, Json]:
        """What the intent of every call by a model says of its place."""
        index = {} if self.index is None else {"callIndex": self.index}
        return {"turn": self.turn, **index}


# Returns the call's result, recorded or not. It may raise ModelRetry before anything is on record.
Host = Callable[[HostedCall], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class HostedTool:
    """A tool whose signature and description are those of `function`, which is never called.

    A sequential one runs alone: the calls before it in a turn end first, those after it wait.
    Another's call isn't waited for when the run ends without it.
    """

    function: Callable[..., Any]
    host: Host
    description: str
    is_sequential: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__


def make_hosted_toolset(tools: Sequence[HostedTool]) -> FunctionToolset[Any]:
    """Returns the toolset by which an agent sees its hosted tools."""
    made = [
        Tool(
            tool.function,
            name=tool.name,
            description=tool.description,
            sequential=tool.is_sequential,
            metadata={METADATA_KEY: {"effect": "managed"}},
        )
        for tool in tools
    ]
    return FunctionToolset(made, id="hosted")
