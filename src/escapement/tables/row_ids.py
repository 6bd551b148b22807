"""The ids of a table's messages: how they are selected, compared and held in Python.

An id has any type that ``check_columns`` accepts. An integer of at most 63 bits and a sign is an
``int``. An id of a binary type is ``bytes``. Every other id is a ``str``, the text of the value.
"""

from __future__ import annotations

import re
from typing import Final

from escapement.identifier import quoted
from escapement.tables.columns import Column

RowId = int | str | bytes

_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "year"})
_BINARY: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
# MySQL reads the parameter of CAST(? AS UNSIGNED) as a signed number, and turns higher numbers into
# the highest signed one.
_UNSIGNED: Final = "CAST(CAST(? AS CHAR) AS UNSIGNED)"
# Unless it is converted, a text is compared with columns of these types as a floating-point number.
_CONVERSIONS: Final = {
    "bigint": _UNSIGNED,
    "bit": _UNSIGNED,
}
_INTEGER: Final = re.compile(r"[-+]?\d{1,20}", re.ASCII)
_DECIMAL: Final = re.compile(r"[-+]?\d{1,65}(\.\d{1,65})?", re.ASCII)
# The number of digits after the point in the type of a column, such as "decimal(20,5)".
_SCALE: Final = re.compile(r"decimal\(\d+,(\d+)\)")


class RowIds:
    """The SQL expressions for the ids of one table, and the conversions of their values."""

    def __init__(self, column: Column) -> None:
        kind, name = column.data_type, quoted(column.name)
        self._type = column.column_type
        unsigned = "unsigned" in column.column_type.lower()
        self.are_numbers = kind in _INTEGERS or (kind == "bigint" and not unsigned)
        self._are_integers = self.are_numbers or kind in _CONVERSIONS
        self._are_bytes = kind in _BINARY
        scale = _SCALE.match(column.column_type.lower()) if kind == "decimal" else None
        # The number of digits after the point; None if ids are not decimals.
        self._scale = int(scale[1]) if scale is not None else None
        self.placeholder = "?" if self.are_numbers else _CONVERSIONS.get(kind, "?")
        if self._scale is not None:
            self.placeholder = f"CAST(? AS DECIMAL(65, {self._scale}))"
        if self.are_numbers:
            self.selected = name
        elif self._are_bytes:
            self.selected = f"CAST({name} AS BINARY)"
        elif kind in _CONVERSIONS:
            # The text of the column itself may begin with zeros.
            self.selected = f"CAST(CAST(CAST({name} AS UNSIGNED) AS CHAR) AS BINARY)"
        else:
            self.selected = f"CAST(CAST({name} AS CHAR) AS BINARY)"

    def has_form_of(self, other: RowIds) -> bool:
        """Return whether the ids of both are held and compared in the same way."""
        return (self.selected, self.placeholder) == (other.selected, other.placeholder)

    def of(self, value: object) -> RowId:
        """Return the id of a row, given the value of the expression ``selected``.

        Raises:
          ValueError: if the column has another type now.
        """
        if self.are_numbers and isinstance(value, int):
            return value
        if self.are_numbers or not isinstance(value, bytes | bytearray | memoryview):
            raise ValueError(f"the ids do not have the type {self._type} any more")
        return bytes(value) if self._are_bytes else bytes(value).decode()

    def in_list(self, count: int) -> str:
        """Return the SQL text ``IN (?, ?, ...)`` for ``count`` ids."""
        return f"IN ({', '.join([self.placeholder] * count)})"

    def read(self, given: object) -> RowId:
        """Return an id that a user has given.

        Raises:
          ValueError: if it cannot be an id of this table. The message names the type of the column.
        """
        found: RowId | None
        if self._are_integers:
            found = self._integer(given)
        elif self._scale is not None:
            found = _decimal(str(given), self._scale)
        elif self._are_bytes:
            encoded = given.encode() if isinstance(given, str) else given
            found = encoded if isinstance(encoded, bytes) else None
        else:
            found = str(given) if isinstance(given, int | str) else None
        if found is None:
            raise ValueError(
                f"{given!r:.80} cannot be an id, because the column has the type {self._type}"
            )
        return found

    def _integer(self, given: object) -> RowId | None:
        if not _INTEGER.fullmatch(str(given)):
            return None
        number = int(str(given))
        if self.are_numbers:
            return number if -(1 << 63) <= number < 1 << 63 else None
        return str(number) if 0 <= number < 1 << 64 else None


def _decimal(text: str, scale: int) -> str | None:
    """Return the text that MySQL writes for a decimal; None if it has more digits than the type."""
    if not _DECIMAL.fullmatch(text):
        return None
    whole, _, fraction = text.partition(".")
    digits = fraction.rstrip("0")
    if len(digits) > scale:
        return None
    return f"{whole}.{digits.ljust(scale, '0')}" if scale else whole


def as_key(id: RowId) -> bytes:
    """Return an id as the key of its message, by which key ranges divide messages."""
    return id if isinstance(id, bytes) else str(id).encode()
