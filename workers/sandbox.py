"""Runs Python that a planner or a person wrote in the pydantic-monty interpreter.

The body is pure apart from the tools that it calls: clock and randomness are fixed, files,
network, environment and sleeping are refused, and the n-th tool call of the body (0, 1, 2, … in
call order) has position n in the journal. So the body can be run again from its start with the
recorded outcomes and does the same.

What the body gives: the value of a top-level `return`, else of its last statement when that is
an expression, else of the name `result` or `output` when the body assigns it, else null. It has
to be plain JSON. A tool is called like a function or awaited, as the author likes, and
`asyncio.gather` runs several at once.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pydantic_monty as monty
from pydantic_monty._binary import find_monty_binary

from planaria.protocol.codec import Json
from planaria.protocol.errors import RecordedError, ValueRefusedError
from planaria.protocol.limits import UNACKNOWLEDGED_APPENDS_MAX
from planaria.protocol.values import check_json

from .call_sites import CallSites
from .code_body import IMPORTS, CodeBody, SandboxError, SandboxLimits, make_failure

ToolCall = Callable[[int, str, list[Json], dict[str, Json]], Awaitable[Json]]

# More would overrun the session's link; a fixer's try is itself a call, around those of its code.
PARALLEL_CALLS_MAX = UNACKNOWLEDGED_APPENDS_MAX - 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXCEPTION_NAMES = frozenset(get_args(monty.ExcType))
# Values that the interpreter hands out as their text: taken for text they would pass as results.
_TEXT_OF_NO_VALUE = re.compile(
    r"<(function '.*' at 0x[0-9a-f]+|coroutine .*|class '.*'|module '.*'|tool \w+|\w+ object)>"
    r"|range\(-?\d+, -?\d+(, -?\d+)?\)|dict_(keys|values|items)\(\[.*\]\)|re\.compile\(.*\)"
    r"|\[\.\.\.\]|\{\.\.\.\}",
    re.DOTALL,
)


@asynccontextmanager
async def open_pool() -> AsyncIterator[monty.AsyncMonty]:
    """Gives a pool of one interpreter process, for several runs of bodies one after another.

    The process dies with this one: by the parent-death signal where `setpriv` is installed,
    else by its time limit (a spinning interpreter outlives its killed parent otherwise).
    """
    descriptor, path = _make_wrapper()
    try:
        async with monty.AsyncMonty(binary_path=path, max_processes=1) as pool:
            yield pool
    finally:
        if descriptor is not None:
            os.close(descriptor)


async def run_code(
    source: str,
    *,
    input: Json,
    tools: Collection[str],
    call: ToolCall,
    seed: bytes,
    clock_us: int,
    limits: SandboxLimits | None = None,
    on_output: Callable[[str], None] | None = None,
    pool: monty.AsyncMonty | None = None,
) -> Json:
    """Returns the JSON result of a body that sees `input` and the named tools, nothing else.

    `call(position, tool, args, kwargs)` performs or replays a tool call; a RecordedError of it is
    raised inside the body, which may catch it, and any other error ends the run. Cancelling the
    task cancels the calls in flight. `on_output` gets what was printed, once, also on failure.

    Raises:
        SandboxError: the body failed or reached a limit.
    """
    limits = limits or SandboxLimits()
    body = CodeBody(source, limits)
    if pool is not None:
        return await _run_in(pool, body, input, tools, call, seed, clock_us, on_output)
    async with open_pool() as own:
        return await _run_in(own, body, input, tools, call, seed, clock_us, on_output)


@dataclass(slots=True)
class _Calls:
    """The tool calls of one run of a body, numbered 0, 1, 2, … in call order, without holes."""

    perform: ToolCall
    next_position: int = 0
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARALLEL_CALLS_MAX))
    open: dict[int, asyncio.Task[Any]] = field(default_factory=dict)

    def take_position(self) -> int:
        """Returns the next position; refused calls take none, so the journal has no holes."""
        self.next_position += 1
        return self.next_position - 1

    async def answer(
        self, position: int, tool: str, args: list[Json], kwargs: dict[str, Json]
    ) -> Any:
        """Returns what the sandbox gets for a call: a value, or an exception to raise there."""
        try:
            async with self.gate:
                return {"return_value": await self.perform(position, tool, args, kwargs)}
        except RecordedError as error:
            return _exception_for(error)

    async def settle(self, call_ids: Collection[int]) -> dict[int, Any]:
        """Returns the answers of these calls in the order of their ids.

        All are waited for, in any order of arrival: which of them the body sees first must
        not depend on which tool was quicker.
        """
        await asyncio.wait([self.open[call_id] for call_id in call_ids])
        return {call_id: self.open.pop(call_id).result() for call_id in sorted(call_ids)}

    async def finish(self) -> list[int]:
        """Waits for calls that the body never awaited; returns their ids."""
        left = sorted(self.open)
        if left:
            await self.settle(left)
        return left

    async def cancel(self) -> None:
        for task in self.open.values():
            task.cancel()
        await asyncio.gather(*self.open.values(), return_exceptions=True)
        self.open.clear()


async def _run_in(
    pool: monty.AsyncMonty,
    body: CodeBody,
    input: Json,
    tools: Collection[str],
    call: ToolCall,
    seed: bytes,
    clock_us: int,
    on_output: Callable[[str], None] | None,
) -> Json:
    printed = monty.CollectString(max_bytes=body.limits.output_bytes)
    calls = _Calls(call)
    try:
        async with pool.checkout(
            limits=_resource_limits(body.limits), os_policy=_os_policy(seed, clock_us)
        ) as session:
            value = await _drive(session, body, input, tools, calls, printed)
        left = await calls.finish()
        _check_result(value, left)
        return value
    except monty.MontyError as error:
        # The effects of calls that nobody awaits any more still have to be recorded.
        await calls.finish()
        raise _translate(error, body.limits) from error
    finally:
        await calls.cancel()
        if on_output is not None and printed.output:
            on_output(printed.output)


async def _drive(
    session: monty.AsyncMontySession,
    body: CodeBody,
    input: Json,
    tools: Collection[str],
    calls: _Calls,
    printed: monty.CollectString,
) -> Any:
    """Answers what the body asks for until it has ended."""
    snapshot: Any = await session.feed_start(
        body.source, inputs={"input": input}, print_callback=printed
    )
    while True:
        match snapshot:
            case monty.MontyComplete():
                return snapshot.output
            case monty.AsyncNameLookupSnapshot():
                if snapshot.object_id is None and snapshot.variable_name in tools:
                    snapshot = await snapshot.resume(value=_make_stand_in(snapshot.variable_name))
                else:
                    snapshot = await snapshot.resume()
            case monty.AsyncFutureSnapshot():
                answers = await calls.settle(snapshot.pending_call_ids)
                snapshot = await snapshot.resume(answers)
            case monty.AsyncFunctionSnapshot():
                snapshot = await _answer_call(snapshot, body, tools, calls)
            case _:
                raise AssertionError(f"unknown snapshot {type(snapshot).__name__}")


async def _answer_call(
    snapshot: monty.AsyncFunctionSnapshot, body: CodeBody, tools: Collection[str], calls: _Calls
) -> Any:
    name = str(snapshot.function_name)
    if snapshot.is_os_function:
        return await snapshot.resume(_refuse_system_call(name, snapshot.args))
    tool = name.removeprefix("<tool ").removesuffix(">")
    if tool not in tools:
        message = f"name {name!r} is not defined; the tools here are {sorted(tools)}"
        return await snapshot.resume({"exc_type": "NameError", "message": message})
    args, kwargs = list(snapshot.args), dict(snapshot.kwargs)
    try:
        _check_plain([*args, kwargs], "$")
    except ValueRefusedError as refused:
        message = f"an argument of {tool}() is no plain JSON: {refused.reason}"
        return await snapshot.resume({"exc_type": "TypeError", "message": message})
    answer = calls.answer(calls.take_position(), tool, args, kwargs)
    if _is_awaited(snapshot, body.sites):
        calls.open[snapshot.call_id] = asyncio.create_task(answer)
        return await snapshot.resume({"future": ...})
    return await snapshot.resume(await answer)


def _is_awaited(snapshot: monty.AsyncFunctionSnapshot, sites: CallSites) -> bool:
    position = snapshot.position
    if snapshot.allow_eager_await:
        return True
    # Offsets inside eval() and exec() text are offsets into that text.
    return position.filename != "<string>" and sites.is_awaited(position.start, position.end)


def _make_stand_in(tool: str) -> Callable[..., None]:
    """Returns what a tool's name is bound to when it is used other than by calling it there.

    Its name isn't the tool's, so that a result that holds the tool is no text that looks right.
    """

    def stand_in(*args: object, **kwargs: object) -> None:
        raise AssertionError("tools are answered from snapshots")

    stand_in.__name__ = f"<tool {tool}>"
    return stand_in


def _refuse_system_call(name: str, args: tuple[Any, ...]) -> Any:
    if name == "import":
        message = f"no module {str(args[0])!r} here; there are {', '.join(sorted(IMPORTS))}"
        return {"exc_type": "ModuleNotFoundError", "message": message}
    message = f"{name} isn't available in a code step; use a tool"
    return {"exc_type": "PermissionError", "message": message}


def _exception_for(error: RecordedError) -> Any:
    """Returns a recorded failure under its own type where the sandbox has that type."""
    name, message = str(error.fields.get("name", "")), str(error.fields.get("message", ""))
    if name in _EXCEPTION_NAMES and not name.startswith(("SystemExit", "Keyboard", "Base")):
        return {"exc_type": name, "message": message}
    return {"exc_type": "RuntimeError", "message": f"{name}: {message}"}


def _resource_limits(limits: SandboxLimits) -> monty.ResourceLimits:
    return {
        "max_memory": limits.memory_bytes,
        "max_feed_duration_secs": limits.execution_seconds,
        "max_recursion_depth": limits.recursion_depth,
        "max_suspensions": limits.suspensions,
    }


def _os_policy(seed: bytes, clock_us: int) -> monty.OSPolicy:
    """Returns a clock that stands still at the attempt's start, and seeded randomness.

    Both are answered inside the interpreter, also for modules that code reaches through exec():
    answering them from here gives the same values for a round trip each.
    """
    return {
        "datetime": _EPOCH + timedelta(microseconds=clock_us),
        "timezone": "utc",
        "sleep": "call_host",
        "process_time": "zero",
        "random_start": {"seed": seed},
    }


def _make_wrapper() -> tuple[int | None, Path | None]:
    """Returns a script in memory that starts the interpreter with a parent-death signal.

    In memory, so that a killed process leaves no file behind. (None, None) where that can't be.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or not hasattr(os, "memfd_create"):
        return None, None
    binary = find_monty_binary()
    try:
        descriptor = os.memfd_create("planaria-sandbox", os.MFD_CLOEXEC)
    except OSError:
        return None, None
    script = f'#!/bin/sh\nexec "{setpriv}" --pdeathsig KILL -- "{binary}" "$@"\n'
    try:
        os.write(descriptor, script.encode())
        os.fchmod(descriptor, 0o500)
    except OSError:
        os.close(descriptor)
        return None, None
    return descriptor, Path(f"/proc/{os.getpid()}/fd/{descriptor}")


def _check_result(value: Any, left: list[int]) -> None:
    try:
        _check_plain(value, "$")
    except ValueRefusedError as refused:
        hint = "; a tool call is never awaited" if left else ""
        message = f"the result is no plain JSON: {refused}{hint}"
        raise make_failure("result", message) from refused


def _check_plain(value: Any, path: str) -> None:
    """Refuses what isn't JSON, and text that stands for a function, a range, a coroutine, ….

    Raises:
        ValueRefusedError: with the path of the first such value.
    """
    check_json(value, path=path)
    level: list[tuple[Any, str]] = [(value, path)]
    while level:
        item, at = level.pop()
        if isinstance(item, dict):
            level.extend((part, f"{at}.{key}") for key, part in item.items())
        elif isinstance(item, list):
            level.extend((part, f"{at}[{index}]") for index, part in enumerate(item))
        elif isinstance(item, str) and _TEXT_OF_NO_VALUE.fullmatch(item):
            raise ValueRefusedError(path=at, reason=f"{item[:80]} is no value; give plain data")


def _translate(error: monty.MontyError, limits: SandboxLimits) -> SandboxError:
    """Returns the interpreter's error under the kind that a caller reacts to."""
    text = str(error)
    show = getattr(error, "display", None)
    display = str(show()) if show is not None else text
    if isinstance(error, monty.MontyCrashedError):
        return make_failure("time_limit" if error.timed_out else "crashed", text, display)
    if isinstance(error, monty.MontySyntaxError) or "The monty syntax parser does not" in text:
        return make_failure("syntax", text, display)
    if "feed time limit exceeded" in text:
        message = (
            f"it ran for more than {limits.execution_seconds} s, the most that a code step may "
            "take without its tools: do less in it, or put the work into a tool"
        )
        return make_failure("time_limit", message, display)
    if text.endswith(f"> {limits.output_bytes} bytes") and "memory limit exceeded" in text:
        message = f"it printed more than {limits.output_bytes} bytes: print less"
        return make_failure("output_limit", message)
    if "memory limit exceeded" in text:
        message = (
            f"it needed more than {limits.memory_bytes} bytes of memory, the most that a code "
            "step gets: work on less at a time, or put the work into a tool"
        )
        return make_failure("memory_limit", message, display)
    if "suspension limit" in text and "exceeded" in text:
        message = (
            f"it made more than {limits.suspensions} tool calls, the most that a code step may "
            "make: take several steps, or a tool that does more at once"
        )
        return make_failure("call_limit", message, display)
    return make_failure("raised", text, display)
