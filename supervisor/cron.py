"""When a schedule is due: five-field cron in a time zone, or a grid of equal steps.

Library `cronsim` reads the five fields and finds the next wall time that fits them; what a wall
time means where clocks change is decided here, as Debian's cron does:

- Minute and hour fixed (neither begins with `*`): a wall time that is skipped counts at the first
  instant after the gap, one that comes twice counts the first time. Two that are skipped together
  are one slot.
- Otherwise the job follows the clock: skipped wall times don't count, repeated ones count twice.

cronsim's own walk over clock changes steps by whole hours and loses half an hour of a job like
`* 3 * * *` where clocks move by 30 minutes (test_cron.py, Lord Howe), so it is given wall times
without a zone.

Instants are UTC in µs since the epoch. The fold never calls this module: other versions of the
zone rules give other instants, and a log must fold to the same state on every machine.

Source: cron(8) of Debian, "Notes on daylight saving"; PEP 495 for the meaning of `fold`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from planaria.protocol.durations import parse_duration
from planaria.protocol.errors import UsageError

# Every value of every field written out, with names: 169 + 61 + 83 + 47 + 27, and four blanks.
CRON_CHARS_MAX = 400
EVERY_MS_MIN = 100  # a run costs some milliseconds; a faster grid would only skip
HORIZON_DAYS = 50 * 366  # as far as cronsim looks; a leap day on a given weekday comes in 40 years
WALLS_MAX = 10_000  # wall times looked at for one answer; a repeated hour or day has 1,440 at most
SLOTS_COUNTED_MAX = 100  # of a missed stretch; more are only said to be many

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9_900, 1, 1, tzinfo=UTC)  # datetime ends with 9999; the horizon fits in between
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
_DAYS = "SUN MON TUE WED THU FRI SAT"
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_NAMES = {  # index of the field -> its names, as numbers
    3: {name: number for number, name in enumerate(_MONTHS.split(), start=1)},
    4: {name: number for number, name in enumerate(_DAYS.split())},
}
_CHARS = re.compile(r"[0-9A-Za-z*/,-]+")
_SPAN_WITH_STEP = re.compile(r"([0-9A-Za-z]+)-([0-9A-Za-z]+)/[0-9]+")


@dataclass(frozen=True, slots=True)
class Cron:
    """Five checked fields with one blank between them, and the IANA name of their zone."""

    fields: str
    zone: str

    @property
    def is_fixed(self) -> bool:
        """Says whether neither minute nor hour is a wildcard; a field is one if it begins so."""
        minute, hour = self.fields.split()[:2]
        return not minute.startswith("*") and not hour.startswith("*")


@dataclass(frozen=True, slots=True)
class Grid:
    """Every `every_ms` from `anchor` (UTC µs) on; the anchor itself isn't due."""

    every_ms: int
    anchor: int


Spec = Cron | Grid


def parse_cron(text: object, zone: object) -> Cron:
    """Returns the schedule of five cron fields in an IANA time zone.

    Names of months and days count, `L`, `W`, `#` and `@daily` don't.

    Raises:
        UsageError: it is none; the message names the field and says what to write.
    """
    if not isinstance(text, str) or len(text) > CRON_CHARS_MAX:
        shown = repr(text[:40]) + "…" if isinstance(text, str) else type(text).__name__
        raise UsageError(
            message=f"cron {shown} is no schedule: expected text of at most {CRON_CHARS_MAX} "
            "characters, like '0 9 * * MON-FRI'"
        )
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise UsageError(
            message=f"cron {text!r} has {len(fields)} fields, expected five: minute, hour, day of "
            "month, month and day of week, like '0 9 * * MON-FRI'"
        )
    for index, field in enumerate(fields):
        _check_field(text, index, field)
    plain = [_write_plainly(index, field) for index, field in enumerate(fields)]
    cron = Cron(" ".join(plain), check_zone(zone))
    try:
        CronSim(cron.fields, datetime(2000, 1, 1))
    except CronSimError as error:
        what = str(error).removeprefix("Bad ").replace("-", " ")
        raise UsageError(
            message=f"cron {text!r} has no legal {what}: expected numbers in its range, with `*`, "
            "`-`, `,` and `/`, and a day that one of the months has"
        ) from error
    return cron


def parse_grid(text: object, anchor: int) -> Grid:
    """Returns the schedule that is due every duration (like `5m`) after `anchor` (UTC µs).

    Raises:
        UsageError: it is no duration, or shorter than EVERY_MS_MIN.
    """
    if not isinstance(text, str):
        raise UsageError(message=f"every {text!r} is no duration: write one like '5m'")
    try:
        every_ms = parse_duration(text)
    except ValueError as error:
        raise UsageError(message=f"every {error}") from error
    if every_ms < EVERY_MS_MIN:
        raise UsageError(message=f"every {text!r} is too fast: the least is {EVERY_MS_MIN}ms")
    return Grid(every_ms, anchor)


def check_zone(zone: object) -> str:
    """Returns `zone` if it is the name of an IANA time zone.

    Raises:
        UsageError: it is none; offsets and names of this machine's own zone are none.
    """
    if not isinstance(zone, str) or zone not in _zone_names():
        shown = repr(zone[:80]) if isinstance(zone, str) else type(zone).__name__
        raise UsageError(
            message=f"{shown} is no IANA time zone: write one like 'Europe/Berlin' or 'UTC'; "
            "an offset is none, since clocks change"
        )
    return zone


@lru_cache(maxsize=4_096)
def next_after(spec: Spec, instant: int) -> int | None:
    """Returns the first due instant later than `instant`; None: none within fifty years.

    Raises:
        UsageError: the zone rules that are installed now don't know its zone (any more).
    """
    if isinstance(spec, Grid):
        step = spec.every_ms * 1_000
        return spec.anchor + max(1, (instant - spec.anchor) // step + 1) * step
    at = _EPOCH + timedelta(seconds=instant // 1_000_000)
    if at > _LAST:
        return None
    found = (_next_fixed if spec.is_fixed else _next_on_clock)(
        spec, ZoneInfo(check_zone(spec.zone)), at
    )
    if found is None or found - at > timedelta(days=HORIZON_DAYS):
        return None
    return (found - _EPOCH) // timedelta(microseconds=1)


def last_between(spec: Spec, after: int, until: int) -> int | None:
    """Returns the last due instant in (after, until]; None: there is none.

    It halves the stretch: the answer costs the same for a year of seconds as for an hour.
    """
    last = None
    low, high = after, until
    while low < high:
        middle = low if last is None else (low + high) // 2
        found = next_after(spec, middle)
        if found is not None and found <= until:
            low = last = found
        elif last is None:
            return None
        else:
            high = middle
    return last


def due_between(spec: Spec, after: int, until: int, *, count_max: int) -> tuple[int, ...]:
    """Returns the first `count_max` due instants in (after, until], in their order."""
    found: list[int] = []
    slot = next_after(spec, after)
    while slot is not None and slot <= until and len(found) < count_max:
        found.append(slot)
        slot = next_after(spec, slot)
    return tuple(found)


def count_between(spec: Spec, after: int, until: int) -> int | None:
    """Returns how many instants are due in (after, until]; None: more than SLOTS_COUNTED_MAX."""
    found = due_between(spec, after, until, count_max=SLOTS_COUNTED_MAX + 1)
    return len(found) if len(found) <= SLOTS_COUNTED_MAX else None


def _check_field(text: str, index: int, field: str) -> None:
    """Refuses what cronsim would take and a five-field cron doesn't know."""
    words = re.findall(r"[A-Z]+", field.upper())
    is_known = all(word in _NAMES.get(index, ()) for word in words)
    if not _CHARS.fullmatch(field) or not is_known:
        raise UsageError(
            message=f"cron {text!r} has the {_FIELDS[index]} {field!r}: expected numbers, `*`, "
            "`-`, `,` and `/`, and in the last two fields names like JAN or MON; `L`, `W`, `#` "
            "and `@` aren't supported"
        )


def _write_plainly(index: int, field: str) -> str:
    """Returns the field with `5-5/2` as `5`: cronsim would read `5/2`, which goes on to the end."""
    parts = field.split(",")
    for number, part in enumerate(parts):
        span = _SPAN_WITH_STEP.fullmatch(part)
        if span is not None and _read_number(index, span[1]) == _read_number(index, span[2]):
            step = int(part.partition("/")[2])
            parts[number] = span[1] if step > 0 else part
    return ",".join(parts)


def _read_number(index: int, word: str) -> int | str:
    known = _NAMES.get(index, {}).get(word.upper())
    if known is not None:
        return known
    return int(word) if word.isdecimal() else word


def _next_fixed(cron: Cron, zone: ZoneInfo, at: datetime) -> datetime | None:
    """Returns the next instant of a job that is neither lost in a gap nor doubled after it."""
    for wall in islice(_walls_after(cron, _read_wall(zone, at)), WALLS_MAX):
        instant = _place_wall(zone, wall)
        # Within a repeated hour, wall times ahead may belong to its first time: they are over.
        if instant > at:
            return instant
    return None


def _next_on_clock(cron: Cron, zone: ZoneInfo, at: datetime) -> datetime | None:
    """Returns the next instant at which the zone's clock shows a time that fits.

    Between two clock changes the clock is UTC and a constant, so each such stretch is searched
    by itself: its wall times never repeat nor jump.
    """
    last = at + timedelta(days=HORIZON_DAYS)
    start, wall = at, _read_wall(zone, at)
    while start <= last:
        offset = _read_offset(zone, start)
        match = next(_walls_after(cron, wall), None)
        if match is None:
            return None
        found = match.replace(tzinfo=UTC) - offset
        change = _find_change(zone, start, min(found, last))
        if change is None:
            return found if found <= last else None
        # The change itself may be due: what is later than a second before it, by the new clock.
        start, following = change, _read_wall(zone, change) - _SECOND
        if following >= wall and found - 2 * _DAY > change:
            # No wall time before the match fits, and none that was searched comes again: a job
            # on a leap day need not look at every clock change until then.
            start = found - 2 * _DAY
            following = _read_wall(zone, start) - _SECOND
        wall = following
    return None


def _walls_after(cron: Cron, wall: datetime) -> Iterator[datetime]:
    """Yields the wall times that fit and are later than `wall`, as if no clock ever changed."""
    return CronSim(cron.fields, wall)


def _place_wall(zone: ZoneInfo, wall: datetime) -> datetime:
    """Returns the first instant at which the clock shows `wall`, or else has jumped over it."""
    local = wall.replace(tzinfo=zone)
    instant = local.astimezone(UTC)
    if _read_wall(zone, instant) == wall:
        return instant
    # In a gap, fold=1 reads the time by the offset after it, which lies before the gap.
    change = _find_change(zone, local.replace(fold=1).astimezone(UTC), instant)
    assert change is not None, f"{wall} is no wall time in {zone.key}, and no clock changes there"
    return change


def _find_change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """Returns the first instant in (start, end] with another offset than `start`, or None.

    It looks once a day: no zone has changed its clock twice within one.
    """
    offset = _read_offset(zone, start)
    low = start
    while low < end:
        high = min(low + _DAY, end)
        if _read_offset(zone, high) != offset:
            break
        low = high
    else:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle -= timedelta(microseconds=middle.microsecond)
        if _read_offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _read_offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None, f"{zone.key} has no offset at {instant}"
    return offset


def _read_wall(zone: ZoneInfo, instant: datetime) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    """Returns the zone names of package tzdata: the same ones are legal on every machine.

    `zoneinfo.available_timezones` reads all of the machine's zone files (0.24 s) and takes its
    `localtime` for a zone.
    """
    names = files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    return frozenset(names) - {"Factory"}  # stands for "no zone was set"
