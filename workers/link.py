"""A child's link to the supervisor: numbered reports out, commits and orders in.

Nothing here depends on a frame arriving. Reports are kept until they are known to be on disk, and
sent again from the first unknown one when an answer shows a gap or none comes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from planaria.protocol.errors import ProtocolError
from planaria.protocol.events import decode_event
from planaria.protocol.limits import FRAME_BYTES_MAX, UNACKNOWLEDGED_APPENDS_MAX
from planaria.protocol.messages import (
    Append,
    Committed,
    Deliver,
    HistoryPage,
    ReadHistory,
    Refused,
    Reply,
    Settled,
    Stop,
    decode_trusted,
    encode_frame,
)

from . import trace

ANSWER_SECONDS = 2.0  # a commit takes milliseconds: after this long a frame counts as lost
ANSWER_SECONDS_MAX = 60.0  # the wait doubles up to here, so a stopped supervisor isn't flooded
LINGER_SECONDS = 0.002  # how long the intent of a quick read waits to travel with its outcome
APPEND_BYTES_MAX = FRAME_BYTES_MAX // 2  # of a frame with several events

Report = tuple[str, dict[str, Any]]


class Sender(Protocol):
    """What the link sends its frames through; `Channel`, or a twin in memory."""

    def send(self, frame: bytes) -> None: ...


class Reports:
    """The events of one session on their way to the log, in the order in which they were given."""

    def __init__(
        self,
        sender: Sender,
        session_id: str,
        incarnation: int,
        reported: int,
        *,
        on_failed: Callable[[ProtocolError], None],
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`reported` of the session's events are on disk, from earlier incarnations too."""
        self._sender = sender
        self._session_id = session_id
        self._incarnation = incarnation
        self._on_failed = on_failed
        self._answer_seconds = answer_seconds
        self._loop = asyncio.get_running_loop()
        self._events: deque[list[Any]] = deque()  # not known to be on disk, sent ones first
        self._known = reported  # so many are on disk
        self._sent = reported
        self._frames: deque[int] = deque()  # the last number of each frame that has no answer
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._flush_handle: asyncio.Handle | None = None
        self._flushes_now = False
        self._answer_handle: asyncio.TimerHandle | None = None
        self._resent_from = -1

    @property
    def last(self) -> int:
        """Returns the number of the last event that was given."""
        return self._known + len(self._events)

    def append(self, events: Iterable[Report], *, linger: bool = False) -> int:
        """Takes events and returns the number of the last; they are sent within this iteration.

        With `linger` they may wait a little for events that follow.
        """
        self._events.extend([kind, payload] for kind, payload in events)
        if not self._flushes_now and not (linger and self._flush_handle is not None):
            if self._flush_handle is not None:
                self._flush_handle.cancel()
            if linger:
                self._flush_handle = self._loop.call_later(LINGER_SECONDS, self.flush)
            else:
                self._flush_handle = self._loop.call_soon(self.flush)
                self._flushes_now = True
        return self.last

    def flush(self) -> None:
        """Sends now what was given."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        self._flush_handle, self._flushes_now = None, False
        fresh = [
            self._events[index] for index in range(self._sent - self._known, len(self._events))
        ]
        if fresh and len(self._frames) < UNACKNOWLEDGED_APPENDS_MAX:
            self._send(fresh)
            self._watch(self._answer_seconds)

    def is_committed(self, number: int) -> bool:
        """Says whether the events up to this number are on disk."""
        return number <= self._known

    async def wait_committed(self, number: int) -> None:
        """Waits until the events up to this number are on disk."""
        if number <= self._known:
            return
        future = self._loop.create_future()
        self._waiters.append((number, future))
        await future

    def take(self, upto: int) -> None:
        """Hears that the first `upto` events of the session are on disk."""
        fresh = upto - self._known
        if fresh > 0:
            assert upto <= self._sent, f"{upto} events committed, {self._sent} sent"
            trace.hit_committed(self._events[index] for index in range(fresh))
            for _ in range(fresh):
                self._events.popleft()
            self._known = upto
            self._wake()
        if self._frames and upto < self._frames[0]:
            # An answer to the oldest frame would reach its end: so that one was lost. Once for
            # each place; should that be lost too, the timer sends it.
            if self._resent_from != upto:
                self._resent_from = upto
                self._send_again()
            return
        while self._frames and self._frames[0] <= upto:
            self._frames.popleft()
        if self._sent < self.last and not self._flushes_now:
            self.flush()

    def close(self) -> None:
        """Stops the timers; nothing may be pending."""
        for handle in (self._flush_handle, self._answer_handle):
            if handle is not None:
                handle.cancel()

    def _wake(self) -> None:
        kept: deque[tuple[int, asyncio.Future[None]]] = deque()
        for number, future in self._waiters:
            if number > self._known:
                kept.append((number, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = kept

    def _send(self, events: list[list[Any]]) -> None:
        """Sends the events that follow those sent, in one frame unless they are too large."""
        message = Append(self._session_id, self._incarnation, self._sent, events)
        try:
            frame = encode_frame([message])
        except (TypeError, ValueError, OverflowError) as error:
            self._on_failed(ProtocolError(message=f"{events[0][0]} can't be sent: {error}"))
            return
        if len(frame) > APPEND_BYTES_MAX and len(events) > 1:
            half = len(events) // 2
            self._send(events[:half])
            self._send(events[half:])
            return
        if len(frame) > FRAME_BYTES_MAX:
            text = f"an event {events[0][0]} of {len(frame)} bytes; at most {FRAME_BYTES_MAX}"
            self._on_failed(ProtocolError(message=f"{text} can be sent"))
            return
        self._sent += len(events)
        self._frames.append(self._sent)
        self._sender.send(frame)
        trace.hit_sent(events)

    def _send_again(self) -> None:
        count = self._sent - self._known
        self._frames.clear()
        self._sent = self._known
        self._send([self._events[index] for index in range(count)])

    def _watch(self, seconds: float) -> None:
        if self._answer_handle is None and self._frames:
            self._answer_handle = self._loop.call_later(
                seconds, self._check_answer, self._known, seconds
            )

    def _check_answer(self, known: int, seconds: float) -> None:
        self._answer_handle = None
        if not self._frames:
            return
        if self._known == known:
            self._send_again()
            seconds = min(2 * seconds, ANSWER_SECONDS_MAX)
        else:
            seconds = self._answer_seconds
        self._watch(seconds)


class Link:
    """Everything that a process hears, and the reports of the session that it carries."""

    def __init__(
        self,
        sender: Sender,
        *,
        on_deliver: Callable[[dict[str, Any]], None],
        on_stop: Callable[[str], None],
        on_refused: Callable[[Refused], None],
        on_failed: Callable[[ProtocolError], None],
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Both `on_refused` and `on_failed` end the process.

        At once after a refusal: another process may act in its place already.
        """
        self._sender = sender
        self._on_deliver = on_deliver
        self._on_stop = on_stop
        self._on_refused = on_refused
        self._on_failed = on_failed
        self._answer_seconds = answer_seconds
        self._session_id = ""
        self._reports: Reports | None = None
        self._page: asyncio.Future[HistoryPage] | None = None
        self._page_after = 0
        self._on_settled: Callable[[Settled], None] = _ignore

    def open_reports(
        self,
        session_id: str,
        incarnation: int,
        reported: int,
        on_settled: Callable[[Settled], None] | None = None,
    ) -> Reports:
        """Returns the reports of the session that this process carries now.

        `on_settled` hears of its calls that the supervisor has carried out. One that ends before
        this is in the history, which is read later.
        """
        self._session_id = session_id
        self._on_settled = on_settled or _ignore
        self._reports = Reports(
            self._sender,
            session_id,
            incarnation,
            reported,
            on_failed=self._on_failed,
            answer_seconds=self._answer_seconds,
        )
        return self._reports

    def take(self, frame: bytes) -> None:
        """Takes a frame that has come from the supervisor."""
        for message in decode_trusted(frame):
            match message:
                case Committed():
                    if message.sessionId == self._session_id and self._reports is not None:
                        self._reports.take(message.upto)
                case Deliver():
                    self._on_deliver(message.session)
                case HistoryPage():
                    self._take_page(message)
                case Settled():
                    if message.sessionId == self._session_id:
                        self._on_settled(message)
                case Stop():
                    self._on_stop(message.reason)
                case Refused():
                    self._on_refused(message)
                case Reply():
                    # A frame of ours was unreadable; the same one would be so again.
                    self._on_failed(ProtocolError(message=str((message.error or {}).get("fields"))))
                case _:
                    raise AssertionError(f"a child got {type(message).__name__}")

    async def read_history(self, session_id: str, incarnation: int, after: int) -> list[bytes]:
        """Returns the stored bodies of the session's events whose run sequence is over `after`."""
        bodies: list[bytes] = []
        is_complete = False
        while not is_complete:
            page = await self._read_page(ReadHistory(session_id, incarnation, after))
            trace.hit("C2")
            bodies.extend(page.bodies)
            after, is_complete = page.lastSequence, not page.more
        return bodies

    def _take_page(self, page: HistoryPage) -> None:
        if page.sessionId != self._session_id or self._page is None or self._page.done():
            return
        # A request that was sent twice has two answers, and the second comes to the next one.
        first = decode_event(page.bodies[0]).sequence if page.bodies else page.lastSequence + 1
        if first > self._page_after:
            self._page.set_result(page)

    async def _read_page(self, request: ReadHistory) -> HistoryPage:
        frame = encode_frame([request])
        seconds = self._answer_seconds
        while True:
            self._page = asyncio.get_running_loop().create_future()
            self._page_after = request.after
            self._sender.send(frame)
            try:
                return await asyncio.wait_for(self._page, seconds)
            except TimeoutError:
                seconds = min(2 * seconds, ANSWER_SECONDS_MAX)


def _ignore(settled: Settled) -> None:
    """Settled calls belong to sessions that wait for some."""
