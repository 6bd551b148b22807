"""Writing a segment: the file and its durability.

Owns how a segment comes to be: the directory is gathered while blocks are written, and
the file counts for nothing until footer and trailer are there, it is fsynced, and a
manifest names it. Knows nothing of where messages come from and which are live.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import StorageError
from escapement.message import Buffer, MessageBatch
from escapement.storage.directory import sync_directory
from escapement.storage.index.block import FOOTER, KeyBlock, MessageBlock, TraitBlock, encode
from escapement.storage.index.directfile import DirectFile
from escapement.storage.index.keys import Key, Keys, is_sorted
from escapement.storage.index.near import NearBlocks
from escapement.storage.index.segment import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    COUNTS,
    HEADER,
    RUN_COLUMNS,
    TRAILER,
    TRAILER_END,
)
from escapement.traits import traits_of

# Gathered before a write to the file; what is larger is written as it is, without a copy.
_WRITE_BYTES: Final = 1 << 16

# Blocks that are gathered at once: numpy's price for a call is shared by many rows, at
# the price of a few megabytes.
_STEP_BLOCKS: Final = 8


class SegmentWriter:
    """Writes one segment, topic after topic in ascending ids, keys ascending in each."""

    def __init__(
        self,
        path: Path,
        block_rows: int = BLOCK_ROWS,
        bulk: bool = False,
        near: NearBlocks | None = None,
    ) -> None:
        """``bulk``: it is one of many that are not read soon (``DirectFile``).

        Args:
          near: takes the blocks that are read soon.
        """
        self.path = path
        self.rows = 0
        self._near = near or NearBlocks(-1, 0)
        self._block_rows = block_rows
        self._topics: list[tuple[int, int]] = []
        self._runs: list[tuple[int, ...]] = []
        self._last_key: Key | None = None
        self._at = len(HEADER)
        self._file: BinaryIO | DirectFile = (
            DirectFile(path) if bulk else path.open("xb", buffering=_WRITE_BYTES)
        )
        self._file.write(HEADER)

    def steps(self, count: int, row_bytes: int) -> Iterator[slice]:
        """How to cut ``count`` messages of this weight on average, to append part by part.

        Each part makes a few blocks, and no more memory is needed for large messages than
        for small ones.
        """
        # Half a block less, so that chance does not leave a block of a few messages.
        rows = (_STEP_BLOCKS * BLOCK_BYTES - BLOCK_BYTES // 2) // max(row_bytes, 1)
        step = min(max(rows, 1), _STEP_BLOCKS * self._block_rows)
        for low in range(0, count, step):
            yield slice(low, min(low + step, count))

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
        for low, high in _cuts(batch, self._block_rows):
            rows = slice(low, high)
            self._write_run((keys[0][rows], keys[1][rows]), batch.part(low, high))
        self.rows += len(batch)

    def _write_run(self, keys: Keys, batch: MessageBatch) -> None:
        due_ms, offsets = keys
        bounds = due_ms[0], offsets[0], due_ms[-1], offsets[-1], offsets.min(), offsets.max()
        at = self._at
        self._write(KeyBlock.encode(keys))
        message_bytes = self._write(MessageBlock.encode(batch))
        traits = traits_of(batch)
        most_traits = 0
        if traits is not None:
            most_traits = int(traits.max())
            self._write(TraitBlock.encode(traits))
        self._near.take(self._topics[-1][0], at, keys, batch, traits)
        self._runs.append((*map(int, bounds), len(batch), at, message_bytes, most_traits))

    def _write(self, pieces: Sequence[Buffer]) -> int:
        self._file.writelines(pieces)
        size = sum(map(len, pieces))
        self._at += size
        return size

    def finish(self) -> None:
        """Write directory and trailer; the file is complete, not yet on disk."""
        topics = np.array(self._topics, "<i8").reshape(-1, 2)
        runs = np.array(self._runs, "<i8").reshape(-1, len(RUN_COLUMNS))
        counts = COUNTS.pack(len(topics), len(runs))
        body = counts + topics.T.tobytes() + runs.T.tobytes()
        at = self._at
        trailer = TRAILER.pack(at, self._write(encode(FOOTER, len(runs), [body])))
        self._write([trailer, struct.pack("<I", crc32(trailer)), TRAILER_END])
        self._file.flush()

    def sync(self) -> None:
        """Make the file durable, and its name; blocking."""
        os.fsync(self._file.fileno())
        self._file.close()
        sync_directory(self.path.parent)

    def discard(self) -> None:
        """Give the file up and delete it."""
        with suppress(OSError):  # a full disk refuses what is still in the buffer
            self._file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside it, what the operating system refuses is a ``StorageError`` about ``path``."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}; is the disk full?") from error


def _cuts(batch: MessageBatch, block_rows: int) -> list[tuple[int, int]]:
    """Where a batch is cut into runs by rows and bytes."""
    count = len(batch)
    if count <= block_rows and batch.size_bytes <= BLOCK_BYTES:
        return [(0, count)]
    weights = np.full(count, 4, np.int64)
    for column in (batch.payloads, batch.keys, batch.properties, batch.groups):
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
