"""The link: numbering, batching, lost and repeated frames."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from planaria.protocol.errors import ProtocolError
from planaria.protocol.events import Event, encode_event
from planaria.protocol.limits import FRAME_BYTES_MAX, UNACKNOWLEDGED_APPENDS_MAX
from planaria.protocol.messages import (
    Append,
    Committed,
    HistoryPage,
    Message,
    ReadHistory,
    Refused,
    decode_frame,
    encode_frame,
)
from planaria.workers.link import Link, Reports

QUICK_SECONDS = 0.01  # stands in for the two seconds after which a frame counts as lost
NOTE = "harness.warning"


class Wire:
    """Keeps what a link sends; tells waiters of it."""

    def __init__(self, answer_seconds: float) -> None:
        self.messages: list[Any] = []
        self.failures: list[ProtocolError] = []
        self.refusals: list[Refused] = []
        self._arrived = asyncio.Event()
        self.link = Link(
            self,
            on_deliver=lambda session: None,
            on_stop=lambda reason: None,
            on_refused=self.refusals.append,
            on_failed=self.failures.append,
            answer_seconds=answer_seconds,
        )

    def send(self, frame: bytes) -> None:
        self.messages.extend(decode_frame(frame))
        self._arrived.set()

    async def wait_count(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.messages) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def give(self, *messages: Message) -> None:
        self.link.take(encode_frame(messages))

    def commit(self, upto: int) -> None:
        self.give(Committed("hs_1", 1, upto))

    def spans(self) -> list[tuple[int, int]]:
        """For each append: how many events were known before, and how many it has."""
        return [(m.after, len(m.events)) for m in self.messages if isinstance(m, Append)]


def run(
    test: Callable[[Wire, Reports], Coroutine[Any, Any, None]],
    reported: int = 0,
    answer_seconds: float = 60,
) -> None:
    async def main() -> None:
        wire = Wire(answer_seconds)
        reports = wire.link.open_reports("hs_1", 1, reported)
        await test(wire, reports)
        reports.close()

    asyncio.run(main())


def note(text: str) -> tuple[str, dict[str, Any]]:
    return NOTE, {"text": text}


async def pause() -> None:
    """Lets everything that is due now happen."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_appends_of_one_iteration_travel_together() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        assert 8 == reports.append([note("a")])
        assert 10 == reports.append([note("b"), note("c")])
        await pause()

        assert [(7, 3)] == wire.spans()

    run(test, reported=7)


def test_lingering_event_travels_with_the_next() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        reports.append([note("a")], linger=True)
        await pause()
        assert [] == wire.spans()
        reports.append([note("b")])
        await pause()

        assert [(0, 2)] == wire.spans()

    run(test)


def test_lingering_event_leaves_by_itself() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        reports.append([note("a")], linger=True)
        reports.append([note("b")], linger=True)
        await wire.wait_count(1)

        assert [(0, 2)] == wire.spans()

    run(test)


def test_waiter_goes_on_when_its_event_is_committed() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        first = asyncio.ensure_future(reports.wait_committed(reports.append([note("a")])))
        second = asyncio.ensure_future(reports.wait_committed(reports.append([note("b")])))
        await pause()
        wire.commit(1)
        await pause()
        assert (True, False) == (first.done(), second.done())
        wire.commit(2)
        await second

        assert reports.is_committed(2)

    run(test)


def test_lost_frame_is_sent_again_when_a_later_one_is_answered() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        for text in "abc":
            reports.append([note(text)])
            await pause()
        wire.commit(1)  # the second was lost, and the third is refused for its gap:
        wire.commit(1)
        await pause()

        assert [(0, 1), (1, 1), (2, 1), (1, 2)] == wire.spans()
        wire.commit(3)
        assert reports.is_committed(3)

    run(test)


def test_unanswered_frame_is_sent_again_by_time() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        reports.append([note("a")])
        await wire.wait_count(3)
        wire.commit(1)
        sent = len(wire.messages)

        assert {(0, 1)} == set(wire.spans())
        await asyncio.sleep(4 * QUICK_SECONDS)  # nothing may happen in it
        assert sent == len(wire.messages)

    run(test, answer_seconds=QUICK_SECONDS)


def test_repeated_and_old_answers_change_nothing() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        reports.append([note("a"), note("b")])
        await pause()
        for upto in (2, 2, 1, 0):
            wire.commit(upto)
        wire.give(Committed("hs_another", 1, 900))
        await pause()

        assert [(0, 2)] == wire.spans()
        assert 3 == reports.append([note("c")])

    run(test)


def test_large_append_is_split_over_frames() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        large = "x" * (FRAME_BYTES_MAX // 5)
        reports.append([note(large)] * 6)
        await pause()

        assert 6 == sum(count for _, count in wire.spans())
        assert all(count <= 2 for _, count in wire.spans())
        assert [0, 1, 3, 4] == [after for after, _ in wire.spans()]

    run(test)


def test_event_larger_than_a_frame_fails_the_process() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        reports.append([note("x" * FRAME_BYTES_MAX)])
        await pause()

        assert [] == wire.messages
        assert "harness.warning" in str(wire.failures[0])

    run(test)


def test_frames_without_answer_are_limited() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        for number in range(UNACKNOWLEDGED_APPENDS_MAX + 5):
            reports.append([note(str(number))])
            await pause()
        assert UNACKNOWLEDGED_APPENDS_MAX == len(wire.messages)
        wire.commit(1)
        await pause()

        assert (UNACKNOWLEDGED_APPENDS_MAX, 5) == wire.spans()[-1]

    run(test)


def body(sequence: int) -> bytes:
    event = Event("run_1", sequence, NOTE, 1, 1, 1, "hs_1", 1, {"text": str(sequence)})
    return encode_event(event)


def test_history_is_read_in_pages_and_lost_requests_are_repeated() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        reading = asyncio.ensure_future(wire.link.read_history("hs_1", 2, 4))
        await wire.wait_count(2)  # the first request got no answer
        page = HistoryPage("hs_1", [body(5), body(7)], 7, True)
        wire.give(page)
        while wire.messages[-1].after != 7:
            await wire.wait_count(len(wire.messages) + 1)
        wire.give(page)  # the second answer to the first request
        await pause()
        assert not reading.done()
        wire.give(HistoryPage("hs_1", [body(8)], 8, False))

        assert [body(5), body(7), body(8)] == await reading
        asked = [m.after for m in wire.messages if isinstance(m, ReadHistory)]
        assert [4, 4] == asked[:2] and 7 == asked[-1]

    run(test, answer_seconds=QUICK_SECONDS)


def test_refusal_is_handed_on() -> None:
    async def test(wire: Wire, reports: Reports) -> None:
        wire.give(Refused("hs_1", "stale_incarnation", "another process"))

        assert ["stale_incarnation"] == [refused.code for refused in wire.refusals]

    run(test)
