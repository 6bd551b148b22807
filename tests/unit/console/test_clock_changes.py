"""Times of a schedule across changes of the clocks (B14)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from escapement.clock import unix_ms
from escapement.console.text.clock_changes import doubt, occurrences, zone_name
from escapement.console.text.times import local
from escapement.recurrence import Recurrence

BERLIN = ZoneInfo("Europe/Berlin")


def _five(cron: str, after: datetime) -> list[tuple[str, str, str]]:
    recurrence = Recurrence(cron=cron, timezone="Europe/Berlin")
    times_ms = islice(recurrence.occurrences(unix_ms(after)), 5)
    return [
        (local(one.at_ms, BERLIN), zone_name(one.at_ms, BERLIN), one.change)
        for one in occurrences(times_ms, BERLIN)
    ]


def test_clocks_go_forward_between_two_occurrences_in_march() -> None:
    assert _five("0 9 * * *", datetime(2027, 3, 26, 12, tzinfo=UTC)) == [
        ("Sat 27 Mar 2027 09:00:00", "CET", ""),
        ("Sun 28 Mar 2027 09:00:00", "CEST", "the clocks go forward by 1 h before this"),
        ("Mon 29 Mar 2027 09:00:00", "CEST", ""),
        ("Tue 30 Mar 2027 09:00:00", "CEST", ""),
        ("Wed 31 Mar 2027 09:00:00", "CEST", ""),
    ]


def test_skipped_time_of_day_is_due_after_the_gap() -> None:
    found = _five("30 2 * * *", datetime(2027, 3, 27, 12, tzinfo=UTC))
    assert found[:2] == [
        ("Sun 28 Mar 2027 03:00:00", "CEST", ""),
        ("Mon 29 Mar 2027 02:30:00", "CEST", ""),
    ]


def test_clocks_go_back_in_october() -> None:
    assert _five("30 * * * *", datetime(2026, 10, 24, 23, 45, tzinfo=UTC))[:3] == [
        ("Sun 25 Oct 2026 02:30:00", "CEST", ""),
        ("Sun 25 Oct 2026 02:30:00", "CET", "the clocks go back by 1 h before this"),
        ("Sun 25 Oct 2026 03:30:00", "CET", ""),
    ]


def test_time_of_day_that_does_not_occur_once_is_told() -> None:
    assert doubt("2027-03-28T02:30", BERLIN) == "The clocks skip this time of day."
    assert doubt("2026-10-25T02:30", BERLIN).startswith("This time of day occurs twice")
    assert doubt("2026-10-25T03:30", BERLIN) == ""
    assert doubt("2026-10-25T02:30+01:00", BERLIN) == ""
    assert doubt("tomorrow", BERLIN) == ""
