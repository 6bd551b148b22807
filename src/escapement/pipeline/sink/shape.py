"""The shape of a DataFrame to write: the names and types of its columns.

An invalid shape is refused before any task runs. This module does not use Spark: types are given in
Spark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
# SQL names for types whose usual name may mean another type, depending on a setting.
_SQL: Final = {"timestamp": "TIMESTAMP_LTZ"}
_WHEN: Final = ("deliver_at", "delay", "delay_ms")
# Values of the option nullTimes.
NULL_IS_REFUSED: Final = "fail"
NULL_IS_NOW: Final = "now"


@dataclass(frozen=True, slots=True)
class Shape:
    """The position of each column of a DataFrame, by the column's name in lower case."""

    positions: Mapping[str, int]

    @classmethod
    def of(cls, columns: Iterable[tuple[str, str]]) -> Shape:
        """Return the shape of columns, which are given by name and type, in their order.

        Raises:
          InvalidRequest: if the columns cannot be written. The error names the column.
        """
        positions: dict[str, int] = {}
        for position, (name, kind) in enumerate(columns):
            known = name.lower()
            if known not in _TYPES:
                raise InvalidRequest(
                    f"the column {name!r} is unknown. Select only known columns:"
                    f" {', '.join(_TYPES)}"
                )
            if known in positions:
                raise InvalidRequest(f"there are two columns {known!r}: select one of them")
            if not _fits(kind.lower(), _TYPES[known]):
                wanted = " or ".join(_SQL.get(word, word) for word in _TYPES[known])
                raise InvalidRequest(f"the column {name!r} is of type {kind}, but must be {wanted}")
            positions[known] = position
        if "payload" not in positions:
            raise InvalidRequest(
                "the column 'payload' is missing: select the payload under this name"
            )
        given = [name for name in _WHEN if name in positions]
        if len(given) > 1:
            raise InvalidRequest(
                f"the columns {' and '.join(given)} exclude each other: select one of them"
            )
        return cls(positions)

    @property
    def when(self) -> str | None:
        """The column with the due times or delays, or None."""
        return next((name for name in _WHEN if name in self.positions), None)


def _fits(kind: str, wanted: tuple[str, ...]) -> bool:
    # Every interval type of days, hours, minutes and seconds fits. Years and months do not, because
    # they have no fixed length.
    exact = wanted == (_INTERVAL,) and kind.startswith("interval ")
    return kind in wanted or (exact and not {"year", "month"} & set(kind.split()))
