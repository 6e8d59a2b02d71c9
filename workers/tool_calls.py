"""Tools of a definition, called by a step or by code: typed arguments in, recorded JSON out."""

import asyncio
import contextvars
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from planaria.protocol.codec import Json, sort_keys
from planaria.protocol.errors import RecordedError, ValueRefusedError
from planaria.protocol.limits import UNACKNOWLEDGED_APPENDS_MAX

from .definitions import Tool
from .failures import describe_call_error
from .reattaching import Lookup

THREADS_MAX = UNACKNOWLEDGED_APPENDS_MAX - 1  # as many as a session may have calls in flight


class ToolRunner:
    """Runs tools: asynchronous ones in the event loop, the others in threads of their own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="planaria-tool")

    async def run(self, tool: Tool, arguments: Mapping[str, Any], *, quiet: bool = False) -> Json:
        """Returns the tool's result as JSON; `arguments` are typed already.

        What the tool raises is printed, unless `quiet`: the log keeps its name and text only.

        Raises:
            RecordedError: a synchronous tool raised.
            ValueRefusedError: the result can't be recorded exactly.
        """
        if tool.is_async:
            try:
                return _dump_result(tool, await tool.function(**arguments))
            except Exception as error:
                if not quiet:
                    traceback.print_exception(error)
                raise
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        value, raised = await loop.run_in_executor(
            self._threads, lambda: context.run(_call, tool.function, arguments)
        )
        if raised is not None:
            if not quiet:
                traceback.print_exception(raised)
            raise RecordedError(**describe_call_error(raised)) from raised
        return _dump_result(tool, value)

    def close(self) -> None:
        """Lets the threads end after what they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def find_lookup(tool: Tool) -> Lookup | None:
    """Returns how the tool is looked up; what is found is checked like its own result."""
    if tool.reattach is None:
        return None

    async def encode(result: Any) -> Json:
        return _dump_result(tool, result)

    return Lookup(tool.reattach, encode)


def bind_arguments(tool: Tool, args: Sequence[Json], kwargs: Mapping[str, Json]) -> Json:
    """Returns the arguments of a call in code by name, as they are recorded.

    Raises:
        RecordedError: they don't fit the tool's parameters; nothing was called.
    """
    try:
        bound = inspect.signature(tool.function).bind(*args, **kwargs)
    except TypeError as error:
        raise RecordedError(name="TypeError", message=f"{tool.name}(): {error}") from error
    return sort_keys(dict(bound.arguments))


def load_arguments(tool: Tool, bound: Json) -> dict[str, Any]:
    """Returns arguments that code gave with the types that the tool declares.

    Raises:
        RecordedError: one doesn't fit; nothing was called.
    """
    try:
        return tool.load_arguments(sort_keys(bound))
    except ValueRefusedError as error:
        refusal = error
    raise RecordedError(name="TypeError", message=str(refusal))


def _dump_result(tool: Tool, value: Any) -> Json:
    try:
        return tool.returns.dump(value)
    except ValueRefusedError as error:
        refusal = error.said_of(f"the result of tool {tool.name!r} can't be recorded exactly")
    raise refusal  # not chained: pydantic's error would carry the value into tracebacks


def _call(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[Any, BaseException | None]:
    """Returns what a function gave or raised: some exceptions can't leave a thread's future."""
    try:
        return function(**arguments), None
    except BaseException as error:
        # A tool's own SystemExit or KeyboardInterrupt is the tool's failure, not the process's.
        return None, error
