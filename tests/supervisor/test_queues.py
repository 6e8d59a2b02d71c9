"""Queues: limits are kept, nothing idles, and the order is by priority and place."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.protocol.errors import ConflictError, UsageError
from planaria.supervisor import queues
from planaria.supervisor.queues import (
    CONCURRENCY_MAX,
    PRIORITY_MAX,
    RATE_COUNT_MAX,
    Choice,
    Limit,
    QueuedRun,
    QueueState,
    Rate,
    check_priority,
    choose_starts,
    parse_rate,
    read_limit,
)

SECOND = 1_000_000


def make_state(limits: dict[str, Limit], runs: Iterable[QueuedRun] = ()) -> QueueState:
    state = QueueState()
    for lane, limit in limits.items():
        state.set_limit(lane, limit)
    for run in runs:
        state.enqueue(run)
    return state


def take_starts(state: QueueState, now: int) -> list[str]:
    """Starts what may start, as the kernel does."""
    chosen = choose_starts(state, now)
    for run_id in chosen.starts:
        state.start(run_id, now)
    return list(chosen.starts)


def test_runs_without_lanes_start_at_once_in_their_order() -> None:
    runs = [QueuedRun("c", 3), QueuedRun("a", 1), QueuedRun("b", 2)]

    assert Choice(("a", "b", "c"), None) == choose_starts(make_state({}, runs), 0)


def test_choosing_leaves_the_state_as_it_is() -> None:
    limits = {"w": Limit(1, Rate(1, 1_000))}
    runs = [QueuedRun("a", 1, ("w",)), QueuedRun("b", 2, ("w",))]
    state = make_state(limits, runs)

    assert choose_starts(state, 0) == choose_starts(state, 0)
    assert make_state(limits, runs) == state


def test_concurrency_is_kept_and_an_end_makes_room() -> None:
    runs = [QueuedRun(name, place, ("w",)) for place, name in enumerate("abcd")]
    state = make_state({"w": Limit(concurrency=2)}, runs)

    assert ["a", "b"] == take_starts(state, 0)
    assert Choice((), None) == choose_starts(state, 10**12)
    state.leave("a")
    assert ["c"] == take_starts(state, 5)
    state.leave("d")  # cancelled while it waits
    state.leave("b")
    assert [] == take_starts(state, 6)


def test_higher_priority_goes_first_and_equal_ones_by_place() -> None:
    runs = [
        QueuedRun("low", 1, ("w",), -1),
        QueuedRun("second", 2, ("w",)),
        QueuedRun("third", 3, ("w",)),
        QueuedRun("first", 4, ("w",), 5),
    ]
    state = make_state({"w": Limit(concurrency=1)}, runs)
    order = []
    while started := take_starts(state, 0):
        order += started
        state.leave(started[0])

    assert ["first", "second", "third", "low"] == order


def test_run_held_up_by_its_own_limit_is_passed_by_others_of_the_lane() -> None:
    limits = {"own": Limit(concurrency=1), "queue": Limit(concurrency=3)}
    runs = [
        QueuedRun("a1", 1, ("own", "queue")),
        QueuedRun("a2", 2, ("own", "queue"), 9),
        QueuedRun("b1", 3, ("queue",)),
        QueuedRun("b2", 4, ("queue",)),
        QueuedRun("b3", 5, ("queue",)),
    ]

    assert ("a2", "b1", "b2") == choose_starts(make_state(limits, runs), 0).starts


def test_rate_rolls_and_the_exact_instant_makes_room() -> None:
    runs = [QueuedRun(name, place, ("w",)) for place, name in enumerate("abcde")]
    state = make_state({"w": Limit(rate=Rate(2, 10_000))}, runs)

    state.start("a", 0)
    state.start("b", 4 * SECOND)
    assert Choice((), 10 * SECOND) == choose_starts(state, 4 * SECOND)
    assert Choice((), 10 * SECOND) == choose_starts(state, 10 * SECOND - 1)
    assert Choice(("c",), 14 * SECOND) == choose_starts(state, 10 * SECOND)
    assert ["c"] == take_starts(state, 10 * SECOND)
    assert Choice((), 14 * SECOND) == choose_starts(state, 11 * SECOND)
    assert Choice(("d", "e"), None) == choose_starts(state, 20 * SECOND)


def test_full_concurrency_needs_no_look_at_the_clock() -> None:
    runs = [QueuedRun("a", 1, ("w",)), QueuedRun("b", 2, ("w",))]
    state = make_state({"w": Limit(1, Rate(1, 1_000))}, runs)

    state.start("a", 0)
    assert Choice((), None) == choose_starts(state, 1)
    state.leave("a")
    assert Choice((), SECOND) == choose_starts(state, 1)


def test_longest_of_several_rates_says_when_to_look_again() -> None:
    limits = {"w": Limit(rate=Rate(1, 1_000)), "q": Limit(rate=Rate(1, 5_000))}
    runs = [QueuedRun("a", 1, ("w", "q")), QueuedRun("b", 2, ("w", "q")), QueuedRun("c", 3, ("q",))]
    state = make_state(limits, runs)

    assert ["a"] == take_starts(state, 0)
    assert Choice((), 5 * SECOND) == choose_starts(state, 0)


def test_run_that_waits_gives_its_slot_back_and_goes_on_before_newer_ones() -> None:
    runs = [QueuedRun(name, place, ("w",)) for place, name in enumerate("abc")]
    state = make_state({"w": Limit(1, Rate(2, 60_000))}, runs)

    assert ["a"] == take_starts(state, 0)
    waiting = state.leave("a")  # it waits for an approval
    assert ["b"] == take_starts(state, 1)
    assert waiting is not None
    state.enqueue(waiting)
    assert [] == take_starts(state, 2)
    state.leave("b")
    # The rate is used up, and counts only first starts.
    assert ["a"] == take_starts(state, 3)
    state.leave("a")
    assert Choice((), 60 * SECOND) == choose_starts(state, 4)


def test_run_that_left_while_waiting_is_given_back_as_it_was() -> None:
    run = QueuedRun("a", 1, ("w",), 3)
    state = make_state({}, [run])

    assert run == state.leave("a")
    assert state.leave("a") is None
    assert QueueState() == state


def test_newest_limit_counts_for_all_that_wait() -> None:
    runs = [QueuedRun(name, place, ("w",)) for place, name in enumerate("abcde")]
    state = make_state({"w": Limit(concurrency=2)}, runs)

    take_starts(state, 0)
    state.set_limit("w", Limit(concurrency=1))
    state.leave("a")
    assert [] == take_starts(state, 0)
    state.set_limit("w", Limit(concurrency=3))
    assert ["c", "d"] == take_starts(state, 0)
    state.set_limit("w", Limit())
    assert ["e"] == take_starts(state, 0)


def test_starts_of_an_earlier_supervisor_count_by_their_age() -> None:
    state = make_state({"w": Limit(rate=Rate(2, 10_000))}, [QueuedRun("a", 1, ("w",))])
    at, mono = 1_000 * SECOND, 3 * SECOND

    state.age_starts("w", [at - 4 * SECOND, at - 20 * SECOND, at - 9 * SECOND], at, mono)
    assert Choice((), 4 * SECOND) == choose_starts(state, mono)
    assert Choice(("a",), None) == choose_starts(state, 4 * SECOND)


def test_start_that_lies_in_the_future_of_a_clock_set_back_counts_as_one_of_now() -> None:
    state = make_state({"w": Limit(rate=Rate(1, 10_000))}, [QueuedRun("a", 1, ("w",))])

    state.age_starts("w", [10**15], 1_000 * SECOND, 3 * SECOND)

    assert Choice((), 13 * SECOND) == choose_starts(state, 3 * SECOND)


def test_one_run_more_than_may_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WAITING_MAX", 2)
    state = make_state({}, [QueuedRun("a", 1), QueuedRun("b", 2)])

    with pytest.raises(ConflictError, match="run 'c' isn't admitted"):
        state.enqueue(QueuedRun("c", 3))
    state.enqueue(QueuedRun("d", 4, is_resuming=True))
    assert ("a", "b", "d") == choose_starts(state, 0).starts


def test_many_runs_that_wait_cost_as_much_as_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [QueuedRun(f"r{n}", n, (f"w{n % 3}", "q")) for n in range(3_000)]
    state = make_state({"q": Limit(concurrency=2)}, runs)
    looks = 0
    is_full = queues._Room.is_full

    def count_looks(room: queues._Room, lanes: tuple[str, ...]) -> bool:
        nonlocal looks
        looks += 1
        return is_full(room, lanes)

    monkeypatch.setattr(queues._Room, "is_full", count_looks)

    assert ("r0", "r1") == choose_starts(state, 0).starts
    assert looks == 2 + 3


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/1m", Rate(100, 60_000)),
        ("1/1ms", Rate(1, 1)),
        (f"{RATE_COUNT_MAX}/1d", Rate(RATE_COUNT_MAX, 86_400_000)),
    ],
)
def test_rate_is_a_number_and_a_duration(text: str, rate: Rate) -> None:
    assert rate == parse_rate(text)


@pytest.mark.parametrize(
    "text",
    ["", "100", "100/", "/1m", "0/1m", "-1/1m", "1.5/1m", "100/0s", "100/1", "100/m", "1 / 1m"]
    + [f"{RATE_COUNT_MAX + 1}/1m", "9" * 5_000 + "/1m", "1/" + "9" * 5_000 + "d", None, 100],
)
def test_what_is_no_rate_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize("value", [0, -1, CONCURRENCY_MAX + 1, True, 1.0, "2"])
def test_concurrency_out_of_its_range_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="concurrency"):
        read_limit(value, None)


def test_limits_are_read_at_their_ends() -> None:
    assert Limit() == read_limit(None, None)
    assert Limit(1, Rate(5, 1_000)) == read_limit(1, "5/1s")
    assert Limit(CONCURRENCY_MAX) == read_limit(CONCURRENCY_MAX, None)
    for priority in (-PRIORITY_MAX, 0, PRIORITY_MAX):
        assert priority == check_priority(priority)
    for wrong in (PRIORITY_MAX + 1, -PRIORITY_MAX - 1, True, "1", None):
        with pytest.raises(UsageError, match="priority"):
            check_priority(wrong)


# Against a model that keeps plain lists and tries every run in its order.

LANES = ("w1", "w2", "q")
LIMITS = st.builds(
    Limit,
    st.one_of(st.none(), st.integers(1, 3)),
    st.one_of(st.none(), st.builds(Rate, st.integers(1, 3), st.sampled_from([1, 5, 20]))),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.sets(st.sampled_from(LANES)), st.integers(-1, 1)),
        st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("go_on"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("pass_time"), st.integers(1, 8_000), st.just(0)),
        st.tuples(st.just("look_again"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Model:
    def __init__(self, limits: dict[str, Limit]) -> None:
        self.limits = limits
        self.waiting: list[QueuedRun] = []
        self.running: list[QueuedRun] = []
        self.starts: list[tuple[int, QueuedRun]] = []

    def has_room(self, run: QueuedRun, now: int) -> bool:
        for lane in run.lanes:
            limit = self.limits[lane]
            busy = sum(lane in other.lanes for other in self.running)
            if limit.concurrency is not None and busy >= limit.concurrency:
                return False
            if limit.rate is None or run.is_resuming:
                continue
            since = now - limit.rate.window_ms * 1_000
            recent = sum(at > since and lane in other.lanes for at, other in self.starts)
            if recent >= limit.rate.count:
                return False
        return True

    def start_all(self, now: int) -> list[str]:
        started = []
        for run in sorted(self.waiting, key=lambda run: (-run.priority, run.place)):
            if self.has_room(run, now):
                self.waiting.remove(run)
                self.running.append(run)
                started.append(run.run_id)
                if not run.is_resuming:
                    self.starts.append((now, run))
        return started

    def check_limits(self) -> None:
        for lane, limit in self.limits.items():
            if limit.concurrency is not None:
                assert sum(lane in run.lanes for run in self.running) <= limit.concurrency
            if limit.rate is not None:
                times = [at for at, run in self.starts if lane in run.lanes]
                spans = zip(times, times[limit.rate.count :], strict=False)
                assert all(b - a >= limit.rate.window_ms * 1_000 for a, b in spans)


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(LANES, LIMITS)), OPERATIONS)
def test_queue_starts_what_a_plain_model_starts_and_never_idles(
    limits: dict[str, Limit], operations: list[tuple[str, object, int]]
) -> None:
    state, model = make_state(limits), Model(limits)
    put_away: list[QueuedRun] = []
    now = 0
    for place, (what, argument, priority) in enumerate(operations):
        if what == "admit":
            assert isinstance(argument, set)
            run = QueuedRun(f"r{place}", place, tuple(sorted(argument)), priority)
            state.enqueue(run)
            model.waiting.append(run)
        elif what == "look_again":
            again = choose_starts(state, now).look_again_at
            if again is not None:
                assert again > now
                assert not any(model.has_room(run, again - 1) for run in model.waiting)
                assert any(model.has_room(run, again) for run in model.waiting)
                now = again
        else:
            assert isinstance(argument, int)
            if what == "pass_time":
                now += argument
            elif what == "go_on" and put_away:
                run = put_away.pop(argument % len(put_away))
                state.enqueue(run)
                model.waiting.append(run)
            elif what in ("end", "wait") and model.running:
                run = model.running.pop(argument % len(model.running))
                left = state.leave(run.run_id)
                assert left is not None and left.is_resuming
                if what == "wait":
                    put_away.append(left)
        assert model.start_all(now) == take_starts(state, now)
        model.check_limits()
        # Nothing idles: what still waits has no room.
        assert not any(model.has_room(run, now) for run in model.waiting)
