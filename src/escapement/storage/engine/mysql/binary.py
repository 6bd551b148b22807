"""MySQL's binary protocol for prepared statements, on a PyMySQL connection.

PyMySQL sends SQL as text only, and the server takes 5 to 8 times as long to parse large byte
strings in a text as to read them as binary parameters. This module sends the commands
COM_STMT_PREPARE, COM_STMT_EXECUTE and COM_STMT_CLOSE with the binary encoding of parameters. It
uses PyMySQL's socket, packet reader and error packets, and raises PyMySQL's errors. It does not
know transactions.

Each *execution* of a statement is one command with its parameters, and has one reply. Executions
are sent in *bursts*: several are sent before the reply to the first is read. An INSERT of many rows
is sent in *blocks*, each one execution with many rows.

Parameters are ``None``, ``int`` (64 bit, signed), ``float``, ``str`` (UTF-8), ``bytes``,
``bytearray`` or ``memoryview``. Results have the same types (``columns.py``). If the caller
passes a ``Landing``, long rows are received into it, and their byte strings are views of it,
without another copy.

The "Binary Protocol" chapters of the MySQL and MariaDB client/server protocol describe the packets.
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
from escapement.storage.engine.mysql.columns import decode_row, decoder_of
from escapement.storage.engine.mysql.errors import LOCK_WAIT_TIMEOUT, number_of
from escapement.storage.engine.result_buffer import Landing

# The most statements that are prepared on a connection at a time. A few for each log table are used
# often. By default a server allows 16,382 for all its connections together.
MAX_PREPARED: Final = 256
# The most executions in a burst. Their unread replies must fit into the socket's buffers, or both
# ends wait for each other. An error packet has up to 530 bytes, and 64 of these fit into the
# smallest buffers in use.
PIPELINE_DEPTH: Final = 64
# A burst ends at this many bytes: enough for one system call, and little to copy.
PIPELINE_BYTES: Final = 1 << 20
# The number of rows in a block of an INSERT. A block is 2.3 times as fast as one execution for each
# row. Larger blocks would be 7 % faster still, but take four times as long to prepare.
BLOCK_ROWS: Final = 64

_COM_STMT_PREPARE, _COM_STMT_EXECUTE, _COM_STMT_CLOSE = 0x16, 0x17, 0x19
# A packet of this size, the largest possible, is continued by the next packet.
_MAX_PACKET: Final = (1 << 24) - 1
# Byte strings of at least this size are sent and received without copying them together with
# others. For shorter ones a copy is faster.
_LONG_BYTES: Final = 1 << 16
_HEADER = struct.Struct("<I")  # of a packet: three bytes of length, one of sequence number
# The reply to COM_STMT_PREPARE: status, statement id, number of columns, number of parameters.
_PREPARE_OK = struct.Struct("<xIHH")
_EXECUTE = struct.Struct("<BIBI")  # COM_STMT_EXECUTE, statement id, flags, iterations
_CLOSE = struct.Struct("<BI")  # COM_STMT_CLOSE, statement id

# The two bytes that state the type of a parameter.
_TYPE_NULL = struct.pack("<BB", FIELD_TYPE.NULL, 0)
_TYPE_INT = struct.pack("<BB", FIELD_TYPE.LONGLONG, 0)
_TYPE_FLOAT = struct.pack("<BB", FIELD_TYPE.DOUBLE, 0)
_TYPE_TEXT = struct.pack("<BB", FIELD_TYPE.VAR_STRING, 0)
_TYPE_BYTES = struct.pack("<BB", FIELD_TYPE.LONG_BLOB, 0)


class _Statement:
    """A prepared statement: its id on the server, and its numbers of columns and parameters."""

    __slots__ = ("columns", "id", "params")

    def __init__(self, id: int, columns: int, params: int) -> None:
        self.id = id
        self.columns = columns
        self.params = params


class PreparedStatements:
    """The prepared statements of one connection, most recently used last."""

    def __init__(self, wire: Wire, limit_bytes: int) -> None:
        """Create an empty set of prepared statements.

        Args:
          limit_bytes: the server's ``max_allowed_packet``. The server closes the connection
            when a packet is larger.
        """
        self._wire = wire
        self._limit_bytes = limit_bytes
        self._by_sql: OrderedDict[str, _Statement] = OrderedDict()

    def execute(self, sql: str, params: Params, into: Landing | None = None) -> Result:
        """Run a statement once. This takes one round trip, or two if it is not prepared yet."""
        packet = _execute_packet(self._prepared(sql), params)
        self._send(packet)
        self._wire._next_seq_id = packet.reply_number
        return self._read_result(into)

    def execute_all(self, steps: Sequence[Step]) -> Result:
        """Run statements in order, each with its rows of parameters, in bursts.

        When one execution fails, the others of its burst run or fail too. Then the first error is
        raised, and the caller must roll back.

        Returns:
          The rows of all SELECTs, and the total number of rows that other statements affected.
        """
        done = Result([], 0, 0)
        # Preparing a statement may close the least recently used one, which must not be one of
        # this burst. It is not, because a burst has fewer statements than MAX_PREPARED.
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
        """Yield the executions of a statement with rows of parameters.

        Uses blocks if the statement is an INSERT of one row, and the rows are many and small.
        """
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
            self._send(_framed([_CLOSE.pack(_COM_STMT_CLOSE, oldest.id)]))  # no reply comes
        packet = _framed([bytes([_COM_STMT_PREPARE]), sql.encode()])
        self._send(packet)
        self._wire._next_seq_id = packet.reply_number
        reply = self._wire._read_packet()
        statement = _Statement(*_PREPARE_OK.unpack_from(reply.get_all_data()))
        for definitions in (statement.params, statement.columns):
            for _ in range(definitions + 1 if definitions else 0):  # an EOF packet ends them
                self._wire._read_packet()
        self._by_sql[sql] = statement
        return statement

    def _run_burst(self, burst: Sequence[_Packet], before: Result) -> Result:
        """Send a burst of executions, and return the sum of their results and ``before``.

        Reads the replies to all executions, even if one is an error, and then raises the first
        error. But after a second lock timeout it closes the connection, because each of the other
        executions might wait for a lock just as long.
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
            self._wire._write_bytes(part)  # separately, to avoid a copy
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
    """A command to send to the server, as one packet or several."""

    parts: list[bytes | memoryview]  # the bytes to send, in order; blobs are not copied
    size_bytes: int  # the size of the command, without packet headers
    reply_number: int  # the sequence number of the first packet of the reply


def _execute_packet(statement: _Statement, params: Params) -> _Packet:
    count = len(params)
    assert count == statement.params, f"{count} parameters for {statement.params} placeholders"
    head = _EXECUTE.pack(_COM_STMT_EXECUTE, statement.id, 0, 1)
    if not count:
        return _framed([head])
    nulls = 0
    types: list[bytes] = [b"\x01"]  # this byte says that the types of parameters follow
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
    """Add packet headers to a command. It becomes several packets if it is too long for one."""
    size = sum(map(len, parts))
    if size < _MAX_PACKET:
        return _Packet([_HEADER.pack(size), *parts], size, 1)
    whole = memoryview(b"".join(parts))
    framed: list[bytes | memoryview] = []
    # The last packet must be shorter than the maximum, so it may be empty.
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
    """Turn an INSERT or REPLACE of one row into one of ``BLOCK_ROWS`` rows.

    Returns None for any other statement.
    """
    found = _ONE_ROW.fullmatch(sql)
    return None if found is None else found["head"] + ", ".join([found["row"]] * BLOCK_ROWS)


# -- replies -------------------------------------------------------------------


def _read_packet(wire: Wire, into: Landing | None) -> MysqlPacket:
    """Read the next packet of a reply. A long packet is received into ``into``, if not None."""
    if into is None:
        return wire._read_packet()
    head = wire._rfile.peek(_HEADER.size)[: _HEADER.size]
    size = int.from_bytes(head[:3], "little")
    # Receive only a long packet with the expected sequence number here. PyMySQL reads, or refuses,
    # all others.
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
