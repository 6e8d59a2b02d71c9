"""An agent with the tools of an MCP server; apart from the others, for its library takes 2 s."""

import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset, StdioTransport
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from planaria import Workflow, generate


def ask_echo(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn < 2:
        name = ("echo", "send")[turn]
        return ModelResponse(parts=[ToolCallPart(name, {"text": "hi"}, tool_call_id=name)])
    return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])  # type: ignore[union-attr]


# Beside the copy of this file; the notes go to the folder that the run was admitted from.
_SERVER = [str(Path(__file__).with_name("mcp_echo_server.py")), "mcp-notes.txt"]
_TRANSPORT = StdioTransport(sys.executable, _SERVER)
mcp_agent = Agent(
    FunctionModel(ask_echo), name="mcp",
    toolsets=[MCPToolset(_TRANSPORT, id="echo", init_timeout=40)],
)  # fmt: skip
mcp_flow = Workflow("agents.mcp", output=str, models={"mcp": mcp_agent}, steps=[
    generate("ask", model="mcp", prompt="Echo.", output=str),
])  # fmt: skip
