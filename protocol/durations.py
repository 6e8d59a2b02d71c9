"""Durations as documents write them: a whole number and a unit, like `250ms`, `30s` or `1d`."""

import re

DURATION_MS_MAX = 36_500 * 86_400_000  # a hundred years; far inside the 64 bits of a message

_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS_MAX = 13  # as many as DURATION_MS_MAX has; longer text is never turned into a number


def parse_duration(text: str) -> int:
    """Returns the milliseconds that `text` says.

    Raises:
        ValueError: `text` is no duration; the message says what to write.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        shown = repr(text[:40]) if isinstance(text, str) else type(text).__name__
        raise ValueError(
            f"{shown} is no duration: write a whole number and one of ms, s, m, h, d, like '30s'"
        )
    digits = match[1].lstrip("0") or "0"
    if len(digits) > _DIGITS_MAX or int(digits) * _UNIT_MS[match[2]] > DURATION_MS_MAX:
        raise ValueError(f"{text[:40]!r} is longer than 36500d: write a shorter duration")
    return int(digits) * _UNIT_MS[match[2]]
