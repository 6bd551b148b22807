"""Times and spans as texts."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.console.text import times
from escapement.errors import InvalidRequest

BERLIN = ZoneInfo("Europe/Berlin")
# 24 December 2026, 17:00 UTC.
CHRISTMAS_MS = 1_798_131_600_000


def test_times_are_in_the_zone_of_the_browser() -> None:
    assert times.local(CHRISTMAS_MS, BERLIN) == "Thu 24 Dec 2026 18:00:00"
    assert times.iso(CHRISTMAS_MS) == "2026-12-24T17:00:00.000Z"
    assert times.relative(CHRISTMAS_MS, CHRISTMAS_MS - 200_000) == "in 3 min 20 s"
    assert times.relative(CHRISTMAS_MS, CHRISTMAS_MS + 1500) == "1.5 s ago"
    assert times.relative(CHRISTMAS_MS, CHRISTMAS_MS) == "now"


@pytest.mark.parametrize(
    "name", ["", "Mars/Olympus", "../../etc/passwd", "Europe", "\0", "a" * 500]
)
def test_unknown_zone_of_a_cookie_is_utc(name: str) -> None:
    assert times.zone_of(name).key == "UTC"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (59_999, "59 s"), (60_000, "1 min"),
        (200_000, "3 min 20 s"), (3_600_000, "1 h"), (90_000_000, "1 d 1 h"), (-250, "-250 ms"),
        (None, "–"),
    ],
)  # fmt: skip
def test_spans_have_two_units(ms: int | None, text: str) -> None:
    assert times.span(ms) == text


@given(st.integers(0, 4_000_000_000_000))
def test_time_of_a_form_is_read_as_it_was_shown(ms: int) -> None:
    second_ms = ms // 1000 * 1000
    # An hour occurs twice when the clocks go back; the form then means the first one.
    read_ms = times.time_of(times.field(second_ms, BERLIN), BERLIN)
    assert second_ms - read_ms in (0, 3_600_000)
    assert times.field(read_ms, BERLIN) == times.field(second_ms, BERLIN)
    assert times.time_of(str(ms), BERLIN) == ms
    assert times.time_of(times.iso(ms), BERLIN) == ms


@pytest.mark.parametrize(
    "text", [str(times.LAST_MS + 1), "9" * 40, "9999-12-31T23:59", "0001-01-01T00:00", "1969-12-31"]
)
def test_time_that_a_page_cannot_show_is_refused(text: str) -> None:
    """A page with such a time could not be made in every time zone."""
    with pytest.raises(InvalidRequest):
        times.time_of(text, BERLIN)
    assert times.local(times.LAST_MS, ZoneInfo("Pacific/Kiritimati"))


def test_text_that_is_no_time_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'tomorrow' is not a time"):
        times.time_of("tomorrow", BERLIN)


def test_time_beyond_all_calendars_is_shown_as_the_last_one() -> None:
    """Publishers choose the properties that pages show as times."""
    auckland = ZoneInfo("Pacific/Auckland")
    assert times.local(10**18, auckland) == times.local(times.LAST_MS, auckland)
    assert times.iso(-(10**18)) == "1970-01-01T00:00:00.000Z"
