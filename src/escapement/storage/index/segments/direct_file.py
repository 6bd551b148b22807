"""Direct files: files written or read past the operating system's page cache.

Copying into the page cache costs the system several times as much as letting the disk fetch the
bytes itself, and it evicts pages that others read. So direct writes are for large files that are
not read soon. They need whole blocks from aligned memory: bytes are gathered in a buffer, and while
a thread writes one buffer to the disk, another is filled. On a file system without direct writes,
the file is written like any other.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from escapement.message import Buffer, UInt8s

_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # 0 on systems without direct access
# A multiple of every disk's block size. The size of each write but the last is a multiple of this.
_BLOCK_BYTES: Final = 4096
_BUFFER_BYTES: Final = 4 << 20


class DirectFile:
    """A new file to write sequentially, then flush once, then close.

    All methods block, and raise ``OSError`` if the disk access fails.
    """

    def __init__(self, path: Path) -> None:
        """Create a file at ``path``, where none may exist."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        self._open = True
        self._direct = bool(_DIRECT)
        if self._direct:
            self._set_direct(True)
        # One buffer is filled while a thread writes the other to the disk.
        self._buffer, self._other = _aligned(), _aligned()
        self._used = 0
        self._pool = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def write(self, piece: Buffer) -> None:
        """Append bytes. If writing them fails, a later call may raise the error."""
        # numpy releases the interpreter lock while it copies.
        rest = np.frombuffer(piece, np.uint8)
        while len(rest):
            part = rest[: _BUFFER_BYTES - self._used]
            self._buffer[self._used : self._used + len(part)] = part
            self._used += len(part)
            rest = rest[len(part) :]
            if self._used == _BUFFER_BYTES:
                self._end_writing()
                self._writing = self._pool.submit(self._put, self._buffer)
                self._buffer, self._other = self._other, self._buffer
                self._used = 0

    def writelines(self, pieces: Iterable[Buffer]) -> None:
        """Append the bytes of all pieces, in order."""
        for piece in pieces:
            self.write(piece)

    def flush(self) -> None:
        """Write the buffered bytes to the file. Do not call ``write`` after this."""
        self._end_writing()
        whole = self._used - self._used % _BLOCK_BYTES
        self._put(self._buffer[:whole])
        self._set_direct(False)  # the last bytes are not a whole block
        self._put(self._buffer[whole : self._used])
        self._used = 0

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Close the file. Further calls do nothing."""
        if self._open:
            self._open = False
            self._pool.shutdown()
            os.close(self._descriptor)

    def _end_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _put(self, blocks: UInt8s) -> None:
        while len(blocks):
            try:
                blocks = blocks[os.write(self._descriptor, blocks.data) :]
            except OSError as error:
                # The file system cannot write directly, or a write ended inside a block, so that
                # the next bytes are not aligned. Write through the page cache from here on.
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)

    def _set_direct(self, wanted: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        flags = flags | _DIRECT if wanted else flags & ~_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)
        except OSError as error:
            if error.errno != errno.EINVAL or not wanted:
                raise
            wanted = False
        self._direct = wanted


def read_direct(path: Path) -> memoryview:
    """Return the content of a file, read past the page cache where possible; blocking.

    Raises:
      OSError: if the file cannot be read.
    """
    try:
        return _read(path, _DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _read(path, 0)


def _read(path: Path, flags: int) -> memoryview:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        room = np.empty(size + 2 * _BLOCK_BYTES, np.uint8)
        begin = -room.ctypes.data % _BLOCK_BYTES
        blocks = room[begin : begin + size - size % -_BLOCK_BYTES].data
        at = 0
        while at < size:
            count = file.readinto(blocks[at:])
            if not count:
                raise OSError(errno.EIO, f"the file has {at} bytes, not {size}")
            at += count
    return blocks[:size]


def _aligned() -> UInt8s:
    """Return a buffer for direct writes: its memory begins at the boundary of a memory page."""
    return np.frombuffer(mmap.mmap(-1, _BUFFER_BYTES), np.uint8)
