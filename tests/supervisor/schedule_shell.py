"""What the shell does with schedules, in memory: decide, commit, fold, until nothing is due."""

from dataclasses import dataclass, field
from typing import Any

from cron_reference import us

from planaria.protocol.events import Draft, Event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.supervisor.schedule_requests import add_schedule
from planaria.supervisor.schedules import (
    Firing,
    ScheduleState,
    Timetable,
    fire_slot,
    fold_schedule,
    refuse_slot,
)

SECOND = 1_000_000
START = us("2026-03-28T12:00:00Z")
TEMPLATE = {"source": {"entry": "jobs:report"}, "inputHash": "sha256:0"}
FOLD_FIELDS = {
    "ScheduleFired": {"scheduleId", "slot", "runId", "isCatchUp"},
    "ScheduleSkipped": {"scheduleId", "slot", "through", "count", "reason", "error"},
}


@dataclass
class Supervisor:
    """What the shell does with schedules, in memory: decide, commit, fold, until nothing is due."""

    now: int = START
    log: list[Draft] = field(default_factory=list)
    open_runs: dict[str, list[str]] = field(default_factory=dict)
    failing: bool = False
    table: Timetable = field(default_factory=lambda: Timetable(START))

    def commit(self, draft: Draft) -> None:
        assert draft.run_id == SYSTEM_RUN_ID
        sequence = len(self.log) + 1
        event = Event(
            SYSTEM_RUN_ID, sequence, draft.type, self.now, 0, 1, None, None, draft.payload
        )
        self.table.fold(event)
        self.log.append(draft)

    def add(self, schedule_id: str = "s", **spec: Any) -> None:
        spec.setdefault("template", TEMPLATE)
        schedules = self.table.schedules
        for draft in add_schedule(schedules, schedule_id, "report", now=self.now, **spec):
            self.commit(draft)

    def tick(self, now: int) -> list[str]:
        """Moves the clock and returns what came of every slot, as text."""
        self.now = now
        said = []
        for _ in range(1_000):
            counts = {name: len(runs) for name, runs in self.open_runs.items()}
            decided = self.table.decide_due(self.now, counts)
            if not decided:
                return said
            for entry in decided:
                draft = entry if isinstance(entry, Draft) else self.admit(entry)
                self.commit(draft)
                said.append(tell(draft))
        raise AssertionError("schedules never come to an end")

    def admit(self, firing: Firing) -> Draft:
        if self.failing:
            return refuse_slot(firing, "no module named 'jobs'")
        self.open_runs.setdefault(firing.schedule_id, []).append(firing.run_id)
        return fire_slot(firing)

    def restart(self, now: int) -> None:
        """A new supervisor: the log is all it has."""
        self.now = now
        schedules: dict[str, ScheduleState] = {}
        for sequence, draft in enumerate(self.log, start=1):
            at = (SYSTEM_RUN_ID, sequence, draft.type, 0, 0, 1, None, None, draft.payload)
            fold_schedule(schedules, Event(*at))
        assert schedules == self.table.schedules
        self.table = Timetable(now, schedules)


def tell(draft: Draft) -> str:
    payload = draft.payload
    assert payload.keys() <= FOLD_FIELDS[draft.type]
    slot = (payload["slot"] - START) / SECOND
    if draft.type == "ScheduleFired":
        return f"fired {slot:g}" + (" late" if payload["isCatchUp"] else "")
    through = (payload["through"] - START) / SECOND
    count = payload.get("count", "many")
    span = f"{slot:g}" if slot == through else f"{slot:g}-{through:g}"
    return f"{payload['reason']} {span} ({count})"


def at(seconds: float) -> int:
    return START + round(seconds * SECOND)
