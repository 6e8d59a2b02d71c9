"""Named points of a child at which tests let it die; in normal operation they do nothing.

C0 started, no hello; C1 hello sent; C2 in fast-forward; C3 before an intent is sent; C4 intent
sent; C5 intent committed, not read; C6 read, body not begun; C7 before the effect; C8 after it;
C9 outcome built, not sent; C10 outcome sent; C11 outcome committed, not read; C12 read; C13 the
session's end sent; C14 the end committed; C15 about to exit.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from planaria.protocol.events import TASKS

POINTS = frozenset(f"C{number}" for number in range(16))
_OPENING = frozenset(
    {"harness.tool_call.started", "harness.model.called", "harness.operation.started"}
)
_ENDING = frozenset(
    f"harness.{task}.{end}" for task in TASKS.values() for end in ("succeeded", "failed")
)
_OUTCOMES = frozenset(
    f"harness.{kind}"
    for kind in "model.responded model.failed tool_call.succeeded tool_call.failed "
    "operation.succeeded operation.failed".split()
)
_AT_SEND = ("C4", "C10", "C13")
_AT_COMMIT = ("C5", "C11", "C14")

_hit: Callable[[str], None] | None = None
_has_random_ids = False


def hit(point: str) -> None:
    """Says that the process is at a point."""
    if _hit is not None:
        _hit(point)


def hit_sent(events: Iterable[Any]) -> None:
    """Says that a frame with these events was sent."""
    if _hit is not None:
        _hit_kinds(events, _AT_SEND)


def hit_committed(events: Iterable[Any]) -> None:
    """Says that these events are known to be on disk, and nothing was done about it yet."""
    if _hit is not None:
        _hit_kinds(events, _AT_COMMIT)


def install(plan: Mapping[str, Any]) -> None:
    """Lets the process die, or stop, at the n-th time that it reaches a point.

    `plan` is {point, nth (1), action (kill, stop or exit), ledger?, times (1)}. Each time is
    written to the ledger before it happens, so that a kill that never came is seen, and so that
    a successor with the same plan is spared after `times`. With `random_call_ids` it plants that
    bug too, or only that.
    """
    global _hit, _has_random_ids
    _has_random_ids = bool(plan.get("random_call_ids"))
    if "point" not in plan:
        return
    point, nth, ledger = plan["point"], plan.get("nth", 1), plan.get("ledger")
    action, times = plan.get("action", "kill"), plan.get("times", 1)
    assert point in POINTS, f"{point!r} is no point of a child"
    counted: Counter[str] = Counter()

    def act(reached: str) -> None:
        counted[reached] += 1
        if reached != point or counted[reached] != nth or _read_count(ledger) >= times:
            return
        if ledger is not None:
            with open(ledger, "a") as file:
                file.write(f"{point} {nth} {action} {os.getpid()}\n")
        if action == "exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)

    _hit = act


def alter_call_id(call: str) -> str:
    """Returns the id as it is, unless a test has planted the bug of random ones."""
    return f"call_{os.urandom(12).hex()}" if _has_random_ids else call


def uninstall() -> None:
    """Makes the points do nothing again; for tests that stay in one process."""
    global _hit, _has_random_ids
    _hit, _has_random_ids = None, False


def _hit_kinds(events: Iterable[Any], points: tuple[str, str, str]) -> None:
    kinds = {event[0] for event in events}
    for point, group in zip(points, (_OPENING, _OUTCOMES, _ENDING), strict=True):
        if kinds & group:
            hit(point)


def _read_count(ledger: str | None) -> int:
    if ledger is None or not os.path.exists(ledger):
        return 0
    with open(ledger) as file:
        return len(file.readlines())
