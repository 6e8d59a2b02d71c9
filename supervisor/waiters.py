"""Clients that wait for runs: until they have ended, or until only others can move them on."""

from collections.abc import Callable, Iterator
from typing import Any

from planaria.protocol.events import RUN_TERMINAL, Event

from .blocking import find_blocks, is_interrupted
from .run_state import RunState
from .system_state import SystemState

Client = tuple[bytes, int]  # identity of the link, id of the request


class Waiters:
    """Who waits for which run. A request that is asked again, for want of an answer, waits once.

    `describe` returns the outcome of a run.
    """

    def __init__(self, system: SystemState, describe: Callable[[RunState], dict[str, Any]]) -> None:
        self._system = system
        self._describe = describe
        self._by_run: dict[str, dict[bytes, tuple[int, bool]]] = {}

    def add(self, run_id: str, client: Client, *, until_blocked: bool) -> None:
        """Lets a client wait for a run that is open."""
        link, number = client
        self._by_run.setdefault(run_id, {})[link] = number, until_blocked

    def answer(self, run: RunState, *, until_blocked: bool) -> dict[str, Any] | None:
        """Returns what a client is told that waits for the run; None: it has to wait.

        The outcome of one that is interrupted has the effects of its sub-runs too; of one that is
        blocked it has `blocks`, see `find_blocks`.
        """
        if run.is_ended:
            return self._describe(run)
        blocks = find_blocks(self._system.runs, run)
        if blocks is not None and is_interrupted(blocks):
            return {**self._describe(run), "status": "interrupted", "interrupted": blocks}
        if blocks is not None and until_blocked:
            return {**self._describe(run), "blocks": blocks}
        return None

    def note_events(self, events: list[Event]) -> Iterator[tuple[Client, dict[str, Any]]]:
        """Yields who is to be answered after these events, and with what."""
        if not self._by_run:
            return
        touched: dict[str, None] = {}
        for event in events:
            run_id: str | None = event.run_id
            while run_id is not None and run_id not in touched:
                touched[run_id] = None
                run = self._system.runs.get(run_id)
                run_id = run.admission.get("parentRunId") if run is not None else None
        ended = {event.run_id for event in events if event.type in RUN_TERMINAL}
        for run_id in touched:
            waiting = self._by_run.get(run_id)
            run = self._system.runs.get(run_id)
            if not waiting or run is None:
                continue
            for link, (number, until_blocked) in list(waiting.items()):
                answer = self.answer(run, until_blocked=until_blocked)
                if answer is None and run_id in ended:  # and opened again in the same round
                    answer = self._describe(run)
                if answer is not None:
                    del waiting[link]
                    yield (link, number), answer
            if not waiting:
                del self._by_run[run_id]

    def forget(self, link: bytes) -> None:
        """Notes that a client is gone."""
        for waiting in self._by_run.values():
            waiting.pop(link, None)
