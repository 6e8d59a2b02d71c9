"""What clients ask of schedules: add one, remove one, show them."""

from collections.abc import Mapping
from typing import Any

from planaria.protocol.errors import ConflictError, NotFoundError, UsageError
from planaria.protocol.events import Draft
from planaria.protocol.ids import SYSTEM_RUN_ID, check_id, check_workflow_id
from planaria.protocol.payloads import write_field

from .cron import Cron, Spec, next_after, parse_cron, parse_grid
from .run_state import Value
from .schedules import MISSED_SKIP, ON_MISSED, OVERLAP_SKIP, OVERLAPS, ScheduleState, spec_of

SCHEDULES_MAX = 1_000  # of one data directory


def add_schedule(
    schedules: Mapping[str, ScheduleState],
    schedule_id: str,
    workflow_id: str,
    *,
    now: int,
    template: dict[str, Any],
    input: Value = None,
    cron: str | None = None,
    zone: str | None = None,
    every: str | None = None,
    on_missed: str = MISSED_SKIP,
    overlap: str = OVERLAP_SKIP,
    by: str | None = None,
) -> list[Draft]:
    """Returns the event that adds a schedule; none if just this one is there already.

    Raises:
        UsageError: what is asked for is malformed, or would never be due.
        ConflictError: another one has this id, or there are too many.
    """
    check_id(schedule_id, "schedule id")
    check_workflow_id(workflow_id)
    _check_choice("on-missed", on_missed, ON_MISSED)
    _check_choice("overlap", overlap, OVERLAPS)
    spec = _read_spec(cron, zone, every, now)
    payload: dict[str, Any] = {
        "scheduleId": schedule_id,
        "workflowId": workflow_id,
        **_write_spec(spec),
        "anchor": now,
        "onMissed": on_missed,
        "overlap": overlap,
        "template": template,
        **write_field("input", input),
    }
    if by is not None:
        payload["by"] = by
    present = schedules.get(schedule_id)
    if present is not None:
        if _is_same(present, payload):
            return []
        raise ConflictError(
            message=f"there is another schedule {schedule_id!r}, of workflow "
            f"{present.workflow_id!r}; remove it first, or choose another id"
        )
    if len(schedules) >= SCHEDULES_MAX:
        raise ConflictError(
            message=f"there are {SCHEDULES_MAX} schedules, which is the most; remove one first"
        )
    if next_after(spec, now) is None:
        raise UsageError(
            message=f"cron {cron!r} in zone {zone!r} isn't due within fifty years; the clock never "
            "shows such a time there"
        )
    return [Draft(SYSTEM_RUN_ID, "ScheduleAdded", payload)]


def remove_schedule(
    schedules: Mapping[str, ScheduleState], schedule_id: str, *, by: str | None = None
) -> list[Draft]:
    """Returns the event that removes a schedule; its runs go on.

    Raises:
        NotFoundError: there is none.
    """
    if schedule_id not in schedules:
        raise NotFoundError(
            message=f"there is no schedule {schedule_id!r} in this data directory; 'planaria "
            "schedule list' shows them"
        )
    payload = {"scheduleId": schedule_id}
    if by is not None:
        payload["by"] = by
    return [Draft(SYSTEM_RUN_ID, "ScheduleRemoved", payload)]


def describe_schedule(schedule: ScheduleState) -> dict[str, Any]:
    """Returns how a schedule stands, as clients see it."""
    shown: dict[str, Any] = {
        "scheduleId": schedule.id,
        "workflowId": schedule.workflow_id,
        **_write_spec(schedule.spec),
        "onMissed": schedule.on_missed,
        "overlap": schedule.overlap,
        "addedAt": schedule.anchor,
        "nextSlot": None,
        "fired": schedule.fired,
        "lastSlot": schedule.last_slot,
        "lastRunId": schedule.last_run_id,
    }
    if schedule.last_skip is not None:
        names = ("slot", "through", "count", "reason", "error")
        skip = schedule.last_skip
        shown["lastSkipped"] = {name: skip[name] for name in names if name in skip}
    try:
        shown["nextSlot"] = next_after(schedule.spec, schedule.cursor)
    except UsageError as error:
        shown["error"] = str(error)
    return shown


def _read_spec(cron: str | None, zone: str | None, every: str | None, now: int) -> Spec:
    if (cron is None) == (every is None):
        raise UsageError(
            message="a schedule needs either a cron expression, like --cron '0 9 * * *' --tz "
            "Europe/Berlin, or a step, like --every 5m, and not both"
        )
    if cron is not None:
        return parse_cron(cron, "UTC" if zone is None else zone)
    if zone is not None:
        raise UsageError(
            message=f"zone {zone!r} has no meaning for a schedule of equal steps: leave it out"
        )
    return parse_grid(every, now)


def _write_spec(spec: Spec) -> dict[str, Any]:
    if isinstance(spec, Cron):
        return {"cron": spec.fields, "zone": spec.zone}
    return {"everyMs": spec.every_ms}


def _is_same(present: ScheduleState, payload: dict[str, Any]) -> bool:
    """Says whether a schedule asked for is the present one; its anchor may be another.

    The input is compared by its hash, in the template: a large one is a blob by now.
    """
    return (
        present.workflow_id == payload["workflowId"]
        and _write_spec(present.spec) == _write_spec(spec_of(payload))
        and (present.on_missed, present.overlap) == (payload["onMissed"], payload["overlap"])
        and present.template == payload["template"]
    )


def _check_choice(what: str, chosen: str, allowed: frozenset[str]) -> None:
    if chosen not in allowed:
        raise UsageError(
            message=f"{what} is {chosen!r}, expected one of {', '.join(sorted(allowed))}"
        )
