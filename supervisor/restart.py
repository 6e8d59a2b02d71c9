"""Restart intensity and back-off of a session's processes, as in Erlang/OTP's supervisors.

Crash times are (epoch, monotonic µs): a supervisor's restart begins a new count, and a jump of
the wall clock neither forgives a crash nor invents one.

Source: OTP Design Principles, "Supervisor Behaviour", maximum restart intensity.
"""

from planaria.protocol.limits import (
    MAX_RESTARTS,
    RESTART_DELAY_FIRST_MS,
    RESTART_DELAY_MAX_MS,
    RESTART_PERIOD_MS,
)


def is_over_intensity(crashes: list[tuple[int, int]], epoch: int, mono: int) -> bool:
    """Says whether the newest crash was one more than MAX_RESTARTS within the period."""
    return _count_recent(crashes, epoch, mono) > MAX_RESTARTS


def restart_not_before(crashes: list[tuple[int, int]], epoch: int, mono: int) -> tuple[int, int]:
    """Returns (epoch, monotonic µs) before which no successor is bound: 0, 50, 100, … 5,000 ms."""
    recent = _count_recent(crashes, epoch, mono)
    if recent <= 1:
        return (epoch, mono)
    delay_ms = min(RESTART_DELAY_FIRST_MS * 2 ** (recent - 2), RESTART_DELAY_MAX_MS)
    return (epoch, mono + delay_ms * 1_000)


def _count_recent(crashes: list[tuple[int, int]], epoch: int, mono: int) -> int:
    since = mono - RESTART_PERIOD_MS * 1_000
    return sum(1 for e, m in crashes if e == epoch and m >= since)
