"""Carries out one session's task: a step of some kind, a plan, an orchestration, a fix."""

import functools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.codec import Json, sort_keys
from planaria.protocol.errors import RecordedError

from . import warm_up  # noqa: F401  # for the children: see there
from .code_runner import CodeRunner
from .definitions import Definitions, find_tool
from .failures import StepConfigError, describe_step_error, make_step_error
from .journal import Journal
from .link import Report
from .mounts import open_mounts
from .outcomes import HIDDEN
from .session import Session, StepValues
from .tool_calls import ToolRunner, find_lookup


@dataclass(frozen=True, slots=True)
class Attempt:
    """All that a step's attempt is carried out with; `metadata` goes with its end."""

    session: Session
    values: StepValues
    journal: Journal
    directory: str = ""
    metadata: dict[str, Json] = field(default_factory=dict)


class StepRunner:
    """What a process keeps between steps: loaded definitions, threads, a code interpreter."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._tools = ToolRunner()
        self._stack = AsyncExitStack()
        self._code = CodeRunner(self._tools, self._stack)
        self._kinds: dict[str, Callable[[Attempt], Awaitable[Json]]] = {
            "tool.call": self._call_tool,
            "code.run": self._run_code,
            "ai.generate": self._generate,
        }
        self._tasks: dict[str, Callable[[Attempt], Awaitable[Json]]] = {
            "plan": self._plan,
            "orchestrate": self._orchestrate,
            "execute_step": self._execute_step,
            "fix_step": self._fix,
        }

    async def run(self, attempt: Attempt) -> Json:
        """Returns the task's output; for a `tool.call` its end is reported already.

        Raises:
            Exception: whatever ended it; see failures.describe_step_error.
        """
        task = attempt.session.task
        if task not in self._tasks:
            raise StepConfigError(message=f"no child carries out tasks of kind {task!r}")
        return await self._tasks[task](attempt)

    async def close(self) -> None:
        """Ends the threads and the interpreter; a process that exits at once needs not wait."""
        self._tools.close()
        await self._stack.aclose()

    async def _execute_step(self, attempt: Attempt) -> Json:
        kind = attempt.session.step["uses"]
        if kind not in self._kinds:
            raise StepConfigError(message=f"no worker carries out steps of kind {kind!r}")
        return await self._kinds[kind](attempt)

    async def _call_tool(self, attempt: Attempt) -> Json:
        session, journal = attempt.session, attempt.journal
        asked = session.step["with"]
        args = sort_keys(attempt.values.evaluate(asked.get("args", {})))
        details = {"input": attempt.values.input()} if "input" in session.step else None
        effect, lookup = "read", None
        body: Callable[[], Awaitable[Json]] = _perform_nothing
        if not journal.has_outcome("s0"):
            tool = find_tool(self._definitions.find(session.source), asked["tool"])
            # Before the intent: arguments that don't fit are an ordinary failure. A copy, for
            # the tool may change what it gets.
            arguments = tool.load_arguments(sort_keys(args))
            effect, lookup = tool.effect, find_lookup(tool)
            body = functools.partial(self._tools.run, tool, arguments, quiet=session.sensitive)
        return await journal.call_tool(
            position="s0",
            caller="step",
            tool_name=asked["tool"],
            args=args,
            effect=effect,
            lookup=lookup,
            body=body,
            ending=functools.partial(_make_ending, session),
            details=details,
        )

    async def _run_code(self, attempt: Attempt) -> Json:
        session = attempt.session
        asked = session.step["with"]
        names = asked.get("tools", [])
        # Code without tools needs none of the user's modules.
        definition = self._definitions.find(session.source) if names else None
        tools = [] if definition is None else [find_tool(definition, name) for name in names]
        return await self._code.run(
            asked["source"], attempt.values.input(), tools, session, attempt.journal
        )

    # The agent library is imported where it is needed: only processes of the heavy kind have it
    # loaded.

    async def _generate(self, attempt: Attempt) -> Json:
        from .generate_step import run_generate_step

        definition = self._definitions.find(attempt.session.source)
        return await run_generate_step(
            attempt.session, attempt.values, attempt.journal, definition, self._equip(attempt)
        )

    async def _plan(self, attempt: Attempt) -> Json:
        from .planner import run_planner

        definition = self._definitions.find(attempt.session.source)
        return await run_planner(attempt.session, attempt.journal, definition, self._equip(attempt))

    async def _orchestrate(self, attempt: Attempt) -> Json:
        from .orchestrator import run_orchestrator

        definition = self._definitions.find(attempt.session.source)
        return await run_orchestrator(
            attempt.session, attempt.values, attempt.journal, definition, self._equip(attempt)
        )

    async def _fix(self, attempt: Attempt) -> Json:
        from .fixer import Fixer

        session = attempt.session
        definition = self._definitions.find(session.source)
        fixer = Fixer(session, attempt.values.input(), attempt.journal, definition, self._code)
        try:
            return await fixer.run(self._equip(attempt))
        finally:
            # Of a sensitive step nothing stands inline, and a source may quote its input.
            attempt.metadata["fixedSource"] = None if session.sensitive else fixer.last_source

    def _equip(self, attempt: Attempt) -> list[Any]:
        """Returns the toolsets that an agent gets for its memory and its skills."""
        session = attempt.session
        if not session.memory and not session.skills:
            return []
        from .file_tools import make_file_tools
        from .skills import make_skill_tools

        toolsets: list[Any] = []
        if session.memory:
            mounts = open_mounts(attempt.directory, session)
            toolsets.append(make_file_tools(mounts, attempt.journal))
        if session.skills:
            paths = getattr(self._definitions.find(session.source), "skills", {})
            pin = self._definitions.pin_of(session.source)
            toolsets.append(make_skill_tools(session.skills, paths, pin))
        return toolsets


async def _perform_nothing() -> Json:
    raise AssertionError("a call on record is not performed")


def make_success(session: Session, output: Json, metadata: dict[str, Json] | None = None) -> Report:
    """Returns the event that ends a session's task well."""
    payload: dict[str, Any] = {"output": output}
    if metadata:
        payload["metadata"] = metadata
    return f"harness.{session.task}.succeeded", payload


def make_failure(
    session: Session, error: BaseException, metadata: dict[str, Json] | None = None
) -> Report:
    """Returns the event that ends a session's task with what was raised."""
    return _make_failure(session, describe_step_error(error), metadata)


def make_cancellation(session: Session, reason: str) -> Report:
    """Returns the event that ends a session that was stopped."""
    message = f"the step was stopped ({reason})"
    return _make_failure(session, make_step_error("Cancelled", message, "cancelled"), None)


def _make_failure(
    session: Session, error: dict[str, Any], metadata: dict[str, Json] | None
) -> Report:
    if session.sensitive:
        error = {**error, "message": HIDDEN}
    payload: dict[str, Any] = {"error": error}
    if metadata:
        payload["metadata"] = metadata
    return f"harness.{session.task}.failed", payload


def _make_ending(session: Session, value: Json, error: dict[str, Any] | None) -> Report:
    if error is None:
        return make_success(session, value)
    return make_failure(session, RecordedError(**error))
