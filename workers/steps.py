"""Carries out one attempt of a step: `tool.call`, `code.run` or `ai.generate`."""

import functools
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from planaria.protocol.codec import Json, sort_keys
from planaria.protocol.effects import strip_attempts
from planaria.protocol.errors import RecordedError

from . import warm_up  # noqa: F401  # for the children: see there
from .definitions import Definitions, find_tool
from .failures import StepConfigError, describe_step_error, make_step_error
from .journal import Journal
from .link import Report
from .outcomes import HIDDEN
from .session import Session, StepValues
from .tool_calls import ToolRunner, bind_arguments


@dataclass(frozen=True, slots=True)
class Attempt:
    """All that a step's attempt is carried out with."""

    session: Session
    values: StepValues
    journal: Journal


class StepRunner:
    """What a process keeps between steps: loaded definitions, threads, a code interpreter."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._tools = ToolRunner()
        self._stack = AsyncExitStack()
        self._pool: Any = None
        self._kinds: dict[str, Callable[[Attempt], Awaitable[Json]]] = {
            "tool.call": self._call_tool,
            "code.run": self._run_code,
            "ai.generate": self._generate,
        }

    async def run(self, attempt: Attempt) -> Json:
        """Returns the step's output; for a `tool.call` its end is reported already.

        Raises:
            Exception: whatever ended the step; see failures.describe_step_error.
        """
        kind = attempt.session.step["uses"]
        if kind not in self._kinds:
            raise StepConfigError(message=f"no worker carries out steps of kind {kind!r}")
        return await self._kinds[kind](attempt)

    async def close(self) -> None:
        """Ends the threads and the interpreter; a process that exits at once needs not wait."""
        self._tools.close()
        await self._stack.aclose()

    async def _call_tool(self, attempt: Attempt) -> Json:
        session, journal = attempt.session, attempt.journal
        asked = session.step["with"]
        args = sort_keys(attempt.values.evaluate(asked.get("args", {})))
        details = {"input": attempt.values.input()} if "input" in session.step else None
        effect = "read"
        body: Callable[[], Awaitable[Json]] = _perform_nothing
        if not journal.has_outcome("s0"):
            tool = find_tool(self._definitions.find(session.source), asked["tool"])
            # Before the intent: arguments that don't fit are an ordinary failure. A copy, for
            # the tool may change what it gets.
            arguments = tool.load_arguments(sort_keys(args))
            effect = tool.effect
            body = functools.partial(self._tools.run, tool, arguments, quiet=session.sensitive)
        return await journal.call_tool(
            position="s0",
            caller="step",
            tool_name=asked["tool"],
            args=args,
            effect=effect,
            body=body,
            ending=functools.partial(_make_ending, session),
            details=details,
        )

    async def _run_code(self, attempt: Attempt) -> Json:
        # Imported here: the interpreter takes 0.3 s, and most processes never need it.
        from .sandbox import open_pool, run_code

        session, journal = attempt.session, attempt.journal
        asked = session.step["with"]
        names = asked.get("tools", [])
        tools = {}
        if names:
            definition = self._definitions.find(session.source)
            tools = {name: find_tool(definition, name) for name in names}

        async def call(n: int, name: str, args: list[Json], kwargs: dict[str, Json]) -> Json:
            tool = tools[name]
            named = bind_arguments(tool, args, kwargs)
            arguments = tool.load_arguments(sort_keys(named))
            return await journal.call_tool(
                position=f"c{n}",
                caller="code",
                tool_name=name,
                args=named,
                effect=tool.effect,
                details={"callIndex": n},
                body=functools.partial(self._tools.run, tool, arguments, quiet=session.sensitive),
            )

        if self._pool is None:
            self._pool = await self._stack.enter_async_context(open_pool())
        return await run_code(
            asked["source"],
            input=attempt.values.input(),
            tools=tools,
            call=call,
            seed=hashlib.sha256(strip_attempts(session.step_path).encode()).digest(),
            clock_us=session.started_at,
            on_output=None if session.sensitive else print,
            pool=self._pool,
        )

    async def _generate(self, attempt: Attempt) -> Json:
        # Imported here: only processes of the heavy kind have the agent library loaded.
        from .generate_step import run_generate_step

        definition = self._definitions.find(attempt.session.source)
        return await run_generate_step(attempt.session, attempt.values, attempt.journal, definition)


async def _perform_nothing() -> Json:
    raise AssertionError("a call on record is not performed")


def make_success(output: Json) -> Report:
    """Returns the event that ends a step well."""
    return "harness.execute_step.succeeded", {"output": output}


def make_failure(session: Session, error: BaseException) -> Report:
    """Returns the event that ends a step with what was raised."""
    return _make_failure(session, describe_step_error(error))


def make_cancellation(session: Session, reason: str) -> Report:
    """Returns the event that ends a step that was stopped."""
    message = f"the step was stopped ({reason})"
    return _make_failure(session, make_step_error("Cancelled", message, "cancelled"))


def _make_failure(session: Session, error: dict[str, Any]) -> Report:
    if session.sensitive:
        error = {**error, "message": HIDDEN}
    return "harness.execute_step.failed", {"error": error}


def _make_ending(session: Session, value: Json, error: dict[str, Any] | None) -> Report:
    if error is None:
        return make_success(value)
    return make_failure(session, RecordedError(**error))
