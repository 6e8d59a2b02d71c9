"""Runs sandboxed code for a step, with the step's input and tools; its calls go to the journal."""

import functools
import hashlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from planaria.protocol.codec import Json
from planaria.protocol.effects import strip_attempts

from .definitions import Tool
from .journal import Journal
from .session import Session
from .tool_calls import ToolRunner, bind_arguments, find_lookup, load_arguments


class CodeRunner:
    """What a process keeps between codes: the interpreter, once there has been one."""

    def __init__(self, tools: ToolRunner, stack: AsyncExitStack) -> None:
        self._tools = tools
        self._stack = stack
        self._pool: Any = None

    async def run(
        self,
        source: str,
        input: Json,
        tools: Sequence[Tool],
        session: Session,
        journal: Journal,
        *,
        prefix: str = "",
    ) -> Json:
        """Returns what the source gives; its n-th tool call has the position `<prefix>c<n>`.

        Raises:
            SandboxError: the source failed, or reached a limit.
        """
        # Imported here: the interpreter takes 0.3 s, and most processes never need it.
        from .sandbox import open_pool, run_code

        named = {tool.name: tool for tool in tools}

        async def call(n: int, name: str, args: list[Json], kwargs: dict[str, Json]) -> Json:
            tool = named[name]
            bound = bind_arguments(tool, args, kwargs)
            arguments = load_arguments(tool, bound)
            return await journal.call_tool(
                position=f"{prefix}c{n}",
                caller="code",
                tool_name=name,
                args=bound,
                effect=tool.effect,
                lookup=find_lookup(tool),
                details={"callIndex": n},
                body=functools.partial(self._tools.run, tool, arguments, quiet=session.sensitive),
            )

        if self._pool is None:
            self._pool = await self._stack.enter_async_context(open_pool())
        return await run_code(
            source,
            input=input,
            tools=named,
            call=call,
            seed=hashlib.sha256(strip_attempts(session.step_path).encode()).digest(),
            clock_us=session.started_at,
            on_output=None if session.sensitive else print,
            pool=self._pool,
        )
