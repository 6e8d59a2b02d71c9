"""Requests about schedules: what is added, refused, removed and shown."""

from typing import Any

import pytest
from schedule_shell import START, TEMPLATE, Supervisor, at

from planaria.protocol.errors import (
    ConflictError,
    InvalidIdError,
    NotFoundError,
    PlanariaError,
    UsageError,
)
from planaria.supervisor import schedule_requests
from planaria.supervisor.schedule_requests import describe_schedule, remove_schedule


def test_identical_repeat_adds_nothing_and_another_one_is_a_conflict() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", input={"day": 1})
    supervisor.tick(at(10))

    supervisor.add(every="10000ms", input={"day": 1})
    assert 2 == len(supervisor.log)
    different: list[dict[str, Any]] = [
        {"every": "11s"},
        {"cron": "* * * * *"},
        {"every": "10s", "overlap": "queue"},
        {"every": "10s", "on_missed": "run-once"},
        {"every": "10s", "template": {**TEMPLATE, "inputHash": "sha256:1"}},
    ]
    for spec in different:
        with pytest.raises(ConflictError, match="another schedule 's'"):
            supervisor.add(**spec)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({}, UsageError),
        ({"cron": "* * * * *", "every": "5m"}, UsageError),
        ({"every": "5m", "zone": "UTC"}, UsageError),
        ({"every": "0s"}, UsageError),
        ({"cron": "* * * *"}, UsageError),
        ({"cron": "* * * * *", "zone": "Local"}, UsageError),
        ({"cron": "* * * * *", "zone": ""}, UsageError),
        ({"cron": "* 2 25-31 3 */7", "zone": "Europe/Berlin"}, UsageError),  # always in the gap
        ({"every": "5m", "on_missed": "run-twice"}, UsageError),
        ({"every": "5m", "overlap": "never"}, UsageError),
        ({"every": "5m", "schedule_id": "a:b"}, InvalidIdError),
    ],
)
def test_malformed_schedule_is_refused(spec: dict[str, Any], error: type[PlanariaError]) -> None:
    supervisor = Supervisor()

    with pytest.raises(error):
        supervisor.add(**spec)
    assert [] == supervisor.log


def test_one_schedule_more_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_requests, "SCHEDULES_MAX", 2)
    supervisor = Supervisor()
    supervisor.add("a", every="1h")
    supervisor.add("b", every="1h")

    with pytest.raises(ConflictError, match="there are 2 schedules"):
        supervisor.add("c", every="1h")
    supervisor.add("b", every="1h")


def test_description_says_what_comes_and_what_came_last() -> None:
    supervisor = Supervisor()
    supervisor.add(cron="*/5 * * * *", zone="Europe/Berlin")
    supervisor.tick(at(300))
    supervisor.tick(at(600))

    assert {
        "scheduleId": "s",
        "workflowId": "report",
        "cron": "*/5 * * * *",
        "zone": "Europe/Berlin",
        "onMissed": "skip",
        "overlap": "skip",
        "addedAt": START,
        "nextSlot": at(900),
        "fired": 1,
        "lastSlot": at(300),
        "lastRunId": supervisor.open_runs["s"][0],
        "lastSkipped": {"slot": at(600), "through": at(600), "count": 1, "reason": "overlap"},
    } == describe_schedule(supervisor.table.schedules["s"])


def test_removed_schedule_fires_no_more_and_its_id_is_free() -> None:
    supervisor = Supervisor()
    supervisor.add(every="10s", overlap="allow")
    supervisor.tick(at(10))
    first = supervisor.open_runs["s"][0]
    for draft in remove_schedule(supervisor.table.schedules, "s", by="ada"):
        supervisor.commit(draft)

    assert {"scheduleId": "s", "by": "ada"} == supervisor.log[-1].payload
    assert supervisor.table.next_due() is None
    assert [] == supervisor.tick(at(20))
    with pytest.raises(NotFoundError, match="no schedule 's'"):
        remove_schedule(supervisor.table.schedules, "s")
    supervisor.add(every="10s", overlap="allow")
    assert ["fired 30"] == supervisor.tick(at(30))
    assert first != supervisor.open_runs["s"][1]
