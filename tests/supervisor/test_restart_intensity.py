"""Restart intensity and back-off: the counting, at the edges of its period."""

import pytest

from planaria.protocol.limits import (
    MAX_RESTARTS,
    RESTART_DELAY_FIRST_MS,
    RESTART_DELAY_MAX_MS,
    RESTART_PERIOD_MS,
)
from planaria.supervisor.restart import is_over_intensity, restart_not_before

PERIOD_US = RESTART_PERIOD_MS * 1_000
NOW = 10 * PERIOD_US


def crashes(count: int, *, at: int = NOW, epoch: int = 1) -> list[tuple[int, int]]:
    return [(epoch, at)] * count


@pytest.mark.parametrize("count", range(1, MAX_RESTARTS + 4))
def test_attempt_fails_at_one_crash_more_than_the_restarts_allowed(count: int) -> None:
    assert is_over_intensity(crashes(count), 1, NOW) == (count > MAX_RESTARTS)


@pytest.mark.parametrize(("age_us", "is_over"), [(PERIOD_US, True), (PERIOD_US + 1, False)])
def test_crash_counts_until_the_period_is_over(age_us: int, is_over: bool) -> None:
    history = [*crashes(1, at=NOW - age_us), *crashes(MAX_RESTARTS)]

    assert is_over_intensity(history, 1, NOW) is is_over


def test_crashes_of_an_earlier_supervisor_do_not_count() -> None:
    history = [*crashes(MAX_RESTARTS, epoch=1), *crashes(1, epoch=2)]

    assert not is_over_intensity(history, 2, NOW)
    assert restart_not_before(history, 2, NOW) == (2, NOW)


def test_first_restart_is_immediate_and_the_following_double_up_to_the_limit() -> None:
    delays = []
    for count in range(1, 13):
        epoch, mono = restart_not_before(crashes(count), 1, NOW)
        assert epoch == 1
        delays.append((mono - NOW) / 1_000)

    first = RESTART_DELAY_FIRST_MS
    assert delays[:5] == [0, first, 2 * first, 4 * first, 8 * first]
    assert delays[-1] == RESTART_DELAY_MAX_MS
    assert delays == sorted(delays)


def test_no_crash_means_no_delay() -> None:
    assert restart_not_before([], 3, NOW) == (3, NOW)
    assert not is_over_intensity([], 3, NOW)
