"""A tiny MCP server over stdio; writes a line for its start and for each call to argv[1]."""

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("echo", log_level="ERROR")


def note(text: str) -> None:
    with Path(sys.argv[1]).open("a") as notes:
        notes.write(text + "\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> str:
    note("echo")
    return text.upper()


@server.tool()
def send(text: str) -> str:
    note("send")
    return "sent " + text


note("start")
server.run()
