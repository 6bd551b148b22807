"""The filter of messages that a URL, or a form, has. Pure."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any, Final, Literal, Self
from urllib.parse import urlencode

import msgspec

from escapement.clock import moment
from escapement.console.text.times import time_of
from escapement.errors import InvalidRequest

State = Literal[
    "pending",
    "not-yet-due",
    "overdue",
    "in-flight",
    "in-retry",
    "acknowledged",
    "cancelled",
    "lapsed",
]
# The states, with their labels. A search by the first group needs only the index. The second group
# needs a look at each message, and the third a search of the log.
BY_INDEX: Final[dict[State, str]] = {
    "pending": "pending (all of these)",
    "not-yet-due": "not yet due",
    "overdue": "overdue (due by now)",
}
BY_LOOK: Final[dict[State, str]] = {"in-flight": "in flight", "in-retry": "in retry"}
OVER: Final[dict[State, str]] = {
    "acknowledged": "acknowledged",
    "cancelled": "cancelled",
    "lapsed": "lapsed (expired or dropped)",
}
# The most conditions on properties.
_MOST_PROPERTIES: Final = 20
# The fields of a filter that are times.
_TIMES: Final = ("from_", "until", "published")


class Filter(msgspec.Struct, rename={"from_": "from", "having": "property"}):
    """Which messages: of a topic or namespace, with a key, properties, a due time, a state.

    Attributes:
      where: a topic or a namespace; everything if it is empty.
      having: conditions such as ``shop=berlin``, which must all be true.
      from_, until: the due time is in this range. ``exact`` makes Unix milliseconds of them.
      published: for messages that are over: only those published before this time.
    """

    where: str = ""
    key: str = ""
    having: list[str] = []
    from_: str = ""
    until: str = ""
    state: State = "pending"
    published: str = ""

    def exact(self, zone: tzinfo) -> None:
        """Replace each time by Unix milliseconds, which are the same in every browser.

        Raises:
          InvalidRequest: if one is not a time.
        """
        for name in _TIMES:
            if text := getattr(self, name):
                setattr(self, name, str(time_of(text, zone)))

    def forget_inexact(self, zone: tzinfo) -> None:
        """Make the times exact, and drop texts that are not times."""
        for name in _TIMES:
            try:
                setattr(self, name, str(time_of(getattr(self, name), zone)))
            except InvalidRequest:
                setattr(self, name, "")

    @property
    def from_ms(self) -> int | None:
        """The first due time; None if there is no such condition."""
        return int(self.from_) if self.from_ else None

    @property
    def until_ms(self) -> int | None:
        """The end of the range of due times; None if there is no such condition."""
        return int(self.until) if self.until else None

    @property
    def published_ms(self) -> int | None:
        return int(self.published) if self.published else None

    def properties(self) -> dict[str, str]:
        """Return the properties that a message must have.

        Raises:
          InvalidRequest: if a condition has no ``=``, or there are too many.
        """
        if len(self.having) > _MOST_PROPERTIES:
            raise InvalidRequest(f"Give at most {_MOST_PROPERTIES} properties.")
        found = {}
        for condition in self.having:
            name, separator, value = condition.partition("=")
            if not separator or not name:
                raise InvalidRequest(f"{condition!r:.60} is not a property. Write name=value.")
            found[name.strip()] = value.strip()
        return found

    def as_of(self, now_ms: int) -> Self:
        """Return the filter with the range of due times that its state implies.

        Later, the result still names the messages that are overdue now, for example.
        """
        start_ms, stop_ms = self.from_ms, self.until_ms
        # A message is due once its due time is reached.
        if self.state == "not-yet-due":
            start_ms = max(start_ms or 0, now_ms + 1)
        elif self.state in ("overdue", "in-flight", "in-retry"):
            stop_ms = now_ms + 1 if stop_ms is None else min(stop_ms, now_ms + 1)
        return msgspec.structs.replace(
            self,
            from_="" if start_ms is None else str(start_ms),
            until="" if stop_ms is None else str(stop_ms),
        )

    def conditions(self) -> dict[str, Any]:
        """Return the arguments of the verbs that search for pending messages."""
        return {
            "from_ms": self.from_ms or None,
            "until_ms": None if self.until_ms is None else max(1, self.until_ms),
            "key": self.key or None,
            "properties": self.properties(),
        }

    def bulk(self) -> dict[str, Any]:
        """Return the conditions of a bulk change, as ``Broker.bulk`` takes them."""
        found: dict[str, Any] = {
            "due_from": moment(self.from_ms) if self.from_ms else None,
            "due_until": None if self.until_ms is None else moment(max(1, self.until_ms)),
            "key": self.key or None,
            "properties": self.properties() or None,
        }
        given = {name: value for name, value in found.items() if value is not None}
        return given or {"everything": True}

    def fields(self) -> list[tuple[str, str]]:
        """Return the parameters of the URL that differ from their defaults, in order."""
        found = []
        for one in msgspec.structs.fields(Filter):
            value = getattr(self, one.name)
            if isinstance(value, list):
                found += [(one.encode_name, text) for text in value]
            elif value and value != one.default:
                found.append((one.encode_name, value))
        return found

    def link(self, path: str = "/find", **others: str) -> str:
        """Return the address of a page with this filter, and further parameters if not empty.

        A parameter with the name of one of the filter replaces it.
        """
        kept = [pair for pair in self.fields() if pair[0] not in others]
        query = urlencode([*kept, *((name, text) for name, text in others.items() if text)])
        return f"{path}?{query}" if query else path
