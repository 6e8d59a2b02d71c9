"""Instants as documents and people write them: RFC 3339, with an offset. Inside: UTC µs."""

import re
from datetime import UTC, datetime, timedelta

_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_moment(text: object) -> int:
    """Returns the instant that `text` says, in µs since 1970 (UTC).

    Raises:
        ValueError: it is no instant with an offset; the message says what to write.
    """
    if isinstance(text, str) and _RFC_3339.fullmatch(text):
        try:
            return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND
        except (ValueError, OverflowError):
            pass
    shown = repr(text[:40]) if isinstance(text, str) else type(text).__name__
    raise ValueError(f"{shown} is no time with its offset, like '2030-01-31T09:00:00Z'")


def format_moment(at: int) -> str:
    """Returns an instant (UTC µs) as RFC 3339 text."""
    return (_EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
