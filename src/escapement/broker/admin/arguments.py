"""The arguments of an administrative operation (a *verb*), which takes and checks each by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from escapement.broker.access.caller import Caller
from escapement.errors import InvalidRequest
from escapement.names import NamespaceName, TopicName
from escapement.storage.index import Key

T = TypeVar("T")

# The result of a verb: maps, lists, text, numbers, booleans, None.
Plain = Any

# The last millisecond of the year 9999: the latest time, and the longest duration.
_LAST_MS: Final = 253_402_300_799_999


class Arguments:
    """The arguments of one call of a verb, and its caller, whose rights filter listings.

    Each method takes the argument ``name``. ``end`` refuses arguments that were not taken. All
    raise ``InvalidRequest``, with the names that help to find a misspelt one.
    """

    def __init__(self, verb: str, given: Mapping[str, Any], caller: Caller) -> None:
        self.caller = caller
        self._verb = verb
        self._given = tuple(given)
        self._left = dict(given)
        self._known: dict[str, None] = {}  # the names that the verb has asked for, in order

    def text(self, name: str) -> str:
        return self._take(name, str, "text")

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self._is_given(name) else None

    def texts(self, name: str, most: int) -> list[str]:
        return self._take(
            name,
            list,
            f"a list of 1 to {most} texts",
            lambda value: 0 < len(value) <= most and all(isinstance(one, str) for one in value),
        )

    def optional_texts(self, name: str, most: int) -> list[str] | None:
        return self.texts(name, most) if self._is_given(name) else None

    def row_ids(self, name: str, most: int) -> list[int | str | bytes]:
        return self._take(
            name,
            list,
            f"a list of 1 to {most} whole numbers, texts or bytes",
            lambda value: 0 < len(value) <= most and {*map(type, value)} <= {int, str, bytes},
        )

    def topic_name(self, name: str, kind: str = "topic") -> TopicName:
        return TopicName.parse(self.text(name), kind)

    def namespace_name(self, name: str) -> NamespaceName:
        return NamespaceName.parse(self.text(name))

    def number(self, name: str) -> int:
        return self._take(name, int, "a whole number from 0 on", _is_offset)

    def optional_offset(self, name: str) -> int | None:
        return self.number(name) if self._is_given(name) else None

    def optional_number(self, name: str) -> int | None:
        """Take a number, time (ms) or duration (ms) of at least 1; None if not given."""
        if not self._is_given(name):
            return None
        form = f"a whole number from 1 to {_LAST_MS}"
        return self._take(name, int, form, lambda value: 0 < value <= _LAST_MS)

    def optional_numbers(self, name: str) -> list[int] | None:
        if not self._is_given(name):
            return None
        return self._take(
            name, list, "whole numbers from 0 on", lambda value: all(map(_is_offset, value))
        )

    def delivery_key(self, name: str) -> Key:
        """Take a key of the delivery order: a list of due time and offset.

        The default is the beginning.
        """
        key = self.optional_numbers(name) or [0, 0]
        if len(key) != 2:
            raise InvalidRequest(f"{self._verb} needs {name!r} as a due time and an offset")
        return Key(*key)

    def optional_blob(self, name: str) -> bytes:
        return self._take(name, bytes, "bytes") if self._is_given(name) else b""

    def blob_or_none(self, name: str) -> bytes | None:
        return self._take(name, bytes, "bytes") if self._is_given(name) else None

    def blob(self, name: str, size: int) -> bytes:
        return self._take(name, bytes, f"{size} bytes", lambda value: len(value) == size)

    def flag(self, name: str) -> bool:
        return self._take(name, bool, "true or false") if self._has(name) else False

    def choice(self, name: str, choices: tuple[T, ...]) -> T:
        """Take a text that must be one of ``choices``; the default is the first of them."""
        value = self.optional_text(name) or choices[0]
        if value not in choices:
            raise InvalidRequest(
                f"{self._verb} needs {name!r} as one of {', '.join(map(str, choices))}"
            )
        return choices[choices.index(value)]

    def optional_choice(self, name: str, choices: tuple[T, ...]) -> T | None:
        """Take a text that must be one of ``choices``; None if it is not given."""
        return self.choice(name, choices) if self._is_given(name) else None

    def map(self, name: str) -> Mapping[str, Any]:
        return self._take(name, dict, "a map of values by field") if self._has(name) else {}

    def changes(self, name: str) -> Mapping[str, Any]:
        value = self.map(name)
        if not value:
            raise InvalidRequest(f"{self._verb} needs {name!r} with at least one change")
        return value

    def end(self) -> None:
        if self._left:
            takes = f"it takes {_listed(self._known)}" if self._known else "it takes no arguments"
            raise InvalidRequest(f"{self._verb} does not take {_listed(self._left)}; {takes}")

    def _has(self, name: str) -> bool:
        self._known[name] = None
        return name in self._left

    def _is_given(self, name: str) -> bool:
        """Return whether an argument is given. One whose value is None counts as not given."""
        if self._left.get(name) is None:
            self._left.pop(name, None)
        return self._has(name)

    def _take(
        self, name: str, kind: type[T], form: str, fits: Callable[[T], bool] = lambda value: True
    ) -> T:
        missing = not self._has(name)
        value = self._left.pop(name, None)
        if type(value) is not kind or not fits(value):
            found = f"; it was given {_listed(self._given) or 'no arguments'}" if missing else ""
            raise InvalidRequest(f"{self._verb} needs {name!r} as {form}{found}")
        return value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
