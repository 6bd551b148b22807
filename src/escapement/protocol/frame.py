"""Frames: a length of four bytes, big-endian, then one msgpack array ``[type, ...]``.

The array's header and the type take one byte each (at most 15 fields, types below 128),
so that the type is known before anything is unpacked: it decides how large the frame
may be and how many lists and maps it may hold. A frame of columns may be megabytes but
nests nothing; a frame of plain values nests a little but is small. So neither a bomb of
brackets nor a long frame costs more memory than a small multiple of its bytes.

Knows no command and no order of them. Every error is a ``ValueError`` that says what is
wrong with the bytes; the connection makes a ``RemoteProtocolError`` of it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

from escapement.message import Buffer
from escapement.protocol.limits import MAX_FIELDS, MAX_ITEMS, MAX_READ_BYTES

_LENGTH: Final = struct.Struct(">I")
_SMALLEST: Final = 2  # the array's header and the type
_FIXARRAY: Final = 0x90
_MAX_TYPE: Final = 0x7F
# Bodies below this are copied into their frame: one small buffer costs the transport
# less than two. Above it, the copy would cost more.
_INLINE_BYTES: Final = 16 * 1024
# Reads below this are gathered, so that a frame arriving byte by byte is not a list of
# as many objects.
_CRUMB_BYTES: Final = 4096


class FrameDecoder:
    """Cuts a stream of bytes into frames, and holds never more than one and a read.

    What was read is kept as it came and joined once, when a frame is whole, so that a
    frame costs a copy of its bytes however many reads it took.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._chunk: bytes = b""  # holds the next frame's beginning, at _at
        self._at = 0
        self._tail: list[bytes | bytearray] = []  # what was read since
        self._held = 0

    def __len__(self) -> int:
        """Bytes held."""
        return self._held

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Append what was read. The caller takes all whole frames before it reads again."""
        self._held += len(data)
        assert self._held <= self.max_frame_bytes + _LENGTH.size + MAX_READ_BYTES, "take frames"
        if self._at == len(self._chunk) and not self._tail:
            self._chunk, self._at = bytes(data), 0
        elif len(data) >= _CRUMB_BYTES:
            self._tail.append(bytes(data))
        elif self._tail and isinstance(self._tail[-1], bytearray):
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))

    def clear(self) -> None:
        """Release the bytes."""
        self._chunk, self._at, self._held = b"", 0, 0
        self._tail.clear()

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None if more bytes are needed.

        Raises:
          ValueError: if its length is none that a frame may have.
        """
        if self._held < _LENGTH.size:
            return None
        if len(self._chunk) - self._at < _LENGTH.size:
            self._join()
        (size,) = _LENGTH.unpack_from(self._chunk, self._at)
        if not _SMALLEST <= size <= self.max_frame_bytes:
            raise ValueError(
                f"a frame of {size} bytes is outside {_SMALLEST}..{self.max_frame_bytes}"
            )
        whole = _LENGTH.size + size
        if self._held < whole:
            return None
        if len(self._chunk) - self._at < whole:
            self._join()
        frame = memoryview(self._chunk)[self._at + _LENGTH.size : self._at + whole]
        self._at += whole
        self._held -= whole
        if self._at == len(self._chunk):
            self._chunk, self._at = b"", 0
        return frame

    def _join(self) -> None:
        self._chunk = b"".join([memoryview(self._chunk)[self._at :], *self._tail])
        self._at = 0
        self._tail.clear()


def frame_type(frame: memoryview) -> int:
    """The type of the command in a frame.

    Raises:
      ValueError: if the frame does not begin as one.
    """
    header, number = frame[0], frame[1]
    if not _FIXARRAY < header <= _FIXARRAY + MAX_FIELDS or number > _MAX_TYPE:
        raise ValueError(f"a frame begins with {frame[:2].hex()}, which is no command")
    return number


def unpack(frame: memoryview, max_containers: int) -> list[Any]:
    """The fields of a frame, without its type.

    Raises:
      ValueError: if it is no msgpack, or holds more lists and maps than it may.
    """
    containers = 0

    def count(container: Any) -> Any:
        nonlocal containers
        containers += 1
        if containers > max_containers:
            raise ValueError(f"it holds more than {max_containers} lists and maps")
        return container

    flat = max_containers == 1
    try:
        values: list[Any] = msgpack.unpackb(
            frame,
            raw=False,
            strict_map_key=True,
            list_hook=count,
            object_hook=count,
            max_str_len=len(frame),
            max_bin_len=len(frame),
            max_array_len=MAX_FIELDS if flat else MAX_ITEMS,
            max_map_len=0 if flat else MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"a frame does not unpack: {error}") from None
    return values[1:]


def pack(values: list[Any]) -> list[Buffer]:
    """The frame of a command's array, as buffers to be sent one after the other.

    A long byte string in the last place is handed on as it is, not copied.

    Raises:
      ValueError, TypeError, OverflowError: if msgpack cannot hold one of the values.
    """
    assert len(values) <= MAX_FIELDS, "the header of a frame is one byte"
    last = values[-1]
    if isinstance(last, bytes | bytearray | memoryview) and len(last) >= _INLINE_BYTES:
        head = bytearray(_LENGTH.size)
        head += msgpack.packb(values[:-1])
        head[_LENGTH.size] = _FIXARRAY + len(values)
        head += b"\xc6" + _LENGTH.pack(len(last))  # bin 32
        _LENGTH.pack_into(head, 0, len(head) - _LENGTH.size + len(last))
        return [head, last]
    packed: bytes = msgpack.packb(values)
    return [_LENGTH.pack(len(packed)) + packed]
