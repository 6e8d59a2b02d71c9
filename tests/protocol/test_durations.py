"""Durations: their form, and what is refused."""

import pytest

from planaria.protocol.durations import DURATION_MS_MAX, parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("007s", 7_000),
        ("36500d", DURATION_MS_MAX),
    ],
)
def test_duration_is_read_in_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "30", "s", "1.5s", "-1s", "1 s", " 1s", "1s\n", "1S", "1w", "١s", "1h30m", None, 5]
)
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="like '30s'"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["36501d", "9" * 5_000 + "ms"])
def test_duration_over_a_hundred_years_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 36500d"):
        parse_duration(text)
