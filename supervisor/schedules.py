"""Schedules: which runs they start, and which of their slots are passed over.

A slot is an instant at which a schedule is due. Each is settled once, in the order of time, by
`ScheduleFired` or by a `ScheduleSkipped` that may cover a stretch of them; `cursor` is the last
settled one, so that a slot can't be settled again, whatever the clock does.

Events, all in the system's run (instants are UTC µs; `?` may be missing):

    ScheduleAdded    scheduleId workflowId cron? zone? everyMs? anchor onMissed overlap template
                     input by?
    ScheduleFired    scheduleId slot runId isCatchUp
    ScheduleSkipped  scheduleId slot through count? reason error?
    ScheduleRemoved  scheduleId by?

`template` is what its runs are admitted with besides their input, with the `inputHash` of that.
`slot` to `through` are the first and the last slot of the stretch, `count` how many these are,
unless they are too many to count.

What is due is decided one slot or stretch at a time: decide, fold what came of it, decide again,
until nothing is due. So a run that couldn't be admitted doesn't count as open for the next slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.errors import UsageError, shorten
from planaria.protocol.events import Draft, Event
from planaria.protocol.ids import SYSTEM_RUN_ID, derive_id
from planaria.protocol.payloads import read_field

from .cron import Cron, Grid, Spec, count_between, last_between, next_after
from .illegal import refuse_unless
from .run_state import Value

SCHEDULE_RUNS_MAX = 100  # runs of one schedule that haven't ended; further slots are skipped
# A slot later than this was missed (the machine slept, or the clock was set forward): as long as a
# process may be silent before it counts as hung.
SLOT_LATE_MS_MAX = 10_000

# What becomes of the slots that came while no supervisor was there.
MISSED_SKIP = "skip"
MISSED_RUN_ONCE = "run-once"
ON_MISSED = frozenset({MISSED_SKIP, MISSED_RUN_ONCE})
# What becomes of a slot at which an earlier run of the schedule hasn't ended.
OVERLAP_SKIP = "skip"
OVERLAP_QUEUE = "queue"
OVERLAP_ALLOW = "allow"
OVERLAPS = frozenset({OVERLAP_SKIP, OVERLAP_QUEUE, OVERLAP_ALLOW})

# Why a slot was skipped.
MISSED = "missed"
OVERLAP = "overlap"
TOO_MANY_RUNS = "too_many_runs"
NOT_ADMITTED = "not_admitted"


@dataclass(slots=True)
class ScheduleState:
    """One schedule, as its events say."""

    id: str
    workflow_id: str
    spec: Spec
    anchor: int  # when it was added: what is due later counts
    on_missed: str
    overlap: str
    template: dict[str, Any]
    input: Value
    cursor: int  # the last settled slot, or the anchor
    fired: int = 0
    last_slot: int | None = None  # the last one that fired, and its run
    last_run_id: str | None = None
    last_skip: dict[str, Any] | None = None  # the last event that skipped slots


@dataclass(frozen=True, slots=True)
class Firing:
    """A slot for which a run is to be admitted now.

    In the same commit: the run's first events and `fire_slot`; or, if it can't be admitted,
    `refuse_slot` alone. With `is_queued` the run waits for the earlier ones of its schedule: it
    has `lane` among its lanes, whose concurrency is 1 (see `queues`).
    """

    schedule_id: str
    slot: int
    run_id: str  # a pure function of schedule and slot
    is_catch_up: bool = False
    is_queued: bool = False

    @property
    def lane(self) -> str:
        """Returns the name of the schedule's own lane; no queue has a colon in its name."""
        return f"schedule:{self.schedule_id}"


@dataclass(slots=True)
class Timetable:
    """All schedules of a data directory.

    `watching_since` (UTC µs) is when this supervisor took over: earlier slots were missed.
    """

    watching_since: int
    schedules: dict[str, ScheduleState] = field(default_factory=dict)
    _is_known: bool = field(default=False, compare=False)  # whether the next field still holds
    _due_at: int | None = field(default=None, compare=False)

    def fold(self, event: Event) -> None:
        """Applies a schedule's event.

        Raises:
            IllegalEventError: it can't come here; nothing has changed.
        """
        fold_schedule(self.schedules, event)
        self._is_known = False

    def next_due(self) -> int | None:
        """Returns the instant of the first slot that isn't settled, which may be in the past."""
        if not self._is_known:
            slots = [find_slot(schedule) for schedule in self.schedules.values()]
            self._due_at = min((slot for slot in slots if slot is not None), default=None)
            self._is_known = True
        return self._due_at

    def decide_due(self, now: int, open_runs: Mapping[str, int]) -> list[Draft | Firing]:
        """Returns what is due at `now` (UTC µs), at most one entry for each schedule.

        `open_runs` counts the runs of each schedule that haven't ended. The caller commits and
        folds what comes of each, and asks again until nothing is due.
        """
        # A clock that was set back shows times before the take-over: they are watched too.
        self.watching_since = min(self.watching_since, now)
        due_at = self.next_due()
        if due_at is None or due_at > now:
            return []
        decided = [
            decide_slot(schedule, now, self.watching_since, open_runs.get(schedule.id, 0))
            for schedule in self.schedules.values()
        ]
        return [entry for entry in decided if entry is not None]


def decide_slot(
    schedule: ScheduleState, now: int, watching_since: int, open_runs: int
) -> Draft | Firing | None:
    """Returns what becomes of the first due slot of a schedule, or of the stretch it begins.

    Of several that are due at once only the last may give a run: if it is on time, or if the
    schedule makes up for missed ones.
    """
    slot = find_slot(schedule)
    if slot is None or slot > now:
        return None
    last = last_between(schedule.spec, schedule.cursor, now)
    assert last is not None, "the first due slot is one"
    is_on_time = last >= max(watching_since, now - SLOT_LATE_MS_MAX * 1_000)
    is_met = is_on_time or schedule.on_missed == MISSED_RUN_ONCE
    if last == slot and is_met:
        return _meet_overlap(schedule, slot, open_runs, is_catch_up=not is_on_time)
    if is_met:
        # It is left for the next decision, where it is alone.
        last = last_between(schedule.spec, schedule.cursor, last - 1)
        assert last is not None, "the first due slot comes before the last"
    return _skip_slots(schedule, slot, last, MISSED)


def fire_slot(firing: Firing) -> Draft:
    """Returns the event of a slot whose run was admitted."""
    payload = {
        "scheduleId": firing.schedule_id,
        "slot": firing.slot,
        "runId": firing.run_id,
        "isCatchUp": firing.is_catch_up,
    }
    return Draft(SYSTEM_RUN_ID, "ScheduleFired", payload)


def refuse_slot(firing: Firing, error: str) -> Draft:
    """Returns the event of a slot whose run couldn't be admitted; the schedule goes on."""
    payload = {
        "scheduleId": firing.schedule_id,
        "slot": firing.slot,
        "through": firing.slot,
        "count": 1,
        "reason": NOT_ADMITTED,
        "error": shorten(error),
    }
    return Draft(SYSTEM_RUN_ID, "ScheduleSkipped", payload)


def fold_schedule(schedules: dict[str, ScheduleState], event: Event) -> None:
    """Applies a schedule's event; it needs no zone rules.

    Raises:
        IllegalEventError: it can't come here; nothing has changed.
    """
    payload = event.payload
    schedule_id = payload["scheduleId"]
    schedule = schedules.get(schedule_id)
    if event.type == "ScheduleAdded":
        refuse_unless(schedule is None, event, f"as schedule {schedule_id!r} is there")
        schedules[schedule_id] = ScheduleState(
            id=schedule_id,
            workflow_id=payload["workflowId"],
            spec=spec_of(payload),
            anchor=payload["anchor"],
            on_missed=payload["onMissed"],
            overlap=payload["overlap"],
            template=payload["template"],
            input=read_field(payload, "input"),
            cursor=payload["anchor"],
        )
        return
    refuse_unless(schedule is not None, event, f"as there is no schedule {schedule_id!r}")
    assert schedule is not None
    if event.type == "ScheduleRemoved":
        del schedules[schedule_id]
        return
    slot = payload["slot"]
    refuse_unless(slot > schedule.cursor, event, f"after slot {schedule.cursor} was settled")
    if event.type == "ScheduleFired":
        schedule.fired += 1
        schedule.last_slot, schedule.last_run_id = slot, payload["runId"]
        schedule.cursor = slot
        return
    refuse_unless(event.type == "ScheduleSkipped", event, "for a schedule")
    refuse_unless(payload["through"] >= slot, event, f"through {payload['through']}")
    schedule.last_skip = payload
    schedule.cursor = payload["through"]


def find_slot(schedule: ScheduleState) -> int | None:
    """Returns the first slot that isn't settled; None if it never comes, or can't be known."""
    try:
        return next_after(schedule.spec, schedule.cursor)
    except UsageError:
        return None  # the zone is unknown here: the other schedules go on


def spec_of(payload: dict[str, Any]) -> Spec:
    """Returns when a schedule is due, from the event that adds it."""
    if "cron" in payload:
        return Cron(payload["cron"], payload["zone"])
    return Grid(payload["everyMs"], payload["anchor"])


def _meet_overlap(
    schedule: ScheduleState, slot: int, open_runs: int, *, is_catch_up: bool
) -> Draft | Firing:
    if schedule.overlap == OVERLAP_SKIP and open_runs > 0:
        return _skip_slots(schedule, slot, slot, OVERLAP)
    if open_runs >= SCHEDULE_RUNS_MAX:
        return _skip_slots(schedule, slot, slot, TOO_MANY_RUNS)
    return Firing(
        schedule_id=schedule.id,
        slot=slot,
        run_id=derive_id("run_", "schedule", schedule.id, schedule.anchor, slot),
        is_catch_up=is_catch_up,
        is_queued=schedule.overlap == OVERLAP_QUEUE,
    )


def _skip_slots(schedule: ScheduleState, first: int, last: int, reason: str) -> Draft:
    payload: dict[str, Any] = {
        "scheduleId": schedule.id,
        "slot": first,
        "through": last,
        "reason": reason,
    }
    count = 1 if first == last else count_between(schedule.spec, first - 1, last)
    if count is not None:
        payload["count"] = count
    return Draft(SYSTEM_RUN_ID, "ScheduleSkipped", payload)
