"""Decoding of the column values that a MySQL server sends, in binary and in text form.

Text columns become ``str``, binary columns ``bytes``. Decimals (such as a SUM of integers) become
``int`` if their type has no fraction, else ``float``. Date and time columns are an error, because
escapement stores times as integers.
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
_VECTOR: Final = 242  # the type of vectors of MySQL 9, which PyMySQL does not know
_BINARY_CHARSET: Final = 63  # the number of the character set "binary", of byte strings
_UNSIGNED: Final = 32  # the flag of an unsigned column
_MOST_DEFINITIONS: Final = 1024  # decoders of this many column definitions are cached


def decode_row(packet: MysqlPacket, decoders: Sequence[_Decoder]) -> Row:
    """Decode a row in binary form, with one decoder for each column."""
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
    """Return the decoder of the values of a column, given the encoded column definition.

    Results are cached, because each reply to a statement repeats the same column definitions.
    """
    return _decoder(FieldDescriptorPacket(definition, "utf-8"))


def _decoder(column: FieldDescriptorPacket) -> _Decoder:
    """Return the decoder of the values of a column, chosen by its type.

    Raises ``AssertionError`` for a type that no table of escapement uses.
    """
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
    raise AssertionError(f"column {column.name} has the unsupported type {code}")


def _fixed(layout: struct.Struct) -> _Decoder:
    unpack_from, size = layout.unpack_from, layout.size

    def read(packet: MysqlPacket) -> Any:
        (value,) = unpack_from(packet.read(size))
        return value

    return read


def _read_bytes(packet: MysqlPacket) -> Any:
    return packet.read_length_coded_string()


def _read_text(packet: MysqlPacket) -> Any:
    return str(packet.read_length_coded_string(), "utf-8")  # decodes bytes or a memoryview


def _read_decimal(packet: MysqlPacket) -> Any:
    return _number(_read_text(packet))


def _number(text: str) -> int | float:
    """Convert a decimal to the type that SQLite returns: an int if it has no fraction digits."""
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
        _VECTOR,
    }
)
# Decoders of values in text form by column type, for PyMySQL's option ``conv``.
FROM_TEXT: Final[dict[Any, Any]] = {
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys(_FLOATS, float),
    **dict.fromkeys((FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL), _number),
}
