"""What people write for "when", in the integer milliseconds that travel.

A *delay* counts from the moment the broker accepts the message, so this machine's clock
does not matter; a *time* is an aware datetime. Both are rounded up to a millisecond:
never early. Everything is checked here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from escapement.durations import of, parse
from escapement.errors import InvalidRequest, NaiveDatetime
from escapement.message import NO_TIME, NO_TIMES, Int64s, Times
from escapement.position import EARLIEST, LATEST, Position

# "latest", "earliest", an offset, or an aware datetime.
Where = str | int | datetime
# A timedelta, ``(3, "minutes")``, or text as in settings: "3m".
Delay = timedelta | tuple[int | float, str] | str

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def delay_ms(delay: Delay) -> int:
    """A delay in milliseconds, rounded up.

    Raises:
      InvalidRequest: if it is none, or negative.
    """
    if isinstance(delay, str):
        return parse(delay)
    if isinstance(delay, tuple):
        if len(delay) != 2:
            raise InvalidRequest(f"{delay!r} is not a delay: write (3, 'minutes')")
        return of(*delay)
    return of(delay)


def at_ms(at: datetime) -> int:
    """A time in Unix milliseconds, rounded up; times before 1970 are 0.

    Raises:
      NaiveDatetime: if it has no time zone.
      InvalidRequest: if it is no datetime.
    """
    if not isinstance(at, datetime):
        raise InvalidRequest(f"{at!r} is not a time: pass a datetime with a time zone")
    if at.utcoffset() is None:
        raise NaiveDatetime(f"{at} has no time zone: which moment it names is not known")
    return max(0, -((_EPOCH - at) // _MILLISECOND))


def position(where: Where) -> Position:
    """A place to begin: latest, earliest, an offset, or an aware datetime.

    Raises:
      NaiveDatetime: if it is a time without a zone.
      InvalidRequest: if it is no place.
    """
    if isinstance(where, datetime):
        return Position("time", at_ms(where))
    if type(where) is int:
        return Position("offset", where)
    if where == "latest":
        return LATEST
    if where == "earliest":
        return EARLIEST
    raise InvalidRequest(
        f"a subscription begins at latest, earliest, an offset or a datetime, not {where!r}"
    )


def one(delay: Delay | None, at: datetime | None) -> tuple[int, int]:
    """``(delay_ms, at_ms)`` of one message, ``NO_TIME`` where it has none."""
    if delay is None and at is None:
        return NO_TIME, NO_TIME
    if delay is not None and at is not None:
        raise InvalidRequest("a message has a delay or a time, not both")
    if delay is not None:
        return delay_ms(delay), NO_TIME
    assert at is not None
    return NO_TIME, at_ms(at)


def column(values: Any, read: Callable[[Any], int], count: int) -> Int64s | None:
    """Times of ``count`` messages: one for all, one each, or int64 milliseconds.

    Raises:
      InvalidRequest: if one of them is not a time, or there are not ``count``.
    """
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        found = _milliseconds(values)
    elif isinstance(values, str | tuple) or not isinstance(values, Iterable):
        return np.full(count, read(values), np.int64)
    else:
        found = np.array([NO_TIME if v is None else read(v) for v in values], np.int64)
    if len(found) != count:
        raise InvalidRequest(f"{len(found)} times were given for {count} messages")
    return found


def times(delays: Any, ats: Any, count: int) -> Times:
    """The columns of a batch's times; see ``column``."""
    if delays is None and ats is None:
        return NO_TIMES
    if delays is not None and ats is not None:
        raise InvalidRequest("a batch has delays or times, not both")
    return Times(column(delays, delay_ms, count), column(ats, at_ms, count))


def _milliseconds(values: npt.NDArray[Any]) -> Int64s:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InvalidRequest("an array of times is one column of integer milliseconds")
    found = values.astype(np.int64, copy=False)
    if len(found) and found.min() < NO_TIME:
        raise InvalidRequest(f"a time of {found.min()} ms is negative")
    return found


def moment(due_ms: int) -> datetime:
    """The aware datetime, in UTC, of a Unix time in milliseconds."""
    return _EPOCH + timedelta(milliseconds=due_ms)
