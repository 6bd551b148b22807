"""What a DataFrame must look like to be written: the names and types of its columns.

No Spark in here: the types are words of its SQL. Whatever is wrong is said before anything
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from escapement.errors import InvalidRequest

_TEXT: Final = ("binary", "string")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_INTERVAL: Final = "interval day to second"
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "payload": _TEXT,
    "deliver_at": ("timestamp",),
    "delay": (_INTERVAL,),
    "delay_ms": _WHOLE,
    "topic": ("string",),
    "key": _TEXT,
    "properties": ("map<string,string>",),
    "priority": _WHOLE,
}
# How to write, in SQL, a type whose own word means another where the session says so.
_SQL: Final = {"timestamp": "TIMESTAMP_LTZ"}
_WHEN: Final = ("deliver_at", "delay", "delay_ms")
# Values of the option nullTimes.
NULL_IS_REFUSED: Final = "fail"
NULL_IS_NOW: Final = "now"


@dataclass(frozen=True, slots=True)
class Shape:
    """Where each column of a DataFrame stands, by the name that it has here."""

    places: Mapping[str, int]

    @classmethod
    def of(cls, columns: Mapping[str, str]) -> Shape:
        """The shape of columns that have these types, in their order.

        Raises:
          InvalidRequest: if they cannot be written; it names the column.
        """
        places: dict[str, int] = {}
        for place, (name, kind) in enumerate(columns.items()):
            known = name.lower()
            if known not in _TYPES:
                raise InvalidRequest(
                    f"the column {name!r} means nothing here; select those that do:"
                    f" {', '.join(_TYPES)}"
                )
            if known in places:
                raise InvalidRequest(f"there are two columns {known!r}")
            if not _fits(kind.lower(), _TYPES[known]):
                wanted = " or ".join(_SQL.get(word, word) for word in _TYPES[known])
                raise InvalidRequest(f"the column {name!r} is of type {kind}, it must be {wanted}")
            places[known] = place
        if "payload" not in places:
            raise InvalidRequest("there is no column 'payload'")
        given = [name for name in _WHEN if name in places]
        if len(given) > 1:
            raise InvalidRequest(f"{' and '.join(given)} both say when: select one of them")
        return cls(places)

    @property
    def has_times(self) -> bool:
        """Whether messages may be given times."""
        return self.when is not None

    @property
    def when(self) -> str | None:
        """The column that says when messages are due; None without one."""
        return next((name for name in _WHEN if name in self.places), None)


def _fits(kind: str, wanted: tuple[str, ...]) -> bool:
    # Any part of days to seconds is one; years and months have no length.
    exact = wanted == (_INTERVAL,) and kind.startswith("interval ")
    return kind in wanted or (exact and not {"year", "month"} & set(kind.split()))
