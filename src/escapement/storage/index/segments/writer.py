"""Writing a segment: an immutable file of messages, whose format is in ``segment.py``.

The messages of a topic are cut into *runs* of up to some thousand messages. The writer writes the
blocks of each run, and collects the *directory*, the table of contents that comes at the end of the
file. The file is part of the index only when the directory and the trailer are written, the file is
fsynced, and a manifest names it. This module does not know where messages come from or which are
still needed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import StorageError
from escapement.failpoints import failpoint
from escapement.message import Buffer, MessageBatch, cuts
from escapement.storage.directory import sync_directory
from escapement.storage.index.keys import Key, Keys, is_sorted
from escapement.storage.index.segments.block import (
    FOOTER,
    KeyBlock,
    MessageBlock,
    TraitBlock,
    encode,
)
from escapement.storage.index.segments.direct_file import DirectFile
from escapement.storage.index.segments.due_soon_blocks import DueSoonBlocks
from escapement.storage.index.segments.segment import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    COUNTS,
    HEADER,
    RUN_COLUMNS,
    TRAILER,
    TRAILER_END,
)
from escapement.traits import traits_of

# The size of the file's write buffer. Larger pieces are written without a copy.
_WRITE_BYTES: Final = 1 << 16

# Callers append messages for about this many blocks at once. With more messages, each one has a
# smaller part of the cost of a numpy call. With fewer, a step takes less memory: here, a few MB.
_STEP_BLOCKS: Final = 8


class SegmentWriter:
    """Writes one segment: topics in ascending order of ids, the messages of each in key order."""

    def __init__(
        self,
        path: Path,
        block_rows: int = BLOCK_ROWS,
        bulk: bool = False,
        due_soon: DueSoonBlocks | None = None,
    ) -> None:
        """Create the file and write its header; blocking.

        Args:
          path: the path of the file, which must not exist.
          block_rows: a run has at most this many messages.
          bulk: the file is large and not read soon. Write it past the operating system's page
            cache (see ``DirectFile``).
          due_soon: collects copies of the blocks whose messages are due soon.
        """
        self.path = path
        self.rows = 0
        self._due_soon = due_soon or DueSoonBlocks(-1, 0)
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
        """Yield slices that divide ``count`` messages into steps for ``append``.

        The messages of a step fill a few blocks, so large messages need no more memory than small
        ones.

        Args:
          row_bytes: the mean size of a message.
        """
        # A step fills half a block less than ``_STEP_BLOCKS``. Then it fits into that many blocks
        # even if its messages are larger than the mean, and does not end with a tiny block.
        rows = (_STEP_BLOCKS * BLOCK_BYTES - BLOCK_BYTES // 2) // max(row_bytes, 1)
        step = min(max(rows, 1), _STEP_BLOCKS * self._block_rows)
        for low in range(0, count, step):
            yield slice(low, min(low + step, count))

    def append(self, topic_id: int, keys: Keys, batch: MessageBatch) -> None:
        """Write messages of a topic; blocking.

        Topics must ascend from call to call, and so must the keys of a topic.
        """
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
        blocks = [KeyBlock.encode(keys), MessageBlock.encode(batch)]
        traits = traits_of(batch)
        most_traits = 0
        if traits is not None:
            most_traits = int(traits.max())
            blocks.append(TraitBlock.encode(traits))
        at = self._at
        self._due_soon.take(self._topics[-1][0], at, int(due_ms[0]), blocks)
        sizes = [self._write(block) for block in blocks]
        self._runs.append((*map(int, bounds), len(batch), at, sizes[1], most_traits))

    def _write(self, pieces: Sequence[Buffer]) -> int:
        self._file.writelines(pieces)
        size = sum(map(len, pieces))
        self._at += size
        return size

    def finish(self) -> None:
        """Write the directory and the trailer, and make the file durable; blocking.

        Fsyncs the file, closes it, and fsyncs its parent directory.
        """
        topics = np.array(self._topics, "<i8").reshape(-1, 2)
        runs = np.array(self._runs, "<i8").reshape(-1, len(RUN_COLUMNS))
        counts = COUNTS.pack(len(topics), len(runs))
        body = counts + topics.T.tobytes() + runs.T.tobytes()
        at = self._at
        trailer = TRAILER.pack(at, self._write(encode(FOOTER, len(runs), [body])))
        self._write([trailer, struct.pack("<I", crc32(trailer)), TRAILER_END])
        self._file.flush()
        failpoint("before_fsync")
        os.fsync(self._file.fileno())
        self._file.close()
        sync_directory(self.path.parent)
        failpoint("after_fsync")

    def discard(self) -> None:
        """Give up the segment and delete its file. If that fails, the next start deletes it."""
        with suppress(OSError):  # closing writes buffered bytes, which fails on a full disk
            self._file.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` in the block into a ``StorageError`` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}. Is the disk full?") from error


@contextmanager
def whole_segment(
    path: Path,
    block_rows: int = BLOCK_ROWS,
    bulk: bool = True,
) -> Iterator[SegmentWriter]:
    """Provide a writer for a segment, and make the segment durable when the ``with`` block ends.

    If no messages were written, or after an error, no file is left.

    Args:
      path: the path of the file, which must not exist.
      block_rows: a run has at most this many messages.
      bulk: write the file past the operating system's page cache.

    Raises:
      StorageError: if writing to the disk fails.
    """
    with writing(path):
        writer = SegmentWriter(path, block_rows, bulk)
        try:
            yield writer
            if writer.rows:
                writer.finish()
            else:
                writer.discard()
        except BaseException:
            writer.discard()
            raise


def _cuts(batch: MessageBatch, block_rows: int) -> Iterable[tuple[int, int]]:
    """Cut a batch into runs, which are bounded in messages and bytes.

    Returns the first row and the end of each run.
    """
    count = len(batch)
    if count <= block_rows and batch.size_bytes <= BLOCK_BYTES:
        return [(0, count)]
    return cuts(batch.string_sizes() + 4, BLOCK_BYTES, block_rows)
