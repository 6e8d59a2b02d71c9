"""Schedules: every slot is fired or skipped exactly once, whatever stops, overlaps or fails."""

import pytest
from cron_reference import show, us
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_shell import SECOND, START, Supervisor, at

from planaria.protocol.events import Draft, Event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.supervisor.cron import SLOTS_COUNTED_MAX, due_between
from planaria.supervisor.illegal import IllegalEventError
from planaria.supervisor.schedule_requests import describe_schedule
from planaria.supervisor.schedules import (
    SCHEDULE_RUNS_MAX,
    SLOT_LATE_MS_MAX,
    Firing,
    ScheduleState,
    Timetable,
    fold_schedule,
)


def test_schedule_fires_at_each_slot_and_not_before() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", overlap="allow")

    assert at(10) == supervisor.table.next_due()
    assert [] == supervisor.tick(at(10) - 1)
    assert ["fired 10"] == supervisor.tick(at(10))
    assert [] == supervisor.tick(at(10))
    assert at(20) == supervisor.table.next_due()
    assert ["fired 20"] == supervisor.tick(at(20.3))
    assert at(30) == supervisor.table.next_due()


def test_cron_fires_in_its_zone_over_a_clock_change() -> None:
    supervisor = Supervisor()
    supervisor.add(cron="30 2 * * *", zone="Europe/Berlin", overlap="allow")
    fired = []
    for _ in range(2):
        due_at = supervisor.table.next_due()
        assert due_at is not None
        supervisor.tick(due_at)
        fired.append(show(supervisor.table.schedules["s"].last_slot))

    assert ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"] == fired


def test_run_id_is_a_function_of_schedule_and_slot() -> None:
    ids = []
    for _ in range(2):
        supervisor = Supervisor()
        supervisor.add("a", every="10s", overlap="allow")
        supervisor.add("b", every="10s", overlap="allow")
        supervisor.tick(at(10))
        supervisor.tick(at(20))
        ids.append(sorted([*supervisor.open_runs["a"], *supervisor.open_runs["b"]]))

    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 4


def test_missed_stretch_is_skipped_as_a_whole() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", on_missed="skip", overlap="allow")
    supervisor.tick(at(10))

    supervisor.restart(at(75))

    assert ["missed 20-70 (6)"] == supervisor.tick(at(75))
    assert ["fired 80"] == supervisor.tick(at(80))


def test_missed_stretch_gives_one_run_if_asked_for() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", on_missed="run-once", overlap="allow")
    supervisor.tick(at(10))

    supervisor.restart(at(75))

    assert ["missed 20-60 (5)", "fired 70 late"] == supervisor.tick(at(75))
    assert ["fired 80"] == supervisor.tick(at(80))


def test_single_missed_slot_gives_one_run_if_asked_for() -> None:
    supervisor = Supervisor()
    supervisor.add(cron="0 9 * * *", on_missed="run-once")

    supervisor.restart(us("2026-03-29T09:00:00.000001Z"))

    assert ["fired 75600 late"] == supervisor.tick(supervisor.now)


def test_slot_that_was_missed_by_a_second_was_missed() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", on_missed="skip")

    supervisor.restart(at(10) + 1)

    assert ["missed 10 (1)"] == supervisor.tick(at(11))


def test_slot_at_the_instant_of_the_take_over_is_on_time() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", on_missed="skip")

    supervisor.restart(at(10))

    assert ["fired 10"] == supervisor.tick(at(10.5))


@pytest.mark.parametrize("on_missed", ["skip", "run-once"])
def test_slot_on_time_is_the_run_of_the_stretch_before_it(on_missed: str) -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", on_missed=on_missed, overlap="allow")

    supervisor.restart(at(30))

    assert ["missed 10-20 (2)", "fired 30"] == supervisor.tick(at(30.1))


@pytest.mark.parametrize("on_missed", ["skip", "run-once"])
def test_nothing_missed_gives_nothing(on_missed: str) -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", on_missed=on_missed)

    supervisor.restart(at(9.9))

    assert [] == supervisor.tick(at(9.9))


def test_catch_up_counts_as_the_earlier_run_of_the_slot_after_it() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", on_missed="run-once", overlap="skip")

    supervisor.restart(at(35))

    assert ["missed 10-20 (2)", "fired 30 late"] == supervisor.tick(at(35))
    assert ["overlap 40 (1)"] == supervisor.tick(at(40))


@pytest.mark.parametrize(("late_us", "is_missed"), [(0, False), (1, True)])
def test_slot_is_missed_too_if_the_machine_slept_over_it(late_us: int, is_missed: bool) -> None:
    supervisor = Supervisor()
    supervisor.add(every="1h", on_missed="skip")

    said = supervisor.tick(at(3_600) + SLOT_LATE_MS_MAX * 1_000 + late_us)

    assert ["missed 3600 (1)" if is_missed else "fired 3600"] == said


@pytest.mark.parametrize("on_missed", ["skip", "run-once"])
def test_slots_that_a_slow_loop_finds_together_give_one_run(on_missed: str) -> None:
    supervisor = Supervisor()
    supervisor.add(every="1s", overlap="allow", on_missed=on_missed)

    assert ["missed 1-2 (2)", "fired 3"] == supervisor.tick(at(3.5))


def test_stretch_of_years_is_settled_by_one_event_and_not_counted() -> None:
    supervisor = Supervisor()
    supervisor.add(every="1s", on_missed="run-once")
    years = 5 * 365 * 86_400

    supervisor.restart(at(years + 0.5))

    said = supervisor.tick(supervisor.now)
    assert [f"missed 1-{years - 1:g} (many)", f"fired {years:g} late"] == said
    first, last = supervisor.log[1].payload, supervisor.log[2].payload
    assert (at(1), at(years - 1), at(years)) == (first["slot"], first["through"], last["slot"])


@pytest.mark.parametrize(("extra", "count"), [(0, SLOTS_COUNTED_MAX), (1, None)])
def test_missed_slots_are_counted_up_to_the_limit(extra: int, count: int | None) -> None:
    supervisor = Supervisor()
    supervisor.add(cron="* * * * *", on_missed="skip")

    supervisor.restart(at(60 * (SLOTS_COUNTED_MAX + extra) + 1))
    supervisor.tick(supervisor.now)

    assert count == supervisor.log[-1].payload.get("count")


def test_clock_that_is_set_back_fires_no_slot_again() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", overlap="allow")
    supervisor.tick(at(10))
    supervisor.tick(at(20))

    assert [] == supervisor.tick(at(5))
    assert [] == supervisor.tick(at(15))
    assert [] == supervisor.tick(at(20))
    assert ["fired 30"] == supervisor.tick(at(30))


def test_schedule_added_after_the_clock_was_set_back_misses_nothing() -> None:
    supervisor = Supervisor()
    supervisor.add("old", every="10s", overlap="allow")
    supervisor.tick(at(-3_600))

    supervisor.add("new", every="10s", overlap="allow", on_missed="skip")

    assert ["fired -3590"] == supervisor.tick(at(-3_589.9))


def test_clock_that_is_set_forward_gives_one_run_at_most() -> None:
    supervisor = Supervisor()
    supervisor.add(every="1m", on_missed="run-once", overlap="allow")

    assert ["missed 60-86340 (many)", "fired 86400"] == supervisor.tick(at(86_405))
    assert ["missed 86460-172740 (many)", "fired 172800 late"] == supervisor.tick(at(172_830))


def test_overlap_skip_passes_slots_while_a_run_is_open() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", overlap="skip")
    supervisor.tick(at(10))

    assert ["overlap 20 (1)"] == supervisor.tick(at(20))
    supervisor.open_runs["s"].clear()
    assert ["fired 30"] == supervisor.tick(at(30))


@pytest.mark.parametrize(("overlap", "is_queued"), [("queue", True), ("allow", False)])
def test_overlap_queue_and_allow_admit_up_to_the_limit(overlap: str, is_queued: bool) -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", overlap=overlap)
    supervisor.open_runs["s"] = ["run_x"] * (SCHEDULE_RUNS_MAX - 1)

    (firing,) = supervisor.table.decide_due(at(10), {"s": SCHEDULE_RUNS_MAX - 1})
    assert isinstance(firing, Firing)
    assert (is_queued, "schedule:s") == (firing.is_queued, firing.lane)
    assert ["fired 10"] == supervisor.tick(at(10))
    assert ["too_many_runs 20 (1)"] == supervisor.tick(at(20))
    supervisor.open_runs["s"].pop()
    assert ["fired 30"] == supervisor.tick(at(30))


def test_open_runs_of_one_schedule_do_not_hold_another() -> None:
    supervisor = Supervisor()
    supervisor.add("a", every="10s")
    supervisor.tick(at(5))
    supervisor.add("b", every="10s")
    supervisor.tick(at(10))

    assert ["fired 15"] == supervisor.tick(at(15))
    assert ["overlap 20 (1)"] == supervisor.tick(at(20))


def test_failing_tick_is_recorded_and_the_schedule_goes_on() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", overlap="skip")

    supervisor.failing = True
    assert ["not_admitted 10 (1)"] == supervisor.tick(at(10))
    assert ["not_admitted 20 (1)"] == supervisor.tick(at(20))
    assert "no module named 'jobs'" == supervisor.log[-1].payload["error"]
    supervisor.failing = False
    assert ["fired 30"] == supervisor.tick(at(30))


def test_run_that_could_not_be_admitted_does_not_overlap_the_next_slot() -> None:
    supervisor = Supervisor(failing=True)
    supervisor.add(every="1s", overlap="skip")

    assert ["not_admitted 1 (1)"] == supervisor.tick(at(1))
    supervisor.failing = False
    assert ["fired 2"] == supervisor.tick(at(2))


def test_schedule_in_a_zone_that_is_unknown_here_stops_no_other() -> None:
    supervisor = Supervisor()
    supervisor.add("good", cron="* * * * *")
    supervisor.add("lost", cron="* * * * *", zone="UTC")
    payload = {**supervisor.log[1].payload, "zone": "Mars/Olympus"}
    supervisor.log[1] = Draft(SYSTEM_RUN_ID, "ScheduleAdded", payload)
    schedules: dict[str, ScheduleState] = {}
    for draft in supervisor.log:
        fold_schedule(schedules, Event("", 1, draft.type, 0, 0, 1, None, None, draft.payload))
    supervisor.table = Timetable(START, schedules)

    assert at(60) == supervisor.table.next_due()
    assert ["fired 60"] == supervisor.tick(at(60))
    assert "Mars/Olympus" in describe_schedule(schedules["lost"])["error"]
    assert describe_schedule(schedules["lost"])["nextSlot"] is None


def test_fold_refuses_what_would_settle_a_slot_twice() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", overlap="allow")
    supervisor.tick(at(10))
    before = describe_schedule(supervisor.table.schedules["s"])
    fired = dict(supervisor.log[-1].payload)
    skipped = {"scheduleId": "s", "slot": at(10), "through": at(20), "reason": "missed"}

    for kind, payload in [
        ("ScheduleFired", fired),
        ("ScheduleSkipped", skipped),
        ("ScheduleSkipped", {**skipped, "slot": at(20), "through": at(10)}),
        ("ScheduleFired", {**fired, "scheduleId": "other"}),
        ("ScheduleRemoved", {"scheduleId": "other"}),
        ("ScheduleAdded", supervisor.log[0].payload),
    ]:
        with pytest.raises(IllegalEventError):
            supervisor.commit(Draft(SYSTEM_RUN_ID, kind, payload))
    assert before == describe_schedule(supervisor.table.schedules["s"])


SPECS = st.sampled_from(
    [
        {"every": "7s"},
        {"every": "100ms"},
        {"cron": "* * * * *", "zone": "Europe/Berlin"},
        {"cron": "*/20 2,3 * * *", "zone": "Europe/Berlin"},
        {"cron": "0,30 1-3 * * *", "zone": "Europe/Berlin"},
    ]
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["tick", "restart", "end_runs", "fail", "mend"]),
        st.one_of(st.integers(-5 * SECOND, 90 * SECOND), st.integers(0, 15 * 3_600 * SECOND)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(
    SPECS, st.sampled_from(["skip", "run-once"]), st.sampled_from(["skip", "queue", "allow"]), STEPS
)
def test_every_slot_is_settled_once_and_a_missed_stretch_gives_one_run_at_most(
    spec: dict[str, str], on_missed: str, overlap: str, steps: list[tuple[str, int]]
) -> None:
    supervisor = Supervisor()
    supervisor.add(**spec, on_missed=on_missed, overlap=overlap)
    seen_until = START
    for what, delta in steps:
        if what == "end_runs":
            supervisor.open_runs.clear()
        elif what in ("fail", "mend"):
            supervisor.failing = what == "fail"
        now = supervisor.now + delta
        if what == "restart":
            supervisor.restart(now)
        before = len(supervisor.log)
        supervisor.tick(now)
        seen_until = max(seen_until, now)
        fired = [d.payload for d in supervisor.log[before:] if d.type == "ScheduleFired"]
        assert len(fired) <= 1
        assert on_missed == "run-once" or not any(payload["isCatchUp"] for payload in fired)
        if overlap == "skip":
            assert len(supervisor.open_runs.get("s", [])) <= 1
    assert len(supervisor.open_runs.get("s", [])) <= SCHEDULE_RUNS_MAX

    (schedule,) = supervisor.table.schedules.values()
    cursor = START
    for draft in supervisor.log[1:]:
        payload = draft.payload
        # It begins with the first slot that isn't settled, and ends with a slot.
        assert due_between(schedule.spec, cursor, payload["slot"], count_max=1) == (
            payload["slot"],
        )
        cursor = payload.get("through", payload["slot"])
        assert due_between(schedule.spec, cursor - 1, cursor, count_max=1) == (cursor,)
        if "count" in payload:
            stretch = due_between(schedule.spec, payload["slot"] - 1, cursor, count_max=1_000)
            assert len(stretch) == payload["count"]
    assert due_between(schedule.spec, cursor, seen_until, count_max=1) == ()
