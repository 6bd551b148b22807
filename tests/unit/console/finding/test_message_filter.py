"""The filter of messages in a URL."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

import pytest

from escapement.clock import moment
from escapement.console.finding.filter import Filter, State
from escapement.errors import InvalidRequest

# 24 December 2026, 17:00 UTC.
CHRISTMAS_MS = 1_798_131_600_000


def test_address_has_what_differs_from_the_default() -> None:
    asked = Filter(where="shop/eu", key="a&b", having=["x=1", "y=2"], state="overdue")
    assert parse_qsl(urlsplit(asked.link(after="7")).query) == [
        ("where", "shop/eu"), ("key", "a&b"), ("property", "x=1"), ("property", "y=2"),
        ("state", "overdue"), ("after", "7"),
    ]  # fmt: skip
    assert asked.link(where="") == "/find?key=a%26b&property=x%3D1&property=y%3D2&state=overdue"
    assert Filter().link() == "/find"


def test_times_are_exact_in_the_zone_of_the_browser() -> None:
    asked = Filter(from_="2026-12-24T18:00", until="2026-12-24T17:00+00:00")
    asked.exact(ZoneInfo("Europe/Berlin"))
    assert (asked.from_ms, asked.until_ms) == (CHRISTMAS_MS, CHRISTMAS_MS)


@pytest.mark.parametrize("wrong", ["shop", "=berlin"])
def test_property_needs_a_name_and_a_value(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match="Write name=value"):
        Filter(having=[wrong]).properties()
    assert Filter(having=["sum = 1=1 "]).properties() == {"sum": "1=1"}


@pytest.mark.parametrize(
    ("state", "start", "stop", "expected"),
    [
        ("pending", 10, 90, (10, 90)),
        ("not-yet-due", None, None, (51, None)),
        ("not-yet-due", 60, 90, (60, 90)),
        ("overdue", None, None, (None, 51)),
        ("overdue", 10, 40, (10, 40)),
        ("in-flight", 10, 90, (10, 51)),
    ],
)
def test_state_bounds_the_due_time(
    state: State, start: int | None, stop: int | None, expected: tuple[int | None, int | None]
) -> None:
    """The range is fixed, so an action changes the messages that were counted."""
    texts = ["" if at is None else str(at) for at in (start, stop)]
    found = Filter(state=state, from_=texts[0], until=texts[1]).as_of(50)
    assert (found.from_ms, found.until_ms) == expected


def test_bulk_change_without_a_condition_is_of_everything() -> None:
    """A bulk change needs a condition, or the order to change everything."""
    assert Filter(where="a/b/c").bulk() == {"everything": True}
    assert Filter(until=str(CHRISTMAS_MS), key="k").bulk() == {
        "due_until": moment(CHRISTMAS_MS),
        "key": "k",
    }
