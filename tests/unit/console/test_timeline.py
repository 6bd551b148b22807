"""The days of the timeline."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from escapement.clock import moment, unix_ms
from escapement.console.pages.timeline import by_day

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-10-25", 25),
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-12-24", 24),
        (
            "America/Santiago",
            "2026-09-06",
            23,
        ),  # the clocks change at midnight: the day begins at 1:00
        ("Asia/Kathmandu", "2026-06-01", 24),
    ],
)
def test_each_hour_counts_to_its_day(zone: str, day: str, hours: int) -> None:
    here = ZoneInfo(zone)
    start = datetime.fromisoformat(day).replace(tzinfo=here)
    first_ms = unix_ms(start) - 48 * HOUR_MS
    starts_ms = [first_ms + at * HOUR_MS for at in range(120)]
    days, counts = by_day(starts_ms, [1] * 120, here)
    found = {
        moment(ms).astimezone(here).date().isoformat(): count
        for ms, count in zip(days, counts, strict=True)
    }
    assert found[day] == hours
    assert sum(counts) == 120
