"""Outcomes of calls that the supervisor carries out, on their way to whoever waits for them."""

import asyncio
from typing import Any

from .records import SUCCESSES, Record


class Settlements:
    """What the supervisor has said of one session's calls; an early answer is kept."""

    def __init__(self) -> None:
        self._settled: dict[str, Record] = {}  # by call id
        self._waiting: dict[str, asyncio.Future[Record]] = {}
        self._is_cancelled = False

    def take(self, kind: str, payload: dict[str, Any]) -> None:
        """Hears how a call has ended: its event, as it is recorded."""
        record = Record("tool_call", {}, payload, SUCCESSES.get(kind))
        call = payload["callId"]
        self._settled[call] = record
        future = self._waiting.get(call)
        if future is not None and not future.done():
            future.set_result(record)

    async def wait(self, call: str) -> Record:
        """Waits until the call has ended; a cancelled session's waiting is cancelled at once."""
        if call in self._settled:
            return self._settled[call]
        future = self._waiting.get(call)
        if future is None or future.done():
            future = self._waiting[call] = asyncio.get_running_loop().create_future()
        if self._is_cancelled:
            future.cancel()
        return await future

    def cancel(self) -> None:
        """Lets nobody wait any more."""
        self._is_cancelled = True
        for future in self._waiting.values():
            future.cancel()
