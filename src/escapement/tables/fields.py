"""The fields of a message table: how a row becomes a payload, and the payload typed values.

The payload of a message of a table is a msgpack array with one item for each field: nil for NULL,
otherwise bytes. For a field of a binary type they are the value itself. For all other types they
are the text that MySQL writes for the value, in UTF-8. ``column_expression`` is the SQL expression
that selects these bytes, and ``decode`` makes a Python value of them:

===========================================  ======================================================
types                                        value
===========================================  ======================================================
tinyint, smallint, mediumint, int, bigint    int, also if unsigned
year, bit                                    int
decimal                                      Decimal
float, double                                float; that of a float is the shortest for its 32 bits
datetime, timestamp                          datetime without a time zone; a timestamp is in the
                                             time zone of the session that reads it
date                                         date
time                                         timedelta
json                                         dict, list, str, int, float, bool or None
binary, varbinary, blob, vector              bytes
geometry, point and the like                 bytes: the well-known binary format, without the SRID
char, varchar, text, enum, set, uuid, inet6  str
===========================================  ======================================================

A date or datetime that Python cannot represent, such as ``0000-00-00``, stays a str: the text that
MySQL writes. So it differs from NULL. The same holds for JSON that only MariaDB accepts, such as
``1.``. Values of any other type are str if they are valid UTF-8, and
otherwise bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgpack
import numpy as np

from escapement.errors import RemoteProtocolError
from escapement.field import Field
from escapement.identifier import quoted
from escapement.tables.columns import Column

__all__ = [
    "Field",
    "column_expression",
    "decode",
    "decode_field",
    "fields_of",
    "read_row",
    "read_values",
    "time_text",
]

_UNSIGNED: Final = " unsigned"
_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_BINARY: Final = frozenset(
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"}
)
_GEOMETRY: Final = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",  # MariaDB
        "geomcollection",  # MySQL
    }
)
# A time of MySQL: hours up to 838, minutes, seconds, and up to 6 digits of a fraction.
_TIME: Final = re.compile(r"(-?)(\d{1,3}):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?", re.ASCII)


def fields_of(columns: Iterable[Column]) -> tuple[Field, ...]:
    """Return the fields of these columns, in order."""
    return tuple(Field(column.name, _type_of(column)) for column in columns)


def _type_of(column: Column) -> str:
    unsigned = column.data_type in _INTEGERS and _UNSIGNED in column.column_type.lower()
    return column.data_type + (_UNSIGNED if unsigned else "")


def column_expression(column: Column) -> str:
    """Return the SQL expression for the bytes of a column's value in a payload.

    The session that evaluates it must use the character set utf8mb4.
    """
    name, kind = quoted(column.name), column.data_type
    if kind in _BINARY:
        return name
    if kind in _GEOMETRY:
        return f"ST_AsBinary({name})"
    if kind == "bit":
        return f"CAST(CAST({name} AS UNSIGNED) AS CHAR)"
    if kind == "float":
        # MySQL writes only 6 digits of a FLOAT. The product is a DOUBLE, which it writes in full.
        return f"CAST({name} * 1E0 AS CHAR)"
    return f"CAST({name} AS CHAR)"


def read_row(fields: Sequence[Field], payload: bytes) -> dict[str, Any]:
    """Return the values of a row by the names of its fields, in their order.

    Args:
      payload: the payload of a message of a table.

    Raises:
      RemoteProtocolError: if the payload does not fit the fields. The message names the field.
    """
    values = zip(fields, read_values(fields, payload), strict=True)
    return {field.name: decode_field(field, value) for field, value in values}


def read_values(fields: Sequence[Field], payload: bytes) -> list[bytes | None]:
    """Return the bytes of each value of a row, None for NULL. Raises the errors of ``read_row``."""
    try:
        values = msgpack.unpackb(payload)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"a row cannot be decoded: {error}") from None
    if not isinstance(values, list) or len(values) != len(fields):
        raise RemoteProtocolError(f"a row does not have one value for each of {len(fields)} fields")
    for field, value in zip(fields, values, strict=True):
        if value is not None and not isinstance(value, bytes):
            raise RemoteProtocolError(f"field {field.name} of a row is neither bytes nor NULL")
    return values


def decode_field(field: Field, value: bytes | None) -> Any:
    """Return the Python value of a field of a row.

    Raises:
      RemoteProtocolError: if the bytes are not a value of its type. The message names the field.
    """
    try:
        return decode(field.type, value)
    except (ValueError, ArithmeticError, RecursionError):
        raise RemoteProtocolError(
            f"field {field.name} of a row has a value that is not of type {field.type}:"
            f" {value!r:.80}"
        ) from None


def decode(type: str, value: bytes | None) -> Any:
    """Return the Python value of a field, as the table in the docstring of this module says.

    Args:
      type: the type of the field, as in ``Field``.
      value: the bytes in the payload; None for NULL.

    Raises:
      ValueError, ArithmeticError, RecursionError: if the bytes are not a value of this type.
    """
    if value is None:
        return None
    return _DECODERS.get(type, _text)(value)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _decimal(value: bytes) -> Decimal:
    return Decimal(value.decode())


def _float(value: bytes) -> float:
    return float(str(np.float32(value.decode())))


def _datetime(value: bytes) -> datetime | str:
    text = value.decode()
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _date(value: bytes) -> date | str:
    text = value.decode()
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


def _json(value: bytes) -> Any:
    text = value.decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _time(value: bytes) -> timedelta:
    found = _TIME.fullmatch(value.decode())
    if found is None:
        raise ValueError("not a time")
    sign, hours, minutes, seconds, fraction = found.groups(default="")
    time = timedelta(
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds),
        microseconds=int(fraction.ljust(6, "0")),
    )
    return -time if sign else time


def time_text(time: timedelta) -> str:
    """Return the text that MySQL reads as this value of a TIME, such as "-10:11:12.000000"."""
    minutes, rest = divmod(abs(time), timedelta(minutes=1))
    seconds, fraction = divmod(rest, timedelta(seconds=1))
    sign = "-" if time < timedelta() else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}.{fraction.microseconds:06}"


_DECODERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys(_INTEGERS | {name + _UNSIGNED for name in _INTEGERS}, int),
    **dict.fromkeys(("year", "bit"), int),
    **dict.fromkeys(_BINARY | _GEOMETRY, bytes),
    "decimal": _decimal,
    "float": _float,
    "double": float,
    "datetime": _datetime,
    "timestamp": _datetime,
    "date": _date,
    "time": _time,
    "json": _json,
}
