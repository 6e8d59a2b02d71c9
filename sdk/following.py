"""Follows a run for people who wait for it: its events, until it has ended or stopped."""

import time
from typing import TYPE_CHECKING

from planaria.protocol.errors import SupervisorUnavailableError

if TYPE_CHECKING:
    from .client import Client
    from .progress import Progress

# Behind these a run may be interrupted, and behind those it may wait for others. Only then is it
# looked at: that costs a request, and the supervisor a view of the whole run.
MAY_INTERRUPT = frozenset({"RunInterrupted", "SubRunRequested"})
MAY_BLOCK = MAY_INTERRUPT | frozenset(
    "ApprovalRequested WaitStarted RunPaused StepCompleted StepFailed ProcessExited "
    "harness.tool_call.unknown".split()
)


def follow_until(
    client: "Client",
    run_id: str,
    progress: "Progress",
    deadline: float | None,
    until_blocked: bool,
) -> None:
    """Shows events as they come, until the run has ended or stopped, or the time is over."""
    try:
        _follow(client, run_id, progress, deadline, until_blocked)
    except SupervisorUnavailableError:
        if deadline is None or left_until(deadline):
            raise  # else time is over, and what there is to be told is told after one more look


def _follow(
    client: "Client",
    run_id: str,
    progress: "Progress",
    deadline: float | None,
    until_blocked: bool,
) -> None:
    """Shows events until the run has ended or can't go on by itself."""
    after = 0
    looked_at = MAY_BLOCK if until_blocked else MAY_INTERRUPT
    while True:
        page = client.ask(
            "read_events", timeout=left_until(deadline), runId=run_id, after=after, follow=True
        )
        for event in page["events"]:
            progress.take(event)
            after = event["sequence"]
        if not page["events"] and page["isEnded"]:
            return
        if any(event["type"] in looked_at for event in page["events"]):
            shown = client.status(run_id)
            if shown["isInterrupted"] or (until_blocked and shown["isBlocked"]):
                return


def left_until(deadline: float | None) -> float | None:
    """Returns the seconds until a monotonic deadline, 0 behind it; None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
