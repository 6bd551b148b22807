"""Due times of recurrences: cron in time zones, intervals, and missed occurrences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim.cronsim import Field
from hypothesis import given
from hypothesis import strategies as some

from escapement.errors import InvalidRequest
from escapement.recurrence import MISSED_AFTER_MS, Missed, Recurrence, due

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def ms(text: str, zone: str = "Europe/Berlin") -> int:
    """Return a local time of a zone, or a time with its UTC offset, as Unix milliseconds."""
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo else at.replace(tzinfo=ZoneInfo(zone))
    return round(at.timestamp() * 1000)


def times(recurrence: Recurrence, after: str, count: int) -> list[str]:
    """Return the next occurrences in local time, with their UTC offset."""
    zone = ZoneInfo(recurrence.timezone)
    found = islice(recurrence.occurrences(ms(after, recurrence.timezone)), count)
    return [datetime.fromtimestamp(at / 1000, zone).isoformat(timespec="minutes") for at in found]


def berlin(cron: str) -> Recurrence:
    return Recurrence(cron, "Europe/Berlin")


def test_time_of_day_stays_the_same_when_summer_time_begins_and_ends() -> None:
    """B2."""
    nine = berlin("0 9 * * mon-fri")
    assert times(nine, "2027-03-25T12:00", 3) == [
        "2027-03-26T09:00+01:00",
        "2027-03-29T09:00+02:00",
        "2027-03-30T09:00+02:00",
    ]
    assert times(nine, "2027-10-29T08:59", 2) == [
        "2027-10-29T09:00+02:00",
        "2027-11-01T09:00+01:00",
    ]


def test_time_skipped_by_summer_time_is_due_right_after_the_gap() -> None:
    assert times(berlin("30 2 * * *"), "2027-03-27T12:00", 2) == [
        "2027-03-28T03:00+02:00",
        "2027-03-29T02:30+02:00",
    ]
    # Two skipped times, and a third that is due at that moment anyway, are one occurrence.
    assert times(berlin("0,30 2,3 28 3 *"), "2027-03-28T00:00", 3) == [
        "2027-03-28T03:00+02:00",
        "2027-03-28T03:30+02:00",
        "2028-03-28T02:00+02:00",
    ]


def test_time_that_occurs_twice_is_due_the_first_time_only() -> None:
    half_past_two = berlin("30 2 * * *")
    wanted = ["2027-10-31T02:30+02:00", "2027-11-01T02:30+01:00"]
    assert times(half_past_two, "2027-10-31T00:00", 2) == wanted
    # Begin in the second of the two hours, before 2:30 occurs again.
    assert times(half_past_two, "2027-10-31T02:10+01:00", 1) == wanted[1:]


def test_hourly_cron_is_due_every_real_hour() -> None:
    hours = berlin("0 * * * *")
    assert times(hours, "2027-10-31T01:00", 3) == [
        "2027-10-31T02:00+02:00",
        "2027-10-31T02:00+01:00",
        "2027-10-31T03:00+01:00",
    ]
    assert times(hours, "2027-03-28T00:30", 2) == [
        "2027-03-28T01:00+01:00",
        "2027-03-28T03:00+02:00",
    ]


def test_interval_counts_real_time_from_its_anchor() -> None:
    every = Recurrence(every_ms=90_000, anchor_ms=1_000)
    assert list(islice(every.occurrences(0), 2)) == [91_000, 181_000]
    assert every.after(91_000) == 181_000
    assert every.after(90_999) == 91_000


def test_until_ends_a_recurrence_and_is_included() -> None:
    every = Recurrence(every_ms=1_000, anchor_ms=0, until_ms=3_000)
    assert list(every.occurrences(0)) == [1_000, 2_000, 3_000]
    assert every.after(3_000) is None
    assert every.latest(1_000, 99_000) == 3_000


@pytest.mark.parametrize(
    "wrong",
    [
        Recurrence(),
        Recurrence(cron="0 9 * * *", every_ms=5_000),
        Recurrence(every_ms=999),
        Recurrence("61 * * * *"),
        Recurrence("0 9 * *"),
        Recurrence("0 0 31 2 *"),
        Recurrence("every day"),
        Recurrence("0 9 * * *", "Europe/Nowhere"),
        Recurrence("0 9 * * *", "../../etc/passwd"),
        Recurrence("0 9 * * *", "Europe"),
        Recurrence("0 9 * * *", ""),
        Recurrence("0 " * 300, "UTC"),
    ],
)
def test_invalid_recurrence_is_refused(wrong: Recurrence) -> None:
    with pytest.raises(InvalidRequest):
        wrong.check()


def test_recurrence_has_no_time_after_the_end_of_the_calendar() -> None:
    new_year = Recurrence("0 0 1 1 *", "Europe/Berlin")
    assert new_year.after(ms("2027-06-01T00:00")) == ms("2028-01-01T00:00")
    assert new_year.after(ms("9999-06-01T00:00")) is None  # the end of the calendar


@pytest.mark.parametrize(
    ("day", "hours"),
    [("2026-04-05", ["00:15", "06:15", "12:15", "18:15"]), ("2026-10-04", ["00:15", "06:15"])],
)
def test_no_time_is_skipped_where_clocks_shift_by_half_an_hour(day: str, hours: list[str]) -> None:
    """B2: checked on Lord Howe Island, in autumn and in spring."""
    zone = ZoneInfo("Australia/Lord_Howe")
    begin = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=zone)
    recurrence = Recurrence("15 */6 * * *", zone.key)
    found = islice(recurrence.occurrences(int(begin.timestamp() * 1000)), len(hours))
    at = [datetime.fromtimestamp(one / 1000, zone).strftime("%Y-%m-%d %H:%M") for one in found]
    assert at == [f"{day} {hour}" for hour in hours]


# Zones whose clocks shift within an hour, by half an hour, at midnight, or for a month only.
SHIFTED = some.sampled_from(
    [
        ("Pacific/Chatham", "2026-04-05"),
        ("Pacific/Chatham", "2026-09-27"),
        ("Australia/Lord_Howe", "2026-04-05"),
        ("Australia/Lord_Howe", "2026-10-04"),
        ("America/Santiago", "2026-09-06"),
        ("Africa/Casablanca", "2026-02-15"),
        ("Africa/Casablanca", "2026-03-22"),
        ("Asia/Beirut", "2026-03-29"),
        ("Europe/Dublin", "2026-10-25"),
    ]
)
MINUTES = some.sampled_from(["*", "*/20", "*/7", "0", "45", "15,50", "0-30"])
HOURS = some.sampled_from(["*", "*/2", "*/3", "0", "1", "2,3", "1-2", "23"])


def naive(cron: str, zone: ZoneInfo, begin: datetime, minutes: int) -> list[datetime]:
    """Return the due times minute by minute, with the local times that a clock shift skipped."""
    fields = [Field.MINUTE.parse(cron.split()[0]), Field.HOUR.parse(cron.split()[1])]
    at_times_of_day = not any(field.startswith("*") for field in cron.split()[:2])
    found = []
    local = begin.replace(tzinfo=None)
    for minute in range(1, minutes + 1):
        at = (begin.astimezone(UTC) + timedelta(minutes=minute)).astimezone(zone)
        wall, local = local, at.replace(tzinfo=None)
        is_due = local.minute in fields[0] and local.hour in fields[1]
        if at_times_of_day:
            is_due = is_due and not at.fold
            while (wall := wall + timedelta(minutes=1)) < local:
                is_due = is_due or (wall.minute in fields[0] and wall.hour in fields[1])
        if is_due:
            found.append(at)
    return found


@given(SHIFTED, MINUTES, HOURS, some.integers(0, 24 * 60))
def test_every_clock_shift_gives_the_times_that_cron_gives(
    shifted: tuple[str, str], minute: str, hour: str, before: int
) -> None:
    """B2: the times are those of Debian's cron."""
    zone = ZoneInfo(shifted[0])
    begin = datetime.fromisoformat(f"{shifted[1]}T00:00").replace(tzinfo=zone)
    begin = (begin.astimezone(UTC) - timedelta(minutes=before)).astimezone(zone)
    cron = f"{minute} {hour} * * *"
    wanted = naive(cron, zone, begin, 36 * 60)
    begin_ms = round(begin.timestamp() * 1000)
    found = Recurrence(cron, zone.key).occurrences(begin_ms)
    end_ms = begin_ms + 36 * HOUR_MS
    assert [
        datetime.fromtimestamp(at / 1000, zone) for at in takewhile(lambda at: at <= end_ms, found)
    ] == wanted


def test_search_for_the_next_time_ends_at_every_clock_shift() -> None:
    """cronsim alone searches for 3:45, 6:45, ... from 1:45 in steps of an hour, without end."""
    found = times(Recurrence("45 */3 * * *", "Pacific/Chatham"), "2026-04-05T02:00+13:45", 2)
    assert found == ["2026-04-05T03:45+12:45", "2026-04-05T06:45+12:45"]


CRONS = some.sampled_from(
    ["* * * * *", "0 9 * * mon-fri", "30 2 * * *", "*/7 * * * *", "0 0 1 * *", "15 */6 * * *"]
)
ZONES = some.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
MOMENTS = some.integers(ms("2026-01-01T00:00"), ms("2028-01-01T00:00"))


@given(CRONS, ZONES, MOMENTS)
def test_occurrences_ascend_and_do_not_depend_on_the_start(
    cron: str, zone: str, begin_ms: int
) -> None:
    recurrence = Recurrence(cron, zone)
    found = list(islice(recurrence.occurrences(begin_ms), 20))
    assert found == sorted(set(found))
    assert found[0] > begin_ms
    for before, after in pairwise(found):
        assert recurrence.after(before) == after
        assert recurrence.after((before + after) // 2) == after
        assert recurrence.after(after - 1) == after


@given(CRONS, ZONES, MOMENTS, some.integers(0, 40 * DAY_MS))
def test_latest_is_the_last_occurrence(cron: str, zone: str, since_ms: int, span_ms: int) -> None:
    recurrence = Recurrence(cron, zone)
    first = recurrence.after(since_ms)
    assert first is not None
    now_ms = first + (span_ms % (2 * HOUR_MS) if cron == "* * * * *" else span_ms)
    everything = list(takewhile(lambda at: at <= now_ms, recurrence.occurrences(since_ms)))
    assert recurrence.latest(first, now_ms) == everything[-1]


def test_latest_of_years_of_seconds_is_found_at_once() -> None:
    seconds = Recurrence("* * * * * *")
    now_ms = ms("2027-01-01T00:00")
    assert seconds.latest(now_ms - 3650 * DAY_MS, now_ms) == now_ms


# -- missed occurrences ----------------------------------------------------------------


EVERY = Recurrence(every_ms=10_000, anchor_ms=0)


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
def test_occurrences_in_time_are_published_under_every_policy(missed: Missed) -> None:
    assert due(EVERY, 10_000, 10_000, missed, 99) == ([10_000], 20_000)
    late_ms = 10_000 + MISSED_AFTER_MS
    every_one = list(range(10_000, late_ms + 1, 10_000))
    assert due(EVERY, 10_000, late_ms, missed, 99) == (every_one, late_ms + 10_000)


def test_missed_occurrences_are_skipped_or_published_as_the_policy_says() -> None:
    """B2."""
    now_ms = 1_000_005
    assert due(EVERY, 10_000, now_ms, "skip", 99) == ([], 1_010_000)
    assert due(EVERY, 10_000, now_ms, "last", 99) == ([1_000_000], 1_010_000)
    next_ms, found = 10_000, []
    while next_ms is not None and next_ms <= now_ms:
        part, next_ms = due(EVERY, next_ms, now_ms, "all", 7)
        assert len(part) <= 7
        found += part
    assert found == list(range(10_000, now_ms, 10_000))
    assert next_ms == 1_010_000


def test_every_policy_respects_the_end() -> None:
    ended = Recurrence(every_ms=10_000, anchor_ms=0, until_ms=25_000)
    now_ms = 20_000 + MISSED_AFTER_MS + 5
    assert due(ended, 10_000, now_ms, "skip", 9) == ([], None)
    assert due(ended, 10_000, now_ms, "last", 9) == ([20_000], None)
    assert due(ended, 10_000, now_ms, "all", 9) == ([10_000, 20_000], None)


def test_daily_recurrence_of_a_year_across_summer_time_has_365_times() -> None:
    year = list(
        takewhile(
            lambda at: at < ms("2028-01-01T00:00"),
            berlin("0 9 * * *").occurrences(ms("2027-01-01T00:00")),
        )
    )
    assert len(year) == 365
    on_the_wall = {datetime.fromtimestamp(at / 1000, BERLIN).time().isoformat() for at in year}
    assert on_the_wall == {"09:00:00"}
    assert {b - a for a, b in pairwise(year)} == {
        DAY_MS,
        DAY_MS - HOUR_MS,
        DAY_MS + round(timedelta(hours=1).total_seconds() * 1000),
    }
