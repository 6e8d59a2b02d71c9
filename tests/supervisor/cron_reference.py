"""A reference for cron, without library or shortcut: plain fields, tried at every minute."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

YEARS = range(2024, 2028)
MINUTE = timedelta(minutes=1)
MINUTE_US = 60_000_000


def us(text: str) -> int:
    return to_us(datetime.fromisoformat(text.replace("Z", "+00:00")))


def to_us(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def show(instant: int | None) -> str | None:
    if instant is None:
        return None
    shown = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)
    return shown.isoformat().replace("+00:00", "Z")


def read_field(field: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        first = least if span == "*" else int(low)
        last = most if span == "*" or (step and not high) else int(high or low)
        found.update(range(first, last + 1, int(step or 1)))
    return found


class Reference:
    def __init__(self, fields: str) -> None:
        minute, hour, day, month, weekday = fields.split()
        self.is_fixed = minute[0] != "*" and hour[0] != "*"
        self.is_both = day[0] == "*" or weekday[0] == "*"
        self.minutes, self.hours = read_field(minute, 0, 59), read_field(hour, 0, 23)
        self.days, self.months = read_field(day, 1, 31), read_field(month, 1, 12)
        self.weekdays = {number % 7 for number in read_field(weekday, 0, 7)}

    def fits(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours:
            return False
        is_day, is_weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        is_date = is_day and is_weekday if self.is_both else is_day or is_weekday
        return is_date and wall.month in self.months

    def fires(self, zone: ZoneInfo, first: datetime, last: datetime) -> Iterator[int]:
        """Yields every due instant in [first, last), both whole minutes."""
        before = (first - MINUTE).astimezone(zone)
        instant = first
        while instant < last:
            local = instant.astimezone(zone)
            wall = local.replace(tzinfo=None, fold=0)
            if not self.is_fixed:
                is_due = self.fits(wall)
            else:
                is_due = self.fits(wall) and not local.fold
                skipped = before.replace(tzinfo=None, fold=0) + MINUTE
                while skipped < wall:
                    is_due = is_due or self.fits(skipped)
                    skipped += MINUTE
            if is_due:
                yield to_us(instant)
            before = local
            instant += MINUTE


@cache
def find_changes(zone: str) -> tuple[datetime, ...]:
    """Returns the hour before each clock change of YEARS."""
    rules = ZoneInfo(zone)
    found = []
    instant = datetime(YEARS[0], 1, 1, tzinfo=UTC)
    while instant.year <= YEARS[-1]:
        following = instant + timedelta(hours=1)
        if instant.astimezone(rules).utcoffset() != following.astimezone(rules).utcoffset():
            found.append(instant)
        instant = following
    return tuple(found)
