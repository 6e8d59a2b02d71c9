"""Tools by which an agent uses its mounts: list_files, read_file, write_file."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pydantic_ai import FunctionToolset, Tool
from pydantic_ai.exceptions import ToolFailed

from .agent_effects import METADATA_KEY
from .mounts import ENTRIES_MAX, FileRefusedError, Mounts


class Reporter(Protocol):
    """What a session's journal does for a tool that has something to report."""

    def report(self, kind: str, payload: dict[str, Any]) -> None: ...


def make_file_tools(mounts: Mounts, journal: Reporter) -> FunctionToolset[Any]:
    """Returns the toolset over these mounts; every write to memory is reported."""

    async def list_files(path: str) -> Any:
        try:
            entries = await asyncio.to_thread(mounts.list_folder, path)
        except FileRefusedError as error:
            raise ToolFailed(str(error)) from error
        shown: list[dict[str, Any]] = [
            {"path": entry.path} | ({} if entry.bytes is None else {"bytes": entry.bytes})
            for entry in entries[:ENTRIES_MAX]
        ]
        return {"files": shown, "leftOut": len(entries) - len(shown)}

    async def read_file(path: str) -> str:
        try:
            return await asyncio.to_thread(mounts.read_file, path)
        except FileRefusedError as error:
            raise ToolFailed(str(error)) from error

    async def write_file(path: str, content: str) -> str:
        try:
            store, inner, digest = await asyncio.to_thread(mounts.write_file, path, content)
        except FileRefusedError as error:
            raise ToolFailed(str(error)) from error
        if store is not None:
            written = {"store": store, "path": inner, "sha256": digest}
            journal.report("harness.memory.written", written)
        return "written"

    tools = [
        _make_tool(
            list_files, "read", "Lists a folder; '' lists your folders:\n" + mounts.describe()
        ),
        _make_tool(read_file, "read", "Returns the text of a file, by its path from list_files."),
        _make_tool(
            write_file,
            "idempotent",
            "Writes a text file whole, with the folders that its path needs. Memory is there for "
            "later runs, scratch only for this session.",
        ),
    ]
    return FunctionToolset(tools, id="files")


def _make_tool(function: Callable[..., Any], effect: str, description: str) -> Tool[Any]:
    # Local: another attempt's file is no reason to leave this one's unwritten.
    metadata = {METADATA_KEY: {"effect": effect, "local": True}}
    return Tool(function, description=description, metadata=metadata)
