"""Columns as MySQL sends them: how a value of each is read, in the binary protocol and from text.

Text columns come as ``str``, binary ones as ``bytes``, decimals (a SUM of integers is one) as
``int`` where they are whole by type, else as ``float``. Temporal columns are refused: times are
integers here.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from pymysql.constants import FIELD_TYPE
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from escapement.storage.engine.base import Row

_Decoder = Callable[[MysqlPacket], Any]
_BINARY_CHARSET: Final = 63
_UNSIGNED: Final = 32  # column flag
_MOST_DEFINITIONS: Final = 1024  # columns of which it is remembered how they are read


def decode_row(packet: MysqlPacket, decoders: Sequence[_Decoder]) -> Row:
    """The values of a row, one for each decoder."""
    null_bytes = (len(decoders) + 9) // 8
    packet.advance(1)
    nulls = int.from_bytes(packet.read(null_bytes), "little") >> 2
    if not nulls:
        return tuple([decode(packet) for decode in decoders])
    return tuple(
        [None if nulls >> at & 1 else decode(packet) for at, decode in enumerate(decoders)]
    )


@functools.lru_cache(_MOST_DEFINITIONS)
def decoder_of(definition: bytes) -> _Decoder:
    """How a value of the column is read that is defined so.

    A statement's columns are defined anew with each reply, and always alike.
    """
    return _decoder(FieldDescriptorPacket(definition, "utf-8"))


def _decoder(column: FieldDescriptorPacket) -> _Decoder:
    """How a value of this column is read; a type that no table of ours has is our mistake."""
    unsigned = column.flags & _UNSIGNED
    code = column.type_code
    if code in _NUMBERS:
        format = _NUMBERS[code]
        return _fixed(struct.Struct("<" + (format.upper() if unsigned else format)))
    if code in _FLOATS:
        return _fixed(struct.Struct(_FLOATS[code]))
    if code in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
        return _read_decimal
    if code in _STRINGS:
        return _read_bytes if column.charsetnr == _BINARY_CHARSET else _read_text
    raise AssertionError(f"column {column.name} has type {code}, which is not read here")


def _fixed(layout: struct.Struct) -> _Decoder:
    unpack_from, size = layout.unpack_from, layout.size

    def read(packet: MysqlPacket) -> Any:
        (value,) = unpack_from(packet.read(size))
        return value

    return read


def _read_bytes(packet: MysqlPacket) -> Any:
    return packet.read_length_coded_string()


def _read_text(packet: MysqlPacket) -> Any:
    return str(packet.read_length_coded_string(), "utf-8")  # of bytes or of a view


def _read_decimal(packet: MysqlPacket) -> Any:
    return _number(_read_text(packet))


def _number(text: str) -> int | float:
    """A decimal as the number SQLite would have given: whole if its type is."""
    return float(text) if "." in text else int(text)


_NUMBERS: Final = {
    FIELD_TYPE.TINY: "b",
    FIELD_TYPE.SHORT: "h",
    FIELD_TYPE.YEAR: "h",
    FIELD_TYPE.INT24: "i",
    FIELD_TYPE.LONG: "i",
    FIELD_TYPE.LONGLONG: "q",
}
_FLOATS: Final = {FIELD_TYPE.FLOAT: "<f", FIELD_TYPE.DOUBLE: "<d"}
_STRINGS: Final = frozenset(
    {
        FIELD_TYPE.VARCHAR,
        FIELD_TYPE.VAR_STRING,
        FIELD_TYPE.STRING,
        FIELD_TYPE.TINY_BLOB,
        FIELD_TYPE.MEDIUM_BLOB,
        FIELD_TYPE.LONG_BLOB,
        FIELD_TYPE.BLOB,
        FIELD_TYPE.JSON,
        FIELD_TYPE.ENUM,
        FIELD_TYPE.SET,
        FIELD_TYPE.BIT,
    }
)
# The same for a result that comes as text, in the form PyMySQL takes.
FROM_TEXT: Final[dict[Any, Any]] = {
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys(_FLOATS, float),
    **dict.fromkeys((FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL), _number),
}
