"""An ordinary pydantic-ai agent with dependencies and the tools of an MCP server.

Nothing in here knows of planaria. `LIBRARY_FOLDER` names the folder that its server looks into.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger
from fastmcp.client.transports import StdioTransport
from ledger import PATH_VARIABLE, noted
from local_models import read_returns
from pydantic_ai import Agent, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from reviewers import NotedModel, count_turns

FOLDER_VARIABLE = "LIBRARY_FOLDER"
# Longer than the other examples' models take: kills have to come before it has answered, for what
# follows are calls that must not be cut off.
LATENCY_SECONDS = 0.6
START_SECONDS = 40  # a busy machine takes long to start the server


@dataclass(frozen=True, slots=True)
class Desk:
    """The agent's dependencies: what it is to look for, and how much it may read."""

    word: str
    modules: int


async def research(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Asks the desk, finds modules, outlines each and files a finding on it; then reports."""
    await asyncio.sleep(LATENCY_SECONDS)
    turn = count_turns(messages)
    if turn == 0:
        return ModelResponse([ToolCallPart("ask_desk", {})])
    name, found = read_returns(messages)[-1]
    if name == "ask_desk":
        return ModelResponse([ToolCallPart("find_modules", {"word": found["word"]})])
    listed = read_all(messages, "find_modules")
    modules = as_list(listed[0])[: read_all(messages, "ask_desk")[0]["modules"]]
    filed = len(read_all(messages, "file_finding"))
    if name == "outline_module":
        text = f"{modules[filed]} defines {', '.join(str(found).split()) or 'nothing public'}"
        return ModelResponse(
            [ToolCallPart("file_finding", {"module": modules[filed], "text": text})]
        )
    if filed < len(modules):
        return ModelResponse([ToolCallPart("outline_module", {"module": modules[filed]})])
    answers = [str(answer) for answer in read_all(messages, "file_finding")]
    return ModelResponse([TextPart("\n".join(answers))])


def read_all(messages: list[ModelMessage], tool: str) -> list[Any]:
    """Returns all that a tool has returned so far."""
    return [
        content for message in messages for name, content in read_returns([message]) if name == tool
    ]


def as_list(content: Any) -> list[str]:
    """Returns a list that an MCP tool returned, which may come in an object."""
    return list(content["result"] if isinstance(content, dict) else content)


_SERVER = [str(Path(__file__).with_name("library_server.py")), os.environ.get(FOLDER_VARIABLE, ".")]
_MODULES = str(Path(ledger.__file__).parent)  # the server writes into the same ledger
_TRANSPORT = StdioTransport(
    sys.executable,
    _SERVER,
    env={"PYTHONPATH": _MODULES, PATH_VARIABLE: os.environ.get(PATH_VARIABLE, "")},
)
researcher = Agent(
    NotedModel("researcher", FunctionModel(research, model_name="local")),
    name="researcher",
    deps_type=Desk,
    toolsets=[MCPToolset(_TRANSPORT, id="library", init_timeout=START_SECONDS)],
)


@researcher.tool
def ask_desk(ctx: RunContext[Desk]) -> dict[str, Any]:
    """Returns what is to be looked for, and in how many modules."""
    with noted("tool", "ask_desk", str(os.getpid()), "ask_desk "):
        return {"word": ctx.deps.word, "modules": ctx.deps.modules}
