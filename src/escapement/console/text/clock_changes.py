"""Where the clocks of a time zone change: between two times, and at a time of day. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import NamedTuple

from escapement.console.text.times import LAST_MS, at, span


class Occurrence(NamedTuple):
    """A time of a schedule.

    ``change`` says that the clocks change between the time before and this one; "" otherwise.
    """

    at_ms: int
    change: str


def occurrences(times_ms: Iterable[int], zone: tzinfo) -> list[Occurrence]:
    """Return times, ascending, with the changes of a zone's clocks between them.

    Times that no page can show are left out.
    """
    found: list[Occurrence] = []
    before: timedelta | None = None
    for ms in takewhile(lambda ms: ms <= LAST_MS, times_ms):
        offset = at(ms, zone).utcoffset()
        assert offset is not None
        change = "" if before is None else _change(offset - before)
        found.append(Occurrence(ms, change))
        before = offset
    return found


def doubt(text: str, zone: tzinfo) -> str:
    """Return a warning about a time of day without an offset from UTC.

    Returns:
      That the clocks skip it, or that it occurs twice; "" otherwise.
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        return ""
    if given.tzinfo is not None:
        return ""
    first, second = (given.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return ""
    if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != given:
        return "The clocks skip this time of day."
    return "This time of day occurs twice, because the clocks go back. The first one is meant."


def zone_name(ms: int, zone: tzinfo) -> str:
    """Return what a zone is called at a time, as in ``CEST``, or its offset as in ``+03``."""
    return at(ms, zone).strftime("%Z")


def _change(by: timedelta) -> str:
    ms = by // timedelta(milliseconds=1)
    if ms == 0:
        return ""
    return f"the clocks go {'forward' if ms > 0 else 'back'} by {span(abs(ms))} before this"
