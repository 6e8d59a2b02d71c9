"""When schedules are due, against the cases and against a reference that tries every minute."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from cron_reference import MINUTE, MINUTE_US, Reference, find_changes, show, to_us, us
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.protocol.errors import UsageError
from planaria.supervisor.cron import (
    CRON_CHARS_MAX,
    EVERY_MS_MIN,
    SLOTS_COUNTED_MAX,
    Cron,
    Grid,
    check_zone,
    count_between,
    due_between,
    last_between,
    next_after,
    parse_cron,
    parse_grid,
)

CASES = json.loads((Path(__file__).parent / "cases" / "cron.json").read_text())
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")
# Clock changes at midnight, by two hours, and in zones that have them during Ramadan only.
ODD_ZONES = ("America/Santiago", "Africa/Cairo", "Antarctica/Troll", "Africa/Casablanca")


def walk(cron: Cron, first: datetime, last: datetime) -> list[int]:
    """Returns the due instants in [first, last), by asking for the next one again and again."""
    return list(due_between(cron, to_us(first) - 1, to_us(last) - 1, count_max=100_000))


@pytest.mark.parametrize("case", CASES["next"], ids=lambda case: f"{case['cron']} {case['tz']}")
def test_every_case_fires_when_it_should(case: dict[str, object]) -> None:
    cron = parse_cron(case["cron"], case["tz"])
    fires = case["fires"]
    assert isinstance(fires, list)

    found = due_between(cron, us(str(case["after"])), 2**62, count_max=len(fires))

    assert fires == [show(instant) for instant in found]


@pytest.mark.parametrize("text", CASES["refused"])
def test_every_case_of_a_refused_expression_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cron "):
        parse_cron(text, "UTC")


@pytest.mark.parametrize("zone", CASES["refused_zones"])
def test_every_case_of_a_refused_zone_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="no IANA time zone"):
        parse_cron("0 9 * * *", zone)


@pytest.mark.parametrize(
    "text",
    [
        "0 0 L * *",
        "0 0 LW * *",
        "0 0 15W * *",
        "0 0 * * 5L",
        "0 0 * * 1#2",
        "0 0 * * MON#2",
        "0 0 ? * *",
        "0 0 31 2 *",
        "0 0 30,31 FEB *",
        "0 0 * MON *",
        "0 0 * * JAN",
        "MON 0 * * *",
        "1,,2 * * * *",
        "5-1 * * * *",
        "5-5/0 * * * *",
        "1.5 * * * *",
        "-1 * * * *",
        "٣ * * * *",
        "0 0 * * ſun",
        "0" * CRON_CHARS_MAX + " * * * *",
        "9" * (CRON_CHARS_MAX - 8) + " * * * *",
    ],
)
def test_what_five_fields_do_not_know_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cron "):
        parse_cron(text, "UTC")


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"]])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        parse_cron(value, "UTC")
    with pytest.raises(UsageError):
        check_zone(value)
    with pytest.raises(UsageError):
        parse_grid(value, 0)


@pytest.mark.parametrize(
    "zone", ["localtime", "Factory", "posixrules", "../UTC", "/UTC", "Europe", "europe/berlin\n"]
)
def test_what_only_this_machine_knows_is_no_zone(zone: str) -> None:
    with pytest.raises(UsageError, match="no IANA time zone"):
        check_zone(zone)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("5-5/2 * * * *", "5 * * * *"),
        ("1,05-5/7,9 0-0/1 * * *", "1,05,9 0 * * *"),
        ("0 0 * 3-MAR/2 mon-1/3", "0 0 * 3 mon"),
        ("5-6/2 * * * *", "5-6/2 * * * *"),
    ],
)
def test_step_in_a_range_of_one_value_does_not_leave_it(text: str, plain: str) -> None:
    assert plain == parse_cron(text, "UTC").fields


def test_longest_expression_is_accepted() -> None:
    names = "JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC", "SUN,MON,TUE,WED,THU,FRI,SAT"
    numbers = [",".join(map(str, field)) for field in (range(60), range(24), range(1, 32))]
    text = " ".join([*numbers, *names])

    assert len(text) <= CRON_CHARS_MAX
    assert parse_cron(text, "UTC").fields == text
    assert parse_cron(text.ljust(CRON_CHARS_MAX), "UTC").fields == text
    with pytest.raises(UsageError):
        parse_cron(text.ljust(CRON_CHARS_MAX + 1), "UTC")


def test_blanks_are_made_one_and_names_count_in_any_case() -> None:
    cron = parse_cron("  0\t9  * jan-Mar mon-FRI ", "UTC")

    assert cron == Cron("0 9 * jan-Mar mon-FRI", "UTC")
    # The 8th of August is no January; the first workday of 2027 is a Friday.
    assert show(next_after(cron, us("2026-08-08T00:00:00Z"))) == "2027-01-01T09:00:00Z"


@pytest.mark.parametrize("zone", ZONES + ODD_ZONES)
@pytest.mark.parametrize(
    "text",
    [
        "30 2 * * *",
        "15 0,1,2,3 * * *",
        "0,30 0-4 * * *",
        "10 2 * * 0",
        "* 2 * * *",
        "*/20 1-3 * * *",
        "*/15 0 * * *",
        "5 * * * *",
        "45 */2 * * *",
        "* 3 * * *",
    ],
)
def test_clock_changes_of_years_are_as_the_reference_has_them(text: str, zone: str) -> None:
    cron, reference, rules = parse_cron(text, zone), Reference(text), ZoneInfo(zone)

    for change in find_changes(zone) or (datetime(2026, 3, 29, tzinfo=UTC),):
        first, last = change - timedelta(hours=6), change + timedelta(hours=7)
        expected = [show(instant) for instant in reference.fires(rules, first, last)]
        assert expected == [show(instant) for instant in walk(cron, first, last)]


def make_fields(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.tuples(st.one_of(st.just("*"), span), st.integers(1, 20)).map(
        lambda parts: f"{parts[0]}/{parts[1]}"
    )
    single = st.one_of(number.map(str), span, step)
    return st.one_of(st.just("*"), single, st.lists(single, min_size=2, max_size=3).map(",".join))


EXPRESSIONS = st.tuples(
    make_fields(0, 59),
    st.one_of(make_fields(0, 4), make_fields(0, 23)),
    st.one_of(st.just("*"), make_fields(1, 28)),
    st.just("*"),
    st.one_of(st.just("*"), make_fields(0, 7)),
).map(" ".join)


@settings(max_examples=80, deadline=None)
@given(EXPRESSIONS, st.sampled_from(ZONES + ODD_ZONES), st.integers(0, 100), st.integers(0, 2_000))
def test_any_expression_is_due_as_the_reference_has_it(
    text: str, zone: str, number: int, minutes_before: int
) -> None:
    changes = find_changes(zone) or (datetime(2026, 3, 29, tzinfo=UTC),)
    first = changes[number % len(changes)] - minutes_before * MINUTE
    last = first + timedelta(hours=36)
    expected = list(Reference(text).fires(ZoneInfo(zone), first, last))

    assert [show(i) for i in expected] == [
        show(i) for i in walk(parse_cron(text, zone), first, last)
    ]


@settings(max_examples=80, deadline=None)
@given(EXPRESSIONS, st.sampled_from(ZONES), st.integers(0, 7 * 86_400 * 10**6))
def test_any_instant_near_a_change_gets_the_first_later_one(
    text: str, zone: str, offset_us: int
) -> None:
    cron = parse_cron(text, zone)
    first = us("2026-10-22T00:00:00Z")
    slots = due_between(cron, first, first + 8 * 86_400 * 10**6, count_max=100_000)
    instant = first + offset_us
    expected = next((slot for slot in slots if slot > instant), None)

    if expected is not None:
        assert show(expected) == show(next_after(cron, instant))


@pytest.mark.parametrize(
    ("text", "zone"),
    [*(("30 2 * * *", zone) for zone in ZONES), *(("0 0 * * *", zone) for zone in ODD_ZONES)],
)
def test_daily_job_fires_once_on_every_date_of_ten_years(text: str, zone: str) -> None:
    cron, rules = parse_cron(text, zone), ZoneInfo(zone)
    slots = walk(cron, datetime(2022, 1, 1, 12, tzinfo=UTC), datetime(2032, 1, 1, 12, tzinfo=UTC))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    dates = [(epoch + timedelta(microseconds=slot)).astimezone(rules).date() for slot in slots]

    assert dates == [dates[0] + timedelta(days=number) for number in range(3_652)]


def test_job_after_a_change_of_half_an_hour_loses_no_minute() -> None:
    cron = parse_cron("* 3 * * *", "Australia/Lord_Howe")

    slots = due_between(
        cron, us("2026-10-03T12:00:00Z"), us("2026-10-03T20:00:00Z"), count_max=1_000
    )

    assert len(slots) == 60
    assert show(slots[0]) == "2026-10-03T16:00:00Z"


def test_wall_times_of_one_gap_are_one_slot() -> None:
    cron = parse_cron("0,15,30 2,3 * * *", "Europe/Berlin")

    slots = due_between(cron, us("2026-03-28T12:00:00Z"), us("2026-03-29T12:00:00Z"), count_max=9)

    expected = ["2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z", "2026-03-29T01:30:00Z"]
    assert expected == [show(slot) for slot in slots]


def test_day_that_a_zone_left_out_is_a_gap() -> None:
    # Samoa went from the 29th to the 31st of December 2011.
    cron = parse_cron("0 9 * * *", "Pacific/Apia")

    slots = due_between(cron, us("2011-12-29T00:00:00Z"), us("2011-12-31T12:00:00Z"), count_max=9)

    expected = ["2011-12-29T19:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T19:00:00Z"]
    assert expected == [show(slot) for slot in slots]


def test_job_that_no_clock_ever_shows_is_never_due() -> None:
    # The last Sunday of March, between two and three, is always skipped in Berlin.
    assert (
        next_after(parse_cron("* 2 25-31 3 */7", "Europe/Berlin"), us("2026-01-01T00:00:00Z"))
        is None
    )
    assert next_after(parse_cron("0 9 * * *", "UTC"), us("9950-01-01T00:00:00Z")) is None


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),  # 2100 has no leap day
        ("0 0 29 2 */7", "2096-03-01T00:00:00Z", "2128-02-29T00:00:00Z"),  # and on a Sunday
        ("*/5 0 29 2 */7", "2096-03-01T00:00:00Z", "2128-02-29T00:00:00Z"),
    ],
)
def test_leap_days_are_found_far_ahead(text: str, after: str, expected: str) -> None:
    assert expected == show(next_after(parse_cron(text, "UTC"), us(after)))


def test_grid_never_drifts_and_leaves_its_anchor_out() -> None:
    anchor = us("2026-03-28T12:00:00Z") + 123_457
    grid = parse_grid("7m", anchor)

    for number in (0, 1, 2, 1_000, 10**9):
        slot = anchor + number * 7 * MINUTE_US
        assert slot + 7 * MINUTE_US == next_after(grid, slot)
        assert slot + 7 * MINUTE_US == next_after(grid, slot + 7 * MINUTE_US - 1)
    assert anchor + 7 * MINUTE_US == next_after(grid, anchor - 10**12)


def test_grid_is_not_faster_than_its_limit() -> None:
    assert Grid(EVERY_MS_MIN, 5) == parse_grid(f"{EVERY_MS_MIN}ms", 5)
    with pytest.raises(UsageError, match="too fast"):
        parse_grid(f"{EVERY_MS_MIN - 1}ms", 5)
    with pytest.raises(UsageError, match="no duration"):
        parse_grid("often", 5)


@pytest.mark.parametrize(
    "spec",
    [Grid(1_000, 17), Cron("*/7 * * * *", "Europe/Berlin"), Cron("30 2 * * 0", "Europe/Berlin")],
    ids=str,
)
def test_last_slot_of_a_stretch_is_the_last_of_the_list(spec: Grid | Cron) -> None:
    after = us("2026-10-24T20:00:00Z")
    if isinstance(spec, Grid):
        spec = Grid(spec.every_ms, after + 17)
    until = after + 9_000 * 10**6
    slots = due_between(spec, after, until, count_max=20_000)

    for slot in slots[:: len(slots) // 20 + 1]:
        assert last_between(spec, after, slot) == slot
        assert last_between(spec, slot - 1, slot) == slot
        earlier = last_between(spec, after, slot - 1)
        assert earlier == max((s for s in slots if s < slot), default=None)
    assert last_between(spec, after, until) == max(slots, default=None)
    assert last_between(spec, after, after) is None


def test_stretch_of_a_year_of_seconds_is_looked_at_at_once() -> None:
    grid = Grid(1_000, 0)
    year = 365 * 86_400 * 10**6

    assert last_between(grid, 0, year + 500_000) == year
    assert count_between(grid, 0, year) is None


def test_slots_are_counted_up_to_the_limit() -> None:
    grid = Grid(1_000, 0)

    assert count_between(grid, 0, SLOTS_COUNTED_MAX * 10**6) == SLOTS_COUNTED_MAX
    assert count_between(grid, 0, (SLOTS_COUNTED_MAX + 1) * 10**6) is None
    assert count_between(grid, 0, 999_999) == 0


def test_zone_that_is_not_known_any_more_is_refused_when_asked() -> None:
    with pytest.raises(UsageError, match="Mars/Olympus"):
        next_after(Cron("0 9 * * *", "Mars/Olympus"), 0)
