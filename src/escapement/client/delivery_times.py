"""Conversion of delays, times and positions to the integers of the protocol.

A *delay* counts from the moment the broker accepts the message, so the client's clock does not
matter. A *time* is an aware datetime. Both are rounded up to a whole millisecond, so that a message
is never early. The arguments of the application are checked here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from escapement.clock import moment, unix_ms
from escapement.durations import DEFAULT_MAX_DELAY_MS, format, of, parse
from escapement.errors import InvalidRequest, NaiveDatetime
from escapement.message import NO_TIME, NO_TIMES, Int64s, MessageId, Times
from escapement.names import read_message_id
from escapement.position import EARLIEST, LATEST, Position

# A position in a topic: "latest", "earliest", an offset, a message id, or an aware datetime.
Where = str | int | MessageId | datetime
# A delay: a timedelta, a pair such as ``(3, "minutes")``, or a text such as "3m".
Delay = timedelta | tuple[int | float, str] | str


def delay_ms(delay: Delay, name: str = "delay", least_ms: int = 0) -> int:
    """Return a delay in milliseconds, rounded up.

    Args:
      name: the name of the argument, for error messages.
      least_ms: the shortest delay that is allowed.

    Raises:
      InvalidRequest: if the delay is not valid, negative or too short.
    """
    try:
        found_ms = _duration_ms(delay)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error}") from None
    if found_ms < least_ms:
        raise InvalidRequest(f"{name} must be at least {format(least_ms)}, not {format(found_ms)}")
    return found_ms


def _duration_ms(delay: Delay) -> int:
    if isinstance(delay, str):
        return parse(delay)
    if isinstance(delay, tuple):
        if len(delay) != 2:
            raise InvalidRequest(f"{delay!r} is not a delay: write (3, 'minutes')")
        return of(*delay)
    return of(delay)


def span_arguments(by: Delay, within: Delay, origin: datetime | None) -> dict[str, int | None]:
    """Return the arguments of a forecast: the length of its spans, its period and its origin.

    Raises:
      InvalidRequest: if one is not valid.
    """
    return {
        "by_ms": delay_ms(by, "by", 1),
        "within_ms": delay_ms(within, "within", 1),
        "origin_ms": None if origin is None else at_ms(origin, "origin"),
    }


def span_ms(spread: Delay | None) -> int:
    """Return the length of a spread in milliseconds; 0 for None.

    Raises:
      InvalidRequest: if it is not a valid delay, or is too short or too long.
    """
    if spread is None:
        return 0
    found_ms = delay_ms(spread, "spread", 1)
    if found_ms > DEFAULT_MAX_DELAY_MS:
        longest = format(DEFAULT_MAX_DELAY_MS)
        raise InvalidRequest(f"spread must be at most {longest}, not {format(found_ms)}")
    return found_ms


def at_ms(at: datetime, name: str = "at") -> int:
    """Return a time in Unix milliseconds, rounded up; times before 1970 are 0.

    Args:
      name: the name of the argument, for error messages.

    Raises:
      NaiveDatetime: if the datetime has no time zone.
      InvalidRequest: if ``at`` is not a datetime.
    """
    if not isinstance(at, datetime):
        raise InvalidRequest(f"{name} must be a datetime with a time zone, not {at!r}")
    if at.utcoffset() is None:
        raise NaiveDatetime(f"{name} must be a datetime with a time zone; {at} has none")
    return max(0, unix_ms(at))


def position(where: Where, topic: str) -> Position:
    """Return the position of a subscription that an application gives as ``where``.

    Args:
      where: "latest", "earliest", an offset, the id of a message, or an aware datetime.
      topic: the name of the subscription's topic.

    Raises:
      NaiveDatetime: if the datetime has no time zone.
      InvalidRequest: if ``where`` is anything else, or the id belongs to another topic.
    """
    if isinstance(where, datetime):
        return Position("time", at_ms(where, "position"))
    if type(where) is int:
        return Position("offset", where)
    if where == "latest":
        return LATEST
    if where == "earliest":
        return EARLIEST
    if isinstance(where, MessageId) or (isinstance(where, str) and "@" in where):
        return Position("offset", read_message_id(str(where), topic)[1])
    raise InvalidRequest(
        f"a position must be latest, earliest, an offset, a message id or a datetime, not {where!r}"
    )


def one(
    delay: Delay | None, at: datetime | None, names: tuple[str, str] = ("delay", "at")
) -> tuple[int, int]:
    """Return ``(delay_ms, at_ms)`` for one message, with ``NO_TIME`` for each that is None.

    Args:
      names: the names of the two arguments, for error messages.

    Raises:
      InvalidRequest: if both are given, or one is not valid.
    """
    if delay is None and at is None:
        return NO_TIME, NO_TIME
    if delay is not None and at is not None:
        raise InvalidRequest(f"both {names[0]} and {names[1]} were given: pass only one")
    if delay is not None:
        return delay_ms(delay, names[0]), NO_TIME
    assert at is not None
    return NO_TIME, at_ms(at, names[1])


def column(name: str, values: Any, read: Callable[[Any], int], count: int) -> Int64s | None:
    """Return the delays or times of ``count`` messages as a column; int64[count].

    Args:
      name: the name of the argument, for error messages.
      values: one value for all messages, a list with a value or None per message, or an array
        of integer milliseconds.
      read: converts one value to milliseconds.
      count: the number of messages.

    Raises:
      InvalidRequest: if a value is not valid, or the number of values is not ``count``.
    """
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        found = _milliseconds(name, values)
    elif isinstance(values, str | tuple) or not isinstance(values, Iterable):
        return np.full(count, read(values), np.int64)
    else:
        found = np.array([NO_TIME if v is None else read(v) for v in values], np.int64)
    if len(found) != count:
        raise InvalidRequest(f"{name} has {len(found)} values for {count} messages")
    return found


def times(delays: Any, ats: Any, count: int) -> Times:
    """Return the delays or the times of a batch of ``count`` messages, as columns.

    Args:
      delays, ats: None, or values as for ``column``. At most one of them may be given.
      count: the number of messages.

    Raises:
      InvalidRequest: if both are given, or a value is not valid.
    """
    if delays is None and ats is None:
        return NO_TIMES
    if delays is not None and ats is not None:
        raise InvalidRequest("both delay and at were given: pass only one")
    return Times(column("delay", delays, delay_ms, count), column("at", ats, at_ms, count))


def _milliseconds(name: str, values: npt.NDArray[Any]) -> Int64s:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InvalidRequest(
            f"{name} must be one-dimensional and have integer milliseconds, if it is an array"
        )
    found = values.astype(np.int64, copy=False)
    if len(found) and found.min() < NO_TIME:
        raise InvalidRequest(f"{name} must not be negative; one of its values is {found.min()} ms")
    return found


def moment_or_none(at_ms: int | None) -> datetime | None:
    """Return the datetime, in UTC, of a time in Unix milliseconds; None for None."""
    return None if at_ms is None else moment(at_ms)
