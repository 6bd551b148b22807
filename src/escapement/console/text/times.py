"""Times and spans of time as texts of a page, in the time zone of the browser."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from escapement.clock import moment
from escapement.errors import InvalidRequest

UTC_ZONE: Final = ZoneInfo("UTC")
# The last time that a page can show: the end of the year 9998, so that it exists in all time zones.
LAST_MS: Final = 253_370_764_799_999
# Units of spans, the longest first, in milliseconds.
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


@lru_cache(maxsize=600)
def zone_of(name: str) -> ZoneInfo:
    """Return the time zone with an IANA name; UTC if there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, not a name, or the name of a folder
        return UTC_ZONE


def at(ms: int, zone: tzinfo) -> datetime:
    """Return a time in a zone. A time that no page can show becomes the first or last one."""
    return moment(min(max(ms, 0), LAST_MS)).astimezone(zone)


def local(ms: int, zone: tzinfo) -> str:
    """Return a time as in ``Thu 24 Dec 2026 18:00:00``."""
    return at(ms, zone).strftime("%a %d %b %Y %H:%M:%S")


def clock(ms: int, zone: tzinfo) -> str:
    """Return the time of day as in ``18:00``."""
    return at(ms, zone).strftime("%H:%M")


def day(ms: int, zone: tzinfo) -> str:
    """Return the day as in ``Thu 24 Dec``."""
    return at(ms, zone).strftime("%a %d %b")


def iso(ms: int) -> str:
    """Return a time in UTC as in ``2026-12-24T17:00:00.000Z``."""
    return at(ms, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def field(ms: int, zone: tzinfo) -> str:
    """Return a time as the value of a form field of the type datetime-local."""
    return at(ms, zone).strftime("%Y-%m-%dT%H:%M:%S")


def span(ms: int | None) -> str:
    """Return a span of time with its two longest units, as in ``3 min 20 s`` or ``250 ms``."""
    if ms is None:
        return "–"
    sign, rest = ("-", -ms) if ms < 0 else ("", ms)
    if rest < 1000:
        return f"{sign}{rest} ms"
    if rest < 10_000:
        return f"{sign}{rest / 1000:.1f} s"
    for at, (unit, length) in enumerate(_UNITS):
        if rest >= length:
            text = f"{sign}{rest // length} {unit}"
            if at + 1 < len(_UNITS) and (below := rest % length // _UNITS[at + 1][1]):
                text += f" {below} {_UNITS[at + 1][0]}"
            return text
    raise AssertionError


def relative(ms: int, now_ms: int) -> str:
    """Return a time relative to now, as in ``in 3 min``, ``now`` or ``5 s ago``."""
    if ms == now_ms:
        return "now"
    return f"in {span(ms - now_ms)}" if ms > now_ms else f"{span(now_ms - ms)} ago"


def time_of(text: str, zone: tzinfo) -> int:
    """Return the Unix milliseconds of a time that a form or URL gives.

    Args:
      text: Unix milliseconds, a time with its offset from UTC, or a time in the browser's zone.

    Raises:
      InvalidRequest: if it is none of these, or not between 1970 and the year 9998.
    """
    if text.isascii() and text.isdigit() and len(text) <= len(str(LAST_MS)):
        at_ms = int(text)
    else:
        try:
            found = datetime.fromisoformat(text)
            at = found.replace(tzinfo=zone) if found.tzinfo is None else found
            at_ms = round(at.timestamp() * 1000)
        except (ValueError, OverflowError):
            raise InvalidRequest(
                f"{text!r:.60} is not a time. Write it as in 2026-12-24 18:00."
            ) from None
    if not 0 <= at_ms <= LAST_MS:
        raise InvalidRequest(f"{text!r:.60} is not between 1970 and the year 9998.")
    return at_ms
