"""The journal's twin: in memory, and it can die at any of its points."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.codec import canonical_bytes, unpack
from planaria.protocol.errors import PlanariaError, RecordedError, ReplayMismatchError

Body = Callable[[], Awaitable[Any]]


class ProcessDied(BaseException):
    """The process that runs the session was killed at this point."""


@dataclass
class Record:
    kind: str
    asked: bytes
    details: dict[str, Any]
    outcome: bytes | None = None
    failure: tuple[str, str] | None = None


@dataclass
class Log:
    """What is on disk: survives the journal that wrote it."""

    records: dict[str, Record] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, Record]:
        return {place: r for place, r in self.records.items() if r.kind == kind}

    def settled(self) -> set[str]:
        return {p for p, r in self.records.items() if r.outcome is not None or r.failure}

    def result(self, position: str) -> Any:
        outcome = self.records[position].outcome
        assert outcome is not None
        return unpack(outcome)


class MemoryJournal:
    """One process's view of a session's log; dies at its `die_at`th point (counted from 1)."""

    def __init__(self, log: Log | None = None, *, die_at: int = 0) -> None:
        self.log = log if log is not None else Log()
        self.performed: list[str] = []
        self.warnings: list[str] = []
        self.points = 0
        self._die_at = die_at
        self._dead = False
        self.is_budgeted = False
        self.reserves: list[Any] = []
        self._warned = False
        self._pending: set[asyncio.Task[Any]] = set()

    async def call_tool(
        self,
        *,
        position: str,
        caller: str,
        tool_name: str,
        args: Any,
        effect: str,
        details: Any,
        body: Body,
        lookup: Any = None,
        is_local: bool = False,
    ) -> Any:
        known = {"caller": caller, "tool": tool_name, "args": args, "effect": effect, **details}
        return await self._perform("tool", position, [tool_name, args], known, body)

    async def request_model(
        self,
        *,
        position: str,
        turn: int,
        request: Any,
        settings: Any,
        body: Body,
        reserve: Any = None,
    ) -> Any:
        self.reserves.append(reserve)
        details = {"turn": turn, "request": request, "settings": settings}
        return await self._perform("model", position, request, details, body)

    async def operate(self, *, position: str, name: str, body: Body) -> Any:
        return await self._perform("operation", position, name, {"name": name}, body)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    async def finish(self) -> None:
        """Waits for every body that was started, as a session does before it ends."""
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _perform(
        self, kind: str, position: str, asked: Any, details: dict[str, Any], body: Body
    ) -> Any:
        self._point()
        asked_bytes = canonical_bytes(asked)
        record = self.log.records.get(position)
        if record is None:
            record = self.log.records[position] = Record(kind, asked_bytes, details)
            self._point()
        elif record.kind != kind or (kind != "model" and record.asked != asked_bytes):
            raise ReplayMismatchError(
                session_id="hs_test",
                position=position,
                recorded=f"{record.kind} {unpack(record.asked)!r}",
                asked=f"{kind} {asked!r}",
            )
        elif record.asked != asked_bytes and not self._warned:
            self._warned = True
            self.warn(f"the request at {position} differs from the recorded one")
        if record.outcome is None and record.failure is None:
            task = asyncio.ensure_future(self._work(position, record, body))
            self._pending.add(task)
            await asyncio.shield(task)
        self._point()
        if record.failure is not None:
            name, message = record.failure
            raise RecordedError(name=name, message=message)
        assert record.outcome is not None
        return unpack(record.outcome)

    async def _work(self, position: str, record: Record, body: Body) -> None:
        self.performed.append(position)
        try:
            outcome = canonical_bytes(await body())
            self._point()
            record.outcome = outcome
        except PlanariaError as error:
            self._point()
            record.failure = (type(error).__name__, str(error))
        except Exception as error:
            self._point()
            record.failure = (type(error).__name__, str(error))

    def _point(self) -> None:
        self.points += 1
        if self._dead or self.points == self._die_at:
            self._dead = True
            raise ProcessDied
