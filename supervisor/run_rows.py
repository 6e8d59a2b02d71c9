"""The row that lists keep of each run: a projection of its events."""

from collections.abc import Iterable
from dataclasses import dataclass

from planaria.protocol.events import Event

STATUS_BY_TYPE = {
    "RunAdmitted": "admitted",
    "RunStarted": "running",
    "RunReopened": "running",
    "RunInterrupted": "interrupted",
    "RunCompleted": "completed",
    "RunFailed": "failed",
    "RunCancelled": "cancelled",
}
ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in a list. `ended_at` is None while it is open.

    As an update, a None in `workflow_id` or `admitted_at` leaves what the row has.
    """

    run_id: str
    status: str
    workflow_id: str | None = None
    admitted_at: int | None = None
    ended_at: int | None = None


def project_rows(events: Iterable[Event]) -> list[RunRow]:
    """Returns the updates that these events make to the rows of their runs, in their order."""
    rows: list[RunRow] = []
    for event in events:
        status = STATUS_BY_TYPE.get(event.type)
        if status is None:
            continue
        admitted = event.type == "RunAdmitted"
        rows.append(
            RunRow(
                run_id=event.run_id,
                status=status,
                workflow_id=event.payload.get("workflowId") if admitted else None,
                admitted_at=event.at if admitted else None,
                ended_at=event.at if status in ENDED else None,
            )
        )
    return rows
