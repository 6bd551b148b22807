"""Writing a segment: the file, its durability, and the copying of messages into it.

Owns how a segment comes to be: the directory is gathered while blocks are written, and
the file counts for nothing until footer and trailer are there, it is fsynced, and a
manifest names it. Checkpoint and compaction both copy messages with
:func:`write_messages`, from tables or from other segments. Knows nothing of which
messages are live.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from escapement.errors import StorageError
from escapement.message import MessageBatch
from escapement.storage.index.block import FOOTER, KeyBlock, MessageBlock, encode
from escapement.storage.index.keys import Key, Keys, is_sorted
from escapement.storage.index.plan import Fetch, Store
from escapement.storage.index.segment import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    COUNTS,
    HEADER,
    RUN_COLUMNS,
    TRAILER,
    TRAILER_END,
)

_WRITE_BYTES: Final = 1 << 20  # gathered before a write to the file


class SegmentWriter:
    """Writes one segment, topic after topic in ascending ids, keys ascending in each."""

    def __init__(self, path: Path, block_rows: int = BLOCK_ROWS) -> None:
        self.path = path
        self.rows = 0
        self.block_rows = block_rows
        self._topics: list[tuple[int, int]] = []
        self._runs: list[tuple[int, ...]] = []
        self._last_key: Key | None = None
        self._at = len(HEADER)
        self._file = path.open("xb", buffering=_WRITE_BYTES)
        self._file.write(HEADER)

    def append(self, topic_id: int, keys: Keys, batch: MessageBatch) -> None:
        """Write messages of a topic, all greater than those before; blocking."""
        assert len(keys[0]) == len(batch) > 0
        if not self._topics or self._topics[-1][0] != topic_id:
            assert not self._topics or self._topics[-1][0] < topic_id, "topics must ascend"
            self._topics.append((topic_id, len(self._runs)))
            self._last_key = None
        first = Key(int(keys[0][0]), int(keys[1][0]))
        assert self._last_key is None or self._last_key < first, "keys must ascend"
        assert is_sorted(*keys)
        self._last_key = Key(int(keys[0][-1]), int(keys[1][-1]))
        for low, high in _cuts(batch, self.block_rows):
            rows = slice(low, high)
            part = batch if high - low == len(batch) else batch.take(np.arange(low, high))
            self._write_run((keys[0][rows], keys[1][rows]), part)
        self.rows += len(batch)

    def _write_run(self, keys: Keys, batch: MessageBatch) -> None:
        due_ms, offsets = keys
        messages = MessageBlock.encode(batch)
        bounds = due_ms[0], offsets[0], due_ms[-1], offsets[-1], offsets.min(), offsets.max()
        self._runs.append((*map(int, bounds), len(batch), self._at, len(messages)))
        self._at += self._file.write(KeyBlock.encode(keys))
        self._at += self._file.write(messages)

    def finish(self) -> None:
        """Write directory and trailer; the file is complete, not yet on disk."""
        topics = np.array(self._topics, "<i8").reshape(-1, 2)
        runs = np.array(self._runs, "<i8").reshape(-1, len(RUN_COLUMNS))
        counts = COUNTS.pack(len(topics), len(runs))
        body = counts + topics.T.tobytes() + runs.T.tobytes()
        footer = encode(FOOTER, len(runs), body)
        trailer = TRAILER.pack(self._at, len(footer))
        self._file.write(footer + trailer)
        self._file.write(struct.pack("<I", zlib.crc32(trailer)) + TRAILER_END)
        self._file.flush()

    def sync(self) -> None:
        """Make the file durable, and its name; blocking."""
        os.fsync(self._file.fileno())
        self._file.close()
        sync_directory(self.path.parent)

    def discard(self) -> None:
        """Give the file up."""
        self._file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside it, what the operating system refuses is a ``StorageError`` about ``path``."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}; is the disk full?") from error


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cuts(batch: MessageBatch, block_rows: int) -> list[tuple[int, int]]:
    """Where a batch is cut into runs by rows and bytes."""
    count = len(batch)
    if count <= block_rows and batch.size_bytes <= BLOCK_BYTES:
        return [(0, count)]
    weights = np.full(count, 4, np.int64)
    for column in (batch.payloads, batch.keys, batch.properties):
        if column is not None:
            weights += column.lengths
    ends = np.cumsum(weights)
    cuts = []
    low, done = 0, 0
    while low < count:
        high = int(ends.searchsorted(done + BLOCK_BYTES, "right"))
        high = min(max(high, low + 1), low + block_rows, count)
        cuts.append((low, high))
        low, done = high, int(ends[high - 1])
    return cuts


def write_messages(
    writer: SegmentWriter,
    topic_id: int,
    keys: Keys,
    memory: Sequence[Store],
    disk: Sequence[Store],
    row_bytes: int,
) -> None:
    """Copy the messages of sorted keys into a segment, run by run; blocking.

    ``row_bytes`` is what a message weighs on average, so that a run of large ones takes
    no more memory than a run of small ones.
    """
    # An eighth less than a block, so that chance does not leave a block of one message.
    step = min(max((BLOCK_BYTES - BLOCK_BYTES // 8) // max(row_bytes, 1), 1), writer.block_rows)
    due_ms, offsets = keys
    for low in range(0, len(due_ms), step):
        run = (due_ms[low : low + step], offsets[low : low + step])
        writer.append(topic_id, run, Fetch(topic_id, run, memory, disk).read())
