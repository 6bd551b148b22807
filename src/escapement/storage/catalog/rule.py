"""Rules for the values of policy fields.

A policy (storage/catalog/policy.py) is a dataclass. Each of its fields is defined by a call of a
function here, such as :func:`duration`, one for each kind of value. The call returns a dataclass
field with a default, and with the field's :class:`Rule` as metadata. The rule converts a new value
of the field, which may be given as such or as text from the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from escapement.clock import unix_ms
from escapement.durations import format as duration_text
from escapement.durations import parse as parse_duration
from escapement.endpoint import Endpoint
from escapement.errors import InvalidRequest
from escapement.names import TopicName

DAY_MS: Final = 86_400_000
# Maximum of most durations: a year.
_MOST_WAIT_MS: Final = 366 * DAY_MS
# Maximum of the time for which messages are kept: a century, because laws may require that.
MOST_KEEPING_MS: Final = 100 * 366 * DAY_MS
# Maximum of a rate, in messages per second. No machine reaches it.
_MOST_RATE: Final = 1_000_000_000
_SIZE: Final = re.compile(r"([0-9]{1,9})(KiB|MiB|GiB)")
_SHIFT: Final = {"KiB": 10, "MiB": 20, "GiB": 30}
# The end of a pause without an end. It is the latest time that a policy can have.
FOREVER_MS: Final = (1 << 62) - 1

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for the values of one policy field.

    Args:
      help: help text of the field, in sentences.
      metavar: placeholder for a value in the help of a command.
      read: converts a value, or its text if it has a text such as ``30s``, to a value of the field,
        or raises ``InvalidRequest``.
      nothing: meaning of the value 0 or "" in words; "" if that value has no special meaning.
      number: int or float if the values are plain numbers, otherwise None.
    """

    help: str
    metavar: str
    read: Callable[[Any], Any]
    nothing: str = ""
    number: type[int] | type[float] | None = None

    def read_argument(self, text: str) -> Any:
        """Convert the argument of a command to a value of the field; raises ``InvalidRequest``."""
        if self.number is None:
            return self.read(text)
        try:
            return self.read(self.number(text))
        except (ValueError, OverflowError):
            raise InvalidRequest(f"{text!r} is not a number") from None

    def in_words(self, value: Any) -> Any:
        """Return the value, or its meaning in words if it is 0 or "" with a special meaning."""
        return self.nothing if self.nothing and value in (0, "") else value


def _ruled(
    default: Value,
    help: str,
    metavar: str,
    read: Callable[[Any], Any],
    nothing: str,
    number: type[int] | type[float] | None = None,
) -> Value:
    if nothing:
        help += f" {'Empty' if isinstance(default, str) else '0'}: {nothing}."
    value: Value = field(
        default=default, metadata={"rule": Rule(help, metavar, read, nothing, number)}
    )
    return value


def duration(default_ms: int, help: str, nothing: str = "", *, most_ms: int = _MOST_WAIT_MS) -> int:
    """Define a field for a duration in milliseconds. Its text is like ``30s``, or ``0``.

    The name of the field must end in ``_ms``.
    """

    def read(value: Any) -> int:
        if value == "0":
            return 0
        found = parse_duration(value) if isinstance(value, str) else _whole(value)
        if found > most_ms:
            raise InvalidRequest(f"{duration_text(found)} is longer than {most_ms // DAY_MS} days")
        return found

    return _ruled(default_ms, help, "DURATION", read, nothing)


def share(default: float, help: str) -> float:
    """Define a field for a share, a number from 0 to 1."""

    def read(value: Any) -> float:
        found = _decimal(value, "a number from 0 to 1")
        if not 0 <= found <= 1:
            raise InvalidRequest(f"{value!r} is not from 0 to 1")
        return found

    return _ruled(default, help, "SHARE", read, "", float)


def word(default: str, words: tuple[str, ...], help: str) -> str:
    """Define a field whose value is one of ``words``, which include the default."""

    def read(value: Any) -> str:
        if value not in words:
            raise InvalidRequest(f"{value!r} is not one of {', '.join(words)}")
        found: str = value
        return found

    return _ruled(default, help, "|".join(words), read, "")


def number(default: int, most: int, help: str, nothing: str = "") -> int:
    """Define a field for a whole number from 0 to ``most``."""

    def read(value: Any) -> int:
        found = _whole(value)
        if isinstance(value, str):
            raise InvalidRequest(f"{value!r} is a str, not a whole number")
        if found > most:
            raise InvalidRequest(f"{found} is more than {most}")
        return found

    return _ruled(default, help, "NUMBER", read, nothing, int)


def rate(help: str) -> float:
    """Define a field for a rate in messages per second, rounded to thousandths; 0 for no limit."""

    def read(value: Any) -> float:
        asked = _decimal(value, "a number of messages per second")
        found = round(asked, 3)
        if not 0 <= found <= _MOST_RATE or (found == 0 and asked != 0):
            raise InvalidRequest(
                f"{value!r} is not a valid rate: write 0 for no limit, or 0.001 to {_MOST_RATE}"
            )
        return found

    return _ruled(0.0, help, "RATE", read, "no limit", float)


def size(help: str, nothing: str) -> int:
    """Define a field for a size in bytes. Its text is like ``64MiB``. The default is 0."""

    def read(value: Any) -> int:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            return int(match[1]) << _SHIFT[match[2]]
        try:
            return _whole(value)
        except InvalidRequest:
            raise InvalidRequest(
                f"{value!r} is not a size: write 64MiB, 1GiB or plain bytes"
            ) from None

    return _ruled(0, help, "SIZE", read, nothing)


def flag(help: str) -> bool:
    """Define a field for a bool, whose text is yes or no. The default is no."""

    def read(value: Any) -> bool:
        if value in ("yes", "no"):
            return bool(value == "yes")
        if type(value) is not bool:
            raise InvalidRequest(f"{value!r} is neither yes nor no")
        return value

    return _ruled(False, help, "yes|no", read, "")


def topic(default: str, help: str, nothing: str) -> str:
    """Define a field for the name of a topic, which is stored in full; "" for none."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{value!r} is not the name of a topic")
        return TopicName.parse(value).full if value else ""

    return _ruled(default, help, "TOPIC", read, nothing)


def url(help: str) -> str:
    """Define a field for the URL of an endpoint, which is stored in its usual form."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{value!r} is not a URL")
        return Endpoint.parse(value).url

    return _ruled("", help, "URL", read, "")


def moment(help: str) -> int:
    """Define a field for the time until which something is paused; 0: not paused.

    The value is in Unix milliseconds. Its text is an ISO 8601 time with a zone, or ``forever``.
    """

    def read(value: Any) -> int:
        if value == "forever":
            return FOREVER_MS
        if isinstance(value, str) and not value.isdigit():
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                at = None
            if at is None or at.utcoffset() is None:
                raise InvalidRequest(
                    f"{value!r} is neither forever nor a time with a zone, such as "
                    "2026-12-24T18:00+01:00"
                )
            return max(0, unix_ms(at))
        return _whole(value)

    return _ruled(0, help, "TIME", read, "not paused")


def _decimal(value: Any, what: str) -> float:
    """Return a number as a float.

    Raises:
      InvalidRequest: if ``value`` is not a number. The message says that it is not ``what``.
    """
    if type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            pass
    raise InvalidRequest(f"{value!r} is not {what}")


def _whole(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise InvalidRequest(f"{value!r} is not a whole number from 0 on")
    return value
