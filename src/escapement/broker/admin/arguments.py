"""The arguments of a verb, taken one by one and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from escapement.errors import InvalidRequest

# The result of a verb: maps, lists, text, numbers, booleans, None.
Plain = Any

# The last millisecond of the year 9999: the latest time, and the longest duration.
_LAST_MS: Final = 253_402_300_799_999


class Arguments:
    """The arguments of a verb. ``end`` refuses arguments that were not taken."""

    def __init__(self, verb: str, given: Mapping[str, Any]) -> None:
        self._verb = verb
        self._left = dict(given)

    def text(self, name: str) -> str:
        value = self._left.pop(name, None)
        if not isinstance(value, str):
            raise InvalidRequest(f"{self._verb} needs {name!r} as text")
        return value

    def texts(self, name: str, most: int) -> list[str]:
        value = self._left.pop(name, None)
        fits = isinstance(value, list) and 0 < len(value) <= most
        if not fits or not all(isinstance(one, str) for one in value):
            raise InvalidRequest(f"{self._verb} needs {name!r} as a list of 1 to {most} texts")
        return list(value)

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self._left.get(name) is not None else self._left.pop(name, None)

    def optional_number(self, name: str) -> int | None:
        """Take a number, or a time or duration in milliseconds, of at least 1."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if type(value) is not int or not 0 < value <= _LAST_MS:
            raise InvalidRequest(
                f"{self._verb} needs {name!r} as a whole number from 1 to {_LAST_MS}"
            )
        return value

    def number(self, name: str) -> int:
        value = self._left.pop(name, None)
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise InvalidRequest(f"{self._verb} needs {name!r} as a whole number from 0 on")
        return value

    def optional_offset(self, name: str) -> int | None:
        return self.number(name) if self._left.get(name) is not None else self._left.pop(name, None)

    def optional_numbers(self, name: str) -> list[int] | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            type(one) is int and 0 <= one < 1 << 62 for one in value
        ):
            raise InvalidRequest(f"{self._verb} needs {name!r} as whole numbers from 0 on")
        return value

    def optional_blob(self, name: str) -> bytes:
        value = self._left.pop(name, None)
        if value is None:
            return b""
        if not isinstance(value, bytes):
            raise InvalidRequest(f"{self._verb} needs {name!r} as bytes")
        return value

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise InvalidRequest(f"{self._verb} needs {name!r} as true or false")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self._left.pop(name, None)
        if value is None:
            return choices[0]
        if value not in choices:
            raise InvalidRequest(f"{self._verb} needs {name!r} as one of {', '.join(choices)}")
        return str(value)

    def map(self, name: str) -> Mapping[str, Any]:
        value = self._left.pop(name, {})
        if not isinstance(value, dict):
            raise InvalidRequest(f"{self._verb} needs {name!r} as a map of values by field")
        return value

    def changes(self, name: str) -> Mapping[str, Any]:
        value = self.map(name)
        if not value:
            raise InvalidRequest(f"{self._verb} needs {name!r} with at least one change")
        return value

    def end(self) -> None:
        if self._left:
            raise InvalidRequest(f"{self._verb} does not take {', '.join(map(repr, self._left))}")
