"""Frames: a length of four bytes, big-endian, then one msgpack array ``[type, field, ...]``.

A frame has one command, and ``type`` is the command's number. The header of the array and the type
take one byte each (at most 15 elements, types below 128). So a receiver knows the type before it
unpacks the frame. The type decides how large the frame may be, and how many lists and maps it may
have. A frame of columns may have megabytes but no nesting. A frame of plain values may be nested,
but is small. So a received frame takes at most some twenty times its bytes.

This module does not depend on the commands or their order. Every error is a ``ValueError`` about
the bytes, which the connection turns into a ``RemoteProtocolError``.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

from escapement.message import Buffer
from escapement.protocol.limits import MAX_FIELDS, MAX_ITEMS, MAX_READ_BYTES

_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">IBB")  # the length, the header of the array, and the type
LENGTH_BYTES: Final = _LENGTH.size
_SMALLEST: Final = 2  # the size of the smallest frame: the header of the array, and the type
_FIXARRAY: Final = 0x90  # the header of an empty msgpack array; add the number of elements
_MAX_TYPE: Final = 0x7F
# A body below this size is copied into the buffer of its frame, because sending one small buffer
# costs less than sending two. For larger bodies, the copy costs more.
_INLINE_BYTES: Final = 16 * 1024
# Received data below this size is joined to the data received before it. Otherwise a frame that
# arrives byte by byte would become a list with one object per byte.
_CRUMB_BYTES: Final = 4096
# Returned frames of this size together are freed before the data behind them waits.
_LARGE_BYTES: Final = 64 * 1024


class FrameDecoder:
    """A decoder that splits a stream of bytes into frames.

    It keeps the data as it arrives, in *chunks*, and joins the chunks when a frame is complete. So
    each frame is copied once, however many chunks it comes in. The decoder has at most one frame
    of ``max_frame_bytes`` and the chunk received last.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._chunk: bytes = b""  # the next frame begins in this chunk, at index _at
        self._at = 0
        self._tail: list[bytes | bytearray] = []  # the chunks received after _chunk
        self._held = 0  # the number of bytes in all chunks from _at on

    def __len__(self) -> int:
        """Return the number of bytes that were received and not returned in a frame yet."""
        return self._held

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Append received data. Before that, the caller must have taken all complete frames."""
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
        """Discard all received bytes."""
        self._chunk, self._at, self._held = b"", 0, 0
        self._tail.clear()

    def head(self) -> tuple[int, int] | None:
        """Return the size and the type of the next frame, or None if its head is not there.

        The frame itself may be incomplete. Neither value is checked.
        """
        if self._held < _HEAD.size:
            return None
        if len(self._chunk) - self._at < _HEAD.size:
            self._join()
        size, _, number = _HEAD.unpack_from(self._chunk, self._at)
        return size, number

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its length, or None if more data is needed.

        Raises:
          ValueError: if the length of the frame is outside the allowed range.
        """
        if self._held < _LENGTH.size:
            self._free_taken()
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
            self._free_taken()
            return None
        if len(self._chunk) - self._at < whole:
            self._join()
        frame = memoryview(self._chunk)[self._at + _LENGTH.size : self._at + whole]
        self._at += whole
        self._held -= whole
        if self._at == len(self._chunk):
            self._chunk, self._at = b"", 0
        return frame

    def free_taken(self) -> None:
        """Free the memory of returned frames, because the rest of the data may wait for long.

        Small frames stay, because copying the rest after each of them would cost more.
        """
        if self._at >= _LARGE_BYTES:
            self._free_taken()

    def _free_taken(self) -> None:
        self._chunk, self._at = self._chunk[self._at :], 0

    def _join(self) -> None:
        """Join all chunks to one."""
        self._chunk = b"".join([memoryview(self._chunk)[self._at :], *self._tail])
        self._at = 0
        self._tail.clear()


def frame_type(frame: memoryview) -> int:
    """Return the type (the number of the command) of a frame, without unpacking it.

    Raises:
      ValueError: if the first two bytes are not an array header and a type.
    """
    header, number = frame[0], frame[1]
    if not _FIXARRAY < header <= _FIXARRAY + MAX_FIELDS or number > _MAX_TYPE:
        raise ValueError(f"a frame begins with {frame[:2].hex()}; no command begins like this")
    return number


def unpack(frame: memoryview, max_containers: int, max_items: int) -> list[Any]:
    """Unpack a frame, and return its fields without its type.

    Raises:
      ValueError: if the frame is not valid msgpack, or holds more than ``max_containers``
        lists and maps, or more than ``max_items`` items in them.
    """
    containers = items = 0

    def count(container: Any) -> Any:
        nonlocal containers, items
        containers += 1
        items += len(container)
        if containers > max_containers:
            raise ValueError(f"it holds more than {max_containers} lists and maps")
        if items > max_items:
            raise ValueError(f"its lists and maps have more than {max_items} items")
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
            max_array_len=MAX_FIELDS if flat else min(max_items, MAX_ITEMS),
            max_map_len=0 if flat else min(max_items, MAX_ITEMS),
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"a frame does not unpack: {error}") from None
    return values[1:]


def pack(values: list[Any]) -> list[Buffer]:
    """Encode a command as a frame, and return it in one or two buffers to send in this order.

    If the last field is a long byte string, it becomes a buffer of its own, without a copy.

    Args:
      values: the type of the command, then its fields.

    Raises:
      ValueError, TypeError, OverflowError: if msgpack cannot encode one of the values.
    """
    assert len(values) <= MAX_FIELDS, "the header of a frame is one byte"
    last = values[-1]
    if isinstance(last, bytes | bytearray | memoryview) and len(last) >= _INLINE_BYTES:
        head = bytearray(_LENGTH.size)
        head += msgpack.packb(values[:-1])
        head[_LENGTH.size] = _FIXARRAY + len(values)
        head += b"\xc6" + _LENGTH.pack(len(last))  # the msgpack header of a long byte string
        _LENGTH.pack_into(head, 0, len(head) - _LENGTH.size + len(last))
        return [head, last]
    packed: bytes = msgpack.packb(values)
    return [_LENGTH.pack(len(packed)) + packed]
