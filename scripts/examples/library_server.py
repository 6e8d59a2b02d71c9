"""An MCP server over stdio: it looks things up in a folder of Python files, and files findings.

An ordinary server that knows nothing of planaria. Where the environment names a ledger it writes
there what it really carried out, for the process that started it.
"""

import ast
import os
import sys
from pathlib import Path

from ledger import noted
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("library", log_level="ERROR")
FOLDER = Path(sys.argv[1])
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
CLIENT = str(os.getppid())  # asked for now: once it has been killed, another one is the parent


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find_modules(word: str) -> list[str]:
    """Finds the modules in which a word stands."""
    with noted("tool", "find_modules", CLIENT, f"find_modules {word}"):
        paths = sorted(FOLDER.glob("*.py"))
        return [path.name for path in paths if word in path.read_text(encoding="utf-8")]


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def outline_module(module: str) -> str:
    """Returns the public functions and classes of a module, one in each line."""
    with noted("tool", "outline_module", CLIENT, f"outline_module {module}"):
        tree = ast.parse((FOLDER / Path(module).name).read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, Definition)]
        return "\n".join(name for name in names if not name.startswith("_"))


@server.tool()
def file_finding(module: str, text: str) -> str:
    """Files a finding. It has no annotation, so it counts as `once`: it must not happen twice."""
    with noted("tool", "file_finding", CLIENT, f"file_finding {module}"):
        return f"filed {len(text)} characters on {module}"


server.run()
