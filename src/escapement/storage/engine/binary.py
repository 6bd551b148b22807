"""MySQL's binary protocol for prepared statements, on a PyMySQL connection.

PyMySQL speaks SQL text only, and for blobs the server's lexer is then the
bottleneck: text is 5 to 8 times slower than parameters that travel as they are.
This module owns COM_STMT_PREPARE, COM_STMT_EXECUTE and COM_STMT_CLOSE, and the
binary encoding of parameters. It borrows PyMySQL's socket, packet reader
and error packets, and knows nothing of transactions; errors leave it as PyMySQL's.

Python's types on the wire: ``None``, ``int`` (64 bit, signed), ``float``, ``str``
(UTF-8), and ``bytes``, ``bytearray`` or ``memoryview``. What comes back is the same
(storage/engine/mysql_columns.py). Whoever brings a ``Landing`` has the binary ones of long
rows as views of it, received there and copied no more.

The packets are described in the "Binary Protocol" chapters of the MySQL and the
MariaDB client/server protocol.
"""

from __future__ import annotations

import functools
import re
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pymysql
from pymysql.connections import Connection as Wire
from pymysql.constants import FIELD_TYPE
from pymysql.constants.CR import CR_SERVER_LOST
from pymysql.protocol import MysqlPacket, OKPacketWrapper

from escapement.errors import StorageError
from escapement.storage.engine.base import Params, Result, Row, Step
from escapement.storage.engine.landing import Landing
from escapement.storage.engine.mysql_columns import decode_row, decoder_of
from escapement.storage.engine.mysql_errors import LOCK_WAIT_TIMEOUT, number_of

# Statements kept prepared on a connection. The hot ones are a handful for each log
# table; the server allows 16,382 over all its connections.
MAX_PREPARED: Final = 256
# Executions sent ahead of reading their replies. Replies nobody reads yet must fit
# the socket's buffers, or both ends wait for each other: an error packet has up to
# 530 bytes, and 64 of them fit the smallest buffers in use.
PIPELINE_DEPTH: Final = 64
# ... and the bytes sent ahead: enough to amortise a system call, little to copy.
PIPELINE_BYTES: Final = 1 << 20
# Small rows of an INSERT go this many to a statement: 2.3 times as many a second as one
# by one in a pipeline. Longer blocks gain 7 % more and take four times as long to prepare.
BLOCK_ROWS: Final = 64

_COM_STMT_PREPARE, _COM_STMT_EXECUTE, _COM_STMT_CLOSE = 0x16, 0x17, 0x19
# A packet of this size says that another follows.
_MAX_PACKET: Final = (1 << 24) - 1
# What is shorter is not worth a place of its own.
_LONG_BYTES: Final = 1 << 16
_HEADER = struct.Struct("<I")  # three bytes of length, one of sequence number
_PREPARE_OK = struct.Struct("<xIHH")  # status, statement id, columns, parameters
_EXECUTE = struct.Struct("<BIBI")  # command, statement id, flags, iterations
_CLOSE = struct.Struct("<BI")  # command, statement id

_TYPE_NULL = struct.pack("<BB", FIELD_TYPE.NULL, 0)
_TYPE_INT = struct.pack("<BB", FIELD_TYPE.LONGLONG, 0)
_TYPE_FLOAT = struct.pack("<BB", FIELD_TYPE.DOUBLE, 0)
_TYPE_TEXT = struct.pack("<BB", FIELD_TYPE.VAR_STRING, 0)
_TYPE_BYTES = struct.pack("<BB", FIELD_TYPE.LONG_BLOB, 0)


class _Statement:
    """One prepared statement of one connection."""

    __slots__ = ("columns", "id", "params")

    def __init__(self, id: int, columns: int, params: int) -> None:
        self.id = id
        self.columns = columns
        self.params = params


class PreparedStatements:
    """The statements prepared on one connection, most recently used last."""

    def __init__(self, wire: Wire, limit_bytes: int) -> None:
        """``limit_bytes`` is the server's ``max_allowed_packet``: above it, it hangs up."""
        self._wire = wire
        self._limit_bytes = limit_bytes
        self._by_sql: OrderedDict[str, _Statement] = OrderedDict()

    def execute(self, sql: str, params: Params, into: Landing | None = None) -> Result:
        """Run ``sql`` once. One round trip, two when the statement is new."""
        packet = _execute_packet(self._prepared(sql), params)
        self._send(packet)
        self._wire._next_seq_id = packet.reply_number
        return self._read_result(into)

    def execute_all(self, steps: Sequence[Step]) -> Result:
        """Run these in their order; the rows of all SELECTs, and rows touched by the others.

        Executions are sent ahead of their replies. When one fails the others of its
        burst have run or failed by themselves: the first error is raised, and the
        caller gives the transaction up.
        """
        done = Result([], 0, 0)
        # A statement of a burst is never the one used longest ago, which would be closed.
        burst: list[_Packet] = []
        size_bytes = 0
        for sql, params in steps:
            for packet in self._packets(sql, params):
                burst.append(packet)
                size_bytes += packet.size_bytes
                if len(burst) == PIPELINE_DEPTH or size_bytes >= PIPELINE_BYTES:
                    done = self._run_burst(burst, done)
                    burst, size_bytes = [], 0
        return self._run_burst(burst, done) if burst else done

    def _packets(self, sql: str, rows: Sequence[Params]) -> Iterator[_Packet]:
        """Executions that add up to all rows: blocks where the statement and the rows allow."""
        done = 0
        block_sql = _block_of(sql) if len(rows) >= BLOCK_ROWS else None
        if block_sql is not None:
            statement = self._prepared(block_sql)
            while len(rows) - done >= BLOCK_ROWS:
                block = rows[done : done + BLOCK_ROWS]
                packet = _execute_packet(statement, [value for row in block for value in row])
                if packet.size_bytes > PIPELINE_BYTES:
                    break
                yield packet
                done += BLOCK_ROWS
        if done < len(rows):
            statement = self._prepared(sql)
            for params in rows[done:]:
                yield _execute_packet(statement, params)

    def _prepared(self, sql: str) -> _Statement:
        statement = self._by_sql.get(sql)
        if statement is not None:
            self._by_sql.move_to_end(sql)
            return statement
        if len(self._by_sql) >= MAX_PREPARED:
            _, oldest = self._by_sql.popitem(last=False)
            self._send(_framed([_CLOSE.pack(_COM_STMT_CLOSE, oldest.id)]))  # has no reply
        packet = _framed([bytes([_COM_STMT_PREPARE]), sql.encode()])
        self._send(packet)
        self._wire._next_seq_id = packet.reply_number
        reply = self._wire._read_packet()
        statement = _Statement(*_PREPARE_OK.unpack_from(reply.get_all_data()))
        for definitions in (statement.params, statement.columns):
            for _ in range(definitions + 1 if definitions else 0):  # and an EOF packet
                self._wire._read_packet()
        self._by_sql[sql] = statement
        return statement

    def _run_burst(self, burst: Sequence[_Packet], before: Result) -> Result:
        """Adds what these executions gave; all replies are read, errors or not.

        Unless a second one waited for a lock in vain: then so may the rest, each as
        long, and the connection is closed instead.
        """
        self._send(*burst)
        rows, touched = before.rows, before.affected
        first_error: pymysql.err.MySQLError | None = None
        for packet in burst:
            self._wire._next_seq_id = packet.reply_number
            try:
                result = self._read_result()
            except pymysql.err.MySQLError as error:
                if first_error is not None and number_of(error) == LOCK_WAIT_TIMEOUT:
                    self._wire._force_close()
                first_error = first_error or error
                if not self._wire.open:
                    break
            else:
                rows += result.rows
                touched += result.affected
        if first_error is not None:
            raise first_error
        return Result(rows, touched, 0)

    def _send(self, *packets: _Packet) -> None:
        if not self._wire.open:
            raise pymysql.err.InterfaceError(0, "the connection is closed")
        for packet in packets:
            if packet.size_bytes > self._limit_bytes:
                raise StorageError(
                    f"a statement of {packet.size_bytes} bytes is larger than the server's "
                    f"max_allowed_packet of {self._limit_bytes}; raise that, or send less at once"
                )
        gathered: list[bytes | memoryview] = []
        for part in (part for packet in packets for part in packet.parts):
            if len(part) < _LONG_BYTES:
                gathered.append(part)
                continue
            self._wire._write_bytes(b"".join(gathered))
            self._wire._write_bytes(part)  # as it is: copying it would take longer
            gathered = []
        if gathered:
            self._wire._write_bytes(b"".join(gathered))

    def _read_result(self, into: Landing | None = None) -> Result:
        wire = self._wire
        first = wire._read_packet()
        if first.is_ok_packet():
            ok = OKPacketWrapper(first)
            return Result([], int(ok.affected_rows), int(ok.insert_id))
        count = first.read_length_encoded_integer()
        decoders = [decoder_of(wire._read_packet().get_all_data()) for _ in range(count)]
        _expect_eof(wire._read_packet())
        rows: list[Row] = []
        while not (packet := _read_packet(wire, into)).is_eof_packet():
            rows.append(decode_row(packet, decoders))
        return Result(rows, 0, 0)


# -- parameters ----------------------------------------------------------------


class _Packet(NamedTuple):
    """A command ready to be sent: blobs stand in ``parts`` as they were given, not copied."""

    parts: list[bytes | memoryview]
    size_bytes: int  # without headers
    reply_number: int  # the sequence number its reply begins with


def _execute_packet(statement: _Statement, params: Params) -> _Packet:
    count = len(params)
    assert count == statement.params, f"{count} parameters for {statement.params} placeholders"
    head = _EXECUTE.pack(_COM_STMT_EXECUTE, statement.id, 0, 1)
    if not count:
        return _framed([head])
    nulls = 0
    types: list[bytes] = [b"\x01"]  # "types follow"
    values: list[bytes | memoryview] = []
    for at, value in enumerate(params):
        if value is None:
            nulls |= 1 << at
            types.append(_TYPE_NULL)
        elif isinstance(value, int):
            types.append(_TYPE_INT)
            values.append(value.to_bytes(8, "little", signed=True))
        elif isinstance(value, str):
            encoded = value.encode()
            types.append(_TYPE_TEXT)
            values += (_length(len(encoded)), encoded)
        elif isinstance(value, bytes | bytearray | memoryview):
            view = memoryview(value).cast("B")
            types.append(_TYPE_BYTES)
            values += (_length(len(view)), view)
        elif isinstance(value, float):
            types.append(_TYPE_FLOAT)
            values.append(struct.pack("<d", value))
        else:
            raise AssertionError(f"parameters must be plain Python values, not {type(value)}")
    return _framed([head, nulls.to_bytes((count + 7) // 8, "little"), *types, *values])


def _framed(parts: list[bytes | memoryview]) -> _Packet:
    """A command of these bytes as one packet, or as several where it is too long for one."""
    size = sum(map(len, parts))
    if size < _MAX_PACKET:
        return _Packet([_HEADER.pack(size), *parts], size, 1)
    whole = memoryview(b"".join(parts))
    framed: list[bytes | memoryview] = []
    # A last packet shorter than the maximum, perhaps empty, says that this is all.
    lows = range(0, size + 1, _MAX_PACKET)
    for number, low in enumerate(lows):
        piece = whole[low : low + _MAX_PACKET]
        framed += (_HEADER.pack(len(piece) | (number & 0xFF) << 24), piece)
    return _Packet(framed, size, len(lows) & 0xFF)


def _length(n: int) -> bytes:
    if n < 0xFB:
        return bytes((n,))
    if n < 1 << 16:
        return b"\xfc" + n.to_bytes(2, "little")
    if n < 1 << 24:
        return b"\xfd" + n.to_bytes(3, "little")
    return b"\xfe" + n.to_bytes(8, "little")


_ONE_ROW = re.compile(
    r"(?P<head>\s*(?:INSERT|REPLACE)\b.*\bVALUES\s*)(?P<row>\([^()'\"]*\))\s*",
    re.IGNORECASE | re.DOTALL,
)


@functools.lru_cache(maxsize=MAX_PREPARED)
def _block_of(sql: str) -> str | None:
    """The INSERT of one row as an INSERT of ``BLOCK_ROWS``; None if it is none."""
    found = _ONE_ROW.fullmatch(sql)
    return None if found is None else found["head"] + ", ".join([found["row"]] * BLOCK_ROWS)


# -- replies -------------------------------------------------------------------


def _read_packet(wire: Wire, into: Landing | None) -> MysqlPacket:
    """The next packet; one that is long lies in ``into``."""
    if into is None:
        return wire._read_packet()
    head = wire._rfile.peek(_HEADER.size)[: _HEADER.size]
    size = int.from_bytes(head[:3], "little")
    # Whatever is not plainly a long packet by itself is PyMySQL's to read, or to refuse.
    plain = len(head) == _HEADER.size and head[3] == wire._next_seq_id
    if not plain or not _LONG_BYTES <= size < _MAX_PACKET:
        return wire._read_packet()
    wire._read_bytes(_HEADER.size)
    wire._next_seq_id = (wire._next_seq_id + 1) % 256
    room = into.take(size)
    if wire._rfile.readinto(room) < size:
        wire._force_close()
        raise pymysql.err.OperationalError(CR_SERVER_LOST, "the connection ended inside a row")
    return MysqlPacket(room, wire.encoding)


def _expect_eof(packet: MysqlPacket) -> None:
    if not packet.is_eof_packet():
        raise pymysql.err.InternalError("the server's column definitions have no end")
