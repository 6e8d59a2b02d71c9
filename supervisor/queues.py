"""Queues: which waiting runs may start now, under limits of concurrency and rate.

Every run goes through lanes: that of its workflow's own limits, that of the queue it names, that
of its schedule. It starts when each of its lanes has room: fewer running than `concurrency`, and
fewer than `count` starts within the rate's window, which rolls.

Order: the higher priority first, then by place, which is the order of admission. A run that one of
its lanes holds up is passed by others that have room: no slot is left idle while a run could take
it. So a run with two busy lanes may see each of them go to others; no lane is kept free for it.

A run that waits for something (approval, signal, timer, sub-run, retry) gives its slots back, and
asks again by its old place when it can go on. It has started before, so no rate counts it again.

Times are µs of a clock that is never set back: the monotonic one of this supervisor's life. What
started earlier is brought over by `age_starts`.
"""

import heapq
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from planaria.protocol.durations import parse_duration
from planaria.protocol.errors import ConflictError, UsageError

CONCURRENCY_MAX = 10_000
RATE_COUNT_MAX = 10_000  # starts within one window: their times are kept
PRIORITY_MAX = 1_000  # and -PRIORITY_MAX the least
WAITING_MAX = 100_000  # runs that wait, over all lanes
LANES_PER_RUN_MAX = 4
_RATE = re.compile(r"([0-9]{1,9})/(.+)")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts within any `window_ms`."""

    count: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class Limit:
    """What one lane allows; None: as much as is asked for."""

    concurrency: int | None = None
    rate: Rate | None = None


UNLIMITED = Limit()


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """One run in the queue; of two with the same priority the one of the lower place goes first."""

    run_id: str
    place: int  # unique, and growing with admissions, such as the position of `RunAdmitted`
    lanes: tuple[str, ...] = ()
    priority: int = 0
    is_resuming: bool = False  # it has started before and given its slots back


@dataclass(frozen=True, slots=True)
class Choice:
    """The runs that may start now, in their order, and when to look again though nothing happens.

    Before `look_again_at` only an end, a slot given back, a new run or a changed limit makes room.
    """

    starts: tuple[str, ...]
    look_again_at: int | None


_Kind = tuple[int, tuple[str, ...], bool]  # priority, lanes, is_resuming


@dataclass(slots=True)
class QueueState:
    """Who waits, who runs, and what started lately.

    Runs of one kind (same priority, lanes, and whether they resume) wait behind each other: if the
    first of them is held up, all are. So a decision costs as much as there are kinds and starts,
    not as there are runs that wait.
    """

    limits: dict[str, Limit] = field(default_factory=dict)  # by lane
    waiting: dict[str, QueuedRun] = field(default_factory=dict)
    running: dict[str, QueuedRun] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)  # lane -> runs that hold a slot of it
    started: dict[str, list[int]] = field(default_factory=dict)  # lane -> times, oldest first
    kinds: dict[_Kind, list[tuple[int, str]]] = field(default_factory=dict)  # (place, run), sorted

    def set_limit(self, lane: str, limit: Limit) -> None:
        """Sets what a lane allows from now on; the newest word counts for all that wait."""
        if limit == UNLIMITED:
            self.limits.pop(lane, None)
            self.started.pop(lane, None)
        else:
            self.limits[lane] = limit

    def enqueue(self, run: QueuedRun) -> None:
        """Lets a run wait for its start, or, with what `leave` gave, until it may go on.

        Raises:
            ConflictError: WAITING_MAX runs wait already; one that resumes is never refused.
        """
        known = run.run_id in self.waiting or run.run_id in self.running
        assert not known, f"run {run.run_id!r} is in the queue already"
        assert len(run.lanes) <= LANES_PER_RUN_MAX, f"run {run.run_id!r} has too many lanes"
        if len(self.waiting) >= WAITING_MAX and not run.is_resuming:
            raise ConflictError(
                message=f"{WAITING_MAX} runs wait for their start, which is the most; run "
                f"{run.run_id!r} isn't admitted. Try again when some have ended"
            )
        self.waiting[run.run_id] = run
        insort(self.kinds.setdefault(_kind(run), []), (run.place, run.run_id))

    def start(self, run_id: str, now: int) -> None:
        """Notes that a waiting run has started, or goes on, and holds its slots."""
        run = self._stop_waiting(run_id)
        assert run is not None, f"run {run_id!r} doesn't wait for its start"
        self.running[run_id] = run
        for lane in run.lanes:
            self.busy[lane] = self.busy.get(lane, 0) + 1
            if not run.is_resuming:
                self._note_start(lane, now)

    def leave(self, run_id: str) -> QueuedRun | None:
        """Takes a run out that has ended, was cancelled or waits for something; its slots are free.

        Returns what `enqueue` has to be given when it can go on; None if it wasn't here.
        """
        run = self._stop_waiting(run_id)
        if run is not None:
            return run
        run = self.running.pop(run_id, None)
        if run is None:
            return None
        for lane in run.lanes:
            self.busy[lane] -= 1
            if self.busy[lane] == 0:
                del self.busy[lane]
        return replace(run, is_resuming=True)

    def age_starts(self, lane: str, started_at: Iterable[int], at: int, mono: int) -> None:
        """Brings starts before this supervisor's life over to its clock, at its beginning.

        `started_at` and `at` are UTC µs. A start that the clock shows in the future counts as one
        of just now: it lies in the past, and nobody knows how far.
        """
        aged = [mono - max(0, at - instant) for instant in started_at]
        self.started[lane] = sorted([*aged, *self.started.get(lane, ())])

    def _stop_waiting(self, run_id: str) -> QueuedRun | None:
        run = self.waiting.pop(run_id, None)
        if run is None:
            return None
        line = self.kinds[_kind(run)]
        del line[bisect_left(line, (run.place, run_id))]
        if not line:
            del self.kinds[_kind(run)]
        return run

    def _note_start(self, lane: str, now: int) -> None:
        rate = self.limits.get(lane, UNLIMITED).rate
        if rate is None:
            return
        times = self.started.setdefault(lane, [])
        times.append(now)
        del times[: bisect_right(times, now - rate.window_ms * 1_000)]


def choose_starts(state: QueueState, now: int) -> Choice:
    """Returns which waiting runs may start at `now`; the state is left as it is.

    The caller commits their starts and says so by `start`.
    """
    room = _Room(state, now)
    heads = [
        (-kind[0], line[0][0], index, kind, 0)
        for index, (kind, line) in enumerate(state.kinds.items())
    ]
    heapq.heapify(heads)
    starts: list[str] = []
    look_again_at: int | None = None
    while heads:
        _, _, index, kind, number = heads[0]
        priority, lanes, is_resuming = kind
        if room.is_full(lanes):
            free_at = None  # an end makes room, and no instant does
        else:
            free_at = room.find_free(lanes, is_resuming)
            if free_at <= now:
                line = state.kinds[kind]
                starts.append(line[number][1])
                room.take(lanes, is_resuming)
                if number + 1 < len(line):
                    following = (-priority, line[number + 1][0], index, kind, number + 1)
                    heapq.heapreplace(heads, following)
                    continue
        heapq.heappop(heads)
        if free_at is not None and free_at > now:
            look_again_at = free_at if look_again_at is None else min(look_again_at, free_at)
    return Choice(tuple(starts), look_again_at)


@dataclass(slots=True)
class _Room:
    """What the lanes have left at `now`, with what one choice has given away so far."""

    state: QueueState
    now: int
    taken: dict[str, int] = field(default_factory=dict)  # lane -> slots
    begun: dict[str, int] = field(default_factory=dict)  # lane -> starts that a rate counts

    def is_full(self, lanes: tuple[str, ...]) -> bool:
        for lane in lanes:
            concurrency = self.state.limits.get(lane, UNLIMITED).concurrency
            busy = self.state.busy.get(lane, 0) + self.taken.get(lane, 0)
            if concurrency is not None and busy >= concurrency:
                return True
        return False

    def find_free(self, lanes: tuple[str, ...], is_resuming: bool) -> int:
        """Returns the instant from which the rates of all lanes allow a start."""
        if is_resuming:
            return self.now
        return max((self._find_free(lane) for lane in lanes), default=self.now)

    def _find_free(self, lane: str) -> int:
        rate = self.state.limits.get(lane, UNLIMITED).rate
        if rate is None:
            return self.now
        window = rate.window_ms * 1_000
        times = self.state.started.get(lane, [])
        oldest = bisect_right(times, self.now - window)  # a start leaves at its instant + window
        begun = self.begun.get(lane, 0)
        surplus = len(times) - oldest + begun - rate.count
        if surplus < 0:
            return self.now
        # Room comes when all but count - 1 of the counted starts have left the window.
        leaving = oldest + surplus
        return (times[leaving] if leaving < len(times) else self.now) + window

    def take(self, lanes: tuple[str, ...], is_resuming: bool) -> None:
        for lane in lanes:
            self.taken[lane] = self.taken.get(lane, 0) + 1
            if not is_resuming:
                self.begun[lane] = self.begun.get(lane, 0) + 1


def read_limit(concurrency: object, rate: object) -> Limit:
    """Returns the limit that a workflow declares; `rate` is text like "100/1m".

    Raises:
        UsageError: one of them is none; the message says what to write.
    """
    count = None
    if concurrency is not None:
        count = _check_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
    return Limit(count, None if rate is None else parse_rate(rate))


def parse_rate(text: object) -> Rate:
    """Returns the rate that `text` says: a number, a stroke and a duration.

    Raises:
        UsageError: it says none.
    """
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        shown = repr(text)[:80]
        raise UsageError(
            message=f"rate {shown} is none: write how many runs may start within which time, "
            "like '100/1m'"
        )
    count = _check_number(f"the number in rate {match[0]!r}", int(match[1]), 1, RATE_COUNT_MAX)
    try:
        window_ms = parse_duration(match[2])
    except ValueError as error:
        raise UsageError(message=f"rate {match[0][:80]!r}: {error}") from error
    if window_ms < 1:
        raise UsageError(
            message=f"rate {match[0]!r} has a window of no length: expected 1ms or more"
        )
    return Rate(count, window_ms)


def check_priority(priority: object) -> int:
    """Returns the priority; higher ones go first.

    Raises:
        UsageError: it is no whole number from -PRIORITY_MAX to PRIORITY_MAX.
    """
    return _check_number("priority", priority, -PRIORITY_MAX, PRIORITY_MAX)


def _check_number(what: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise UsageError(
            message=f"{what} is {value!r}, expected a whole number from {least} to {most}"
        )
    return value


def _kind(run: QueuedRun) -> _Kind:
    return (run.priority, run.lanes, run.is_resuming)
