"""Durations: conversion between what users write and integer milliseconds.

Inside escapement a duration is an ``int`` whose name ends in ``_ms``. ``parse`` reads text
from settings and commands (``"500ms"``, ``"30s"``, ``"5m"``, ``"1h"``, ``"3d"``, ``"2w"``),
``of`` converts the arguments of an application (a ``timedelta``, or a number and a unit),
and ``format`` writes a duration as text.

Fractions of a millisecond are rounded up, so that a delay is never shorter than requested
and less than a millisecond longer. Every error is ``InvalidRequest``.
"""

from __future__ import annotations

import math
import operator
import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

from escapement.errors import InvalidRequest

# The sum of a duration and a wall-clock time, each within this bound, fits an int64.
MAX_DURATION_MS: Final = 2**62 - 1
# The default of the broker's maximum delay: it refuses messages with a longer delay.
DEFAULT_MAX_DELAY_MS: Final = 10 * 366 * 86_400_000

_MICROSECOND: Final = timedelta(microseconds=1)
_MS_OF: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_WORDS: Final = {
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
_MS_OF_UNIT: Final = (
    _MS_OF
    | {word: _MS_OF[unit] for unit, word in _WORDS.items()}
    | {word + "s": _MS_OF[unit] for unit, word in _WORDS.items()}
)
_LARGEST_FIRST: Final = sorted(_MS_OF.items(), key=lambda item: -item[1])
# A duration of at most 19 digits, enough for every int64: int() is slow for very long numbers.
_TEXT: Final = re.compile(r"([0-9]{1,19})(ms|s|m|h|d|w)")


def parse(text: str) -> int:
    """Return the milliseconds of a duration written as digits and one of ms, s, m, h, d, w.

    Raises:
      InvalidRequest: if ``text`` has another form, or exceeds ``MAX_DURATION_MS``.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{text[:40]!r} is not a duration: write a whole number and one of ms, s, m, h, d, w, "
            "such as 500ms, 30s, 5m, 1h, 3d, 2w"
        )
    duration_ms = int(match[1]) * _MS_OF[match[2]]
    if duration_ms > MAX_DURATION_MS:
        raise _refusal(duration_ms, text)
    return duration_ms


def format(duration_ms: int) -> str:
    """Return the shortest text that ``parse`` reads as exactly ``duration_ms``."""
    assert 0 <= duration_ms <= MAX_DURATION_MS, duration_ms
    if duration_ms == 0:
        return "0s"
    unit, unit_ms = next(item for item in _LARGEST_FIRST if duration_ms % item[1] == 0)
    return f"{duration_ms // unit_ms}{unit}"


def of(value: timedelta | int | float, unit: str | None = None) -> int:
    """Return the milliseconds of a ``timedelta``, or of a number and its unit, rounded up.

    ``of(timedelta(minutes=3))``, ``of(3, "minutes")`` and ``of(0.05, "h")`` are the
    same. Units are ms, s, m, h, d, w and their English names, singular or plural. A
    float is read as the decimal number it prints as, so ``of(1.1, "h")`` is exactly
    66 minutes.

    Raises:
      InvalidRequest: if the duration is negative, not finite or longer than
        ``MAX_DURATION_MS``; if the unit is unknown; if a number has no unit, or a
        timedelta has one.
    """
    if isinstance(value, timedelta):
        if unit is not None:
            raise InvalidRequest(f"a timedelta takes no unit: leave out {unit!r}")
        microseconds = value // _MICROSECOND
        # Integers are faster than fractions, and producers call this for every message.
        duration_ms = -(-microseconds // 1000) if microseconds > 0 else microseconds
        if 0 <= duration_ms <= MAX_DURATION_MS:
            return duration_ms
        raise _refusal(duration_ms, value)
    if unit is None:
        raise InvalidRequest(f"a number needs a unit ({_allowed()}), or pass a timedelta")
    unit_ms = _MS_OF_UNIT.get(unit)
    if unit_ms is None:
        raise InvalidRequest(f"{unit!r} is not a unit of time: use one of {_allowed()}")
    exact_ms = value * unit_ms if type(value) is int else _exact(value) * unit_ms
    if 0 <= exact_ms <= MAX_DURATION_MS:
        return math.ceil(exact_ms)
    # Python refuses to print integers with thousands of digits.
    written = "that many" if isinstance(value, int) and abs(value) > 2**64 else repr(value)
    raise _refusal(exact_ms, f"{written} {unit}")


def _exact(value: int | float) -> Fraction:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRequest(f"{value} is not a duration: the number must be finite")
        return Fraction(Decimal(float.__repr__(value)))
    if isinstance(value, bool):
        raise InvalidRequest(f"{value} is not a duration: pass a number and a unit, or a timedelta")
    try:
        return Fraction(operator.index(value))
    except TypeError:
        raise InvalidRequest(
            f"{type(value).__name__} is not a duration: pass a number and a unit, or a timedelta"
        ) from None


def _refusal(duration_ms: int | Fraction, written: object) -> InvalidRequest:
    if duration_ms < 0:
        return InvalidRequest(f"a duration of {written} is negative")
    return InvalidRequest(f"a duration of {written} is over the maximum of {MAX_DURATION_MS} ms")


def _allowed() -> str:
    return ", ".join(f"{unit} ({word}s)" for unit, word in _WORDS.items())
