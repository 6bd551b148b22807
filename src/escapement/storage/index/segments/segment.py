"""Segments: immutable files of messages, sorted by topic, due time and offset.

This module owns the format of the file and reads it (``writer.py`` writes it). A segment is

    ========  =====================================================================
    header    16 bytes: magic, version
    blocks    for each topic by id, for each run of its messages by key: a block
              of keys, a block of the messages themselves and, if any trait is
              not 0, a block of their traits
    footer    a block with the directory: int64 columns, one row for each topic
              (id, first run) and one for each run (``RUN_COLUMNS``)
    trailer   32 bytes: footer's position and size, checksum, magic
    ========  =====================================================================

A *run* is a sequence of up to some thousand messages of one topic, in the order of their *keys*
``(due_ms, offset)``. Runs are numbered from 0 in the file. The *traits* of a message are 32 bits
with its priority and a hash of its message key. The *directory* is the table of contents.

Keys and messages lie in separate blocks, so a scan of keys reads no payload. The directory stays
in memory (80 bytes for a run of up to 4096 messages), so readers find blocks without a read.

This module knows nothing of manifests, of memory tables or of which messages are live. Invariants:
every byte of a file is covered by a checksum or compared with its expected value; the runs of a
topic are disjoint and ascending; a file is never changed once it has its trailer. Reads name
their position in the file and are safe in any thread. The file is closed when the last reference
to the segment is gone, so readers can go on after the file is unlinked.
"""

from __future__ import annotations

import itertools
import os
import struct
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged
from escapement.message import Int64s, UInt32s
from escapement.storage.index.columns import Columns, Pick
from escapement.storage.index.keys import Key, Keys, match, position
from escapement.storage.index.plan import Landmarks, NotAtHand, Source
from escapement.storage.index.segments.block import (
    FOOTER,
    HEADER_BYTES,
    Block,
    BlockCache,
    KeyBlock,
    MessageBlock,
    TraitBlock,
    decode,
)
from escapement.storage.index.segments.read_failure import read_failure

_MAGIC: Final = b"escapement index segment"[:12]
HEADER: Final = _MAGIC + struct.pack("<I", 1)
TRAILER: Final = struct.Struct("<QQ")
TRAILER_END: Final = b"end of seg 1"
TRAILER_BYTES: Final = TRAILER.size + 4 + len(TRAILER_END)
# A run has at most this many messages: enough to read at disk speed, few enough to process in one
# step without holding the interpreter lock for long.
BLOCK_ROWS: Final = 4096
# The messages of a run have at most this size, so that a few blocks of every segment fit into the
# cache. A larger message is a run of its own.
BLOCK_BYTES: Final = 1 << 20
# The columns of the directory that describe runs: the first and the last key of a run, the bounds
# of its offsets, its number of messages, the position of its blocks, and the size of the block of
# messages.
RUN_COLUMNS: Final = (
    "first_ms",
    "first_offset",
    "last_ms",
    "last_offset",
    "low_offset",
    "high_offset",
    "rows",
    "at",
    "message_bytes",
    "most_traits",  # the highest traits of a message; 0: the run has no block of traits
)
COUNTS: Final = struct.Struct("<QQ")

B = TypeVar("B", KeyBlock, MessageBlock, TraitBlock)


class Segment:
    """A complete segment file, open for reading."""

    _numbers = itertools.count()

    def __init__(self, path: Path, cache: BlockCache) -> None:
        """Open the file, and verify header, trailer and directory; blocking.

        Raises:
          IndexDamaged: if the file is missing, torn or altered.
          StorageError: if a limit of the process prevents opening it.
        """
        self.path = path
        self._cache = cache
        self._number = next(self._numbers)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise read_failure(path, error) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.size_bytes = os.fstat(self._descriptor).st_size
        if self._read(0, len(HEADER)) != HEADER:
            raise IndexDamaged(
                f"{path}: not a segment of the delayed index, or of an unknown version"
            )
        counts, topics, runs = self._read_directory()
        self.topic_ids = topics[0]
        self._first_runs = np.append(topics[1], counts)
        columns = dict(zip(RUN_COLUMNS, runs, strict=True))
        self.first_ms, self.first_offset = columns["first_ms"], columns["first_offset"]
        self.last_ms, self.last_offset = columns["last_ms"], columns["last_offset"]
        self.low_offset, self.high_offset = columns["low_offset"], columns["high_offset"]
        self.at, self.message_bytes = columns["at"], columns["message_bytes"]
        self.run_rows = columns["rows"]
        self.most_traits = columns["most_traits"]
        self.rows_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.run_rows)))

    def _read_directory(self) -> tuple[int, Int64s, Int64s]:
        trailer = self._read(self.size_bytes - TRAILER_BYTES, TRAILER_BYTES)
        at, size = TRAILER.unpack_from(trailer)
        checksum = struct.pack("<I", crc32(trailer[: TRAILER.size]))
        if trailer[TRAILER.size :] != checksum + TRAILER_END:
            raise IndexDamaged(f"{self.path}: torn, its trailer is missing or damaged")
        if at + size + TRAILER_BYTES != self.size_bytes:
            raise IndexDamaged(f"{self.path}: its directory is not where its trailer points")
        _, body = decode(self._read(at, size), FOOTER, str(self.path))
        if len(body) < COUNTS.size or len(body) % 8:
            raise IndexDamaged(f"{self.path}: its directory has the wrong size")
        topic_count, run_count = COUNTS.unpack_from(body)
        columns = np.frombuffer(body, "<i8", offset=COUNTS.size)
        height = len(RUN_COLUMNS)
        if len(columns) != 2 * topic_count + height * run_count:
            raise IndexDamaged(f"{self.path}: its directory has the wrong size")
        topics = columns[: 2 * topic_count].reshape(2, topic_count)
        runs = columns[2 * topic_count :].reshape(height, run_count)
        self._check_directory(topics, runs)
        return run_count, topics, runs

    def _check_directory(self, topics: Int64s, runs: Int64s) -> None:
        """Raise ``IndexDamaged`` if a directory with a correct checksum contradicts itself."""
        ids, first_runs = topics
        starts = np.append(first_runs, runs.shape[1])
        columns = dict(zip(RUN_COLUMNS, runs, strict=True))
        sizes = np.array([columns["rows"], columns["at"], columns["message_bytes"]])
        if not (
            (np.diff(ids) > 0).all()
            and starts[0] == 0
            and (np.diff(starts) > 0).all()
            and (columns["rows"] > 0).all()
            and ((sizes >= 0) & (sizes <= self.size_bytes)).all()
            and ((columns["most_traits"] >= 0) & (columns["most_traits"] < 2**32)).all()
        ):
            raise IndexDamaged(f"{self.path}: its directory contradicts itself")

    @property
    def rows(self) -> int:
        return int(self.rows_before[-1])

    def rows_from(self, due_ms: int) -> int:
        """Return how many messages are in runs that begin at or after the time ``due_ms``."""
        return int(self.run_rows[self.first_ms >= due_ms].sum())

    @property
    def first_due_ms(self) -> int:
        """The earliest due time of all messages in the segment."""
        return int(self.first_ms.min())

    def topic_rows(self) -> Int64s:
        """Return the number of messages of each topic, in the order of ``topic_ids``."""
        ends: Int64s = self.rows_before[self._first_runs]
        return np.diff(ends)

    def topic_offsets(self) -> tuple[Int64s, Int64s]:
        """Return the lowest and the highest offset of each topic, in the order of ``topic_ids``."""
        firsts = self._first_runs[:-1]
        low = np.minimum.reduceat(self.low_offset, firsts)
        return low, np.maximum.reduceat(self.high_offset, firsts)

    def slice(self, topic_id: int) -> TopicSlice | None:
        """Return a topic's part of the segment, or None if it has none; O(log topics)."""
        row = int(self.topic_ids.searchsorted(topic_id))
        if row == len(self.topic_ids) or self.topic_ids[row] != topic_id:
            return None
        return TopicSlice(self, int(self._first_runs[row]), int(self._first_runs[row + 1]))

    def remember(self, at: int, block: Block) -> None:
        """Put the block that is at position ``at`` of the file into the block cache."""
        self._cache.put((self._number, at), block)

    def key_block(self, run: int, at_hand: bool = False) -> KeyBlock:
        """Return the block with the keys of a run; blocking unless ``at_hand``.

        Args:
          run: the number of the run.
          at_hand: look only into the block cache.

        Raises:
          NotAtHand: if ``at_hand`` is true and the block is not cached.
          IndexDamaged: if the block fails its checksum.
        """
        size = HEADER_BYTES + 16 * int(self.run_rows[run])
        return self._block(KeyBlock, int(self.at[run]), size, at_hand)

    def message_block(self, run: int, at_hand: bool = False) -> MessageBlock:
        """Return the block with the messages of a run; blocking unless ``at_hand``.

        Args:
          run: the number of the run.
          at_hand: look only into the block cache.

        Raises:
          NotAtHand: if ``at_hand`` is true and the block is not cached.
          IndexDamaged: if the block fails its checksum.
        """
        at = int(self.at[run]) + HEADER_BYTES + 16 * int(self.run_rows[run])
        return self._block(MessageBlock, at, int(self.message_bytes[run]), at_hand)

    def _block(self, kind: type[B], at: int, size: int, at_hand: bool = False) -> B:
        address = (self._number, at)
        block = self._cache.get(address)
        if block is None:
            if at_hand:
                raise NotAtHand
            block = kind.decode(self._read(at, size), f"{self.path} at {at}")
            self._cache.put(address, block)
        assert isinstance(block, kind)
        return block

    def traits(self, run: int) -> UInt32s | None:
        """Return the traits of the messages of a run, or None if all are 0; blocking."""
        if not self.most_traits[run]:
            return None
        rows = int(self.run_rows[run])
        at = int(self.at[run]) + HEADER_BYTES + 16 * rows + int(self.message_bytes[run])
        return self._block(TraitBlock, at, HEADER_BYTES + 4 * rows).traits

    def _read(self, at: int, size: int) -> bytes:
        if not 0 <= at <= at + size <= self.size_bytes:  # before memory is taken for it
            raise IndexDamaged(f"{self.path}: has {self.size_bytes} bytes, not {size} at {at}")
        try:
            data = os.pread(self._descriptor, size, at)
        except OSError as error:
            raise IndexDamaged(f"{self.path} at {at}: {error.strerror}") from error
        if len(data) != size:
            raise IndexDamaged(f"{self.path}: torn, has {len(data)} of {size} bytes at {at}")
        return data


class TopicSlice:
    """One topic's part of a segment: the runs with its messages."""

    __slots__ = ("_columns", "_high", "_low", "most_traits", "offset_range", "segment")

    def __init__(self, segment: Segment, low: int, high: int) -> None:
        self.segment = segment
        self._low = low
        self._high = high
        part = slice(low, high)
        self.most_traits = int(segment.most_traits[part].max())
        # The lowest and the highest offset of the topic's messages in the segment.
        self.offset_range = (
            int(segment.low_offset[part].min()),
            int(segment.high_offset[part].max()),
        )
        self._columns = (
            (segment.first_ms[part], segment.first_offset[part]),
            (segment.last_ms[part], segment.last_offset[part]),
        )

    @property
    def rows(self) -> int:
        return self.rows_in(self._low, self._high)

    @property
    def message_bytes(self) -> int:
        return int(self.segment.message_bytes[self._low : self._high].sum())

    @property
    def runs(self) -> range:
        """The numbers of the topic's runs in the segment."""
        return range(self._low, self._high)

    def rows_in(self, low: int, high: int) -> int:
        return int(self.segment.rows_before[high] - self.segment.rows_before[low])

    def between(self, start: Key, until: Key) -> SliceSpan | None:
        """Return the runs that may have keys in ``[start, until)``, or None if there are none."""
        firsts, lasts = self._columns
        low = self._low + position(*lasts, start)
        high = self._low + position(*firsts, until)
        return SliceSpan(self, low, high, start, until) if low < high else None

    def may_hold(self, keys: Keys) -> bool:
        """Return False if no message with one of these keys is here.

        The answer comes from the segment's directory, without reading blocks. So True means that
        messages may be here.

        Complexity: O(keys).
        """
        due_ms, offsets = keys
        firsts, lasts = self._columns
        low, high = self.offset_range
        here = (due_ms >= firsts[0][0]) & (due_ms <= lasts[0][-1])
        here &= (offsets >= low) & (offsets <= high)
        return bool(here.any())

    def next_due_ms(self, after: Key) -> int | None:
        """Return when the topic's first message at or past the key ``after`` is due.

        Returns None if there is no such message, and ``after.due_ms`` if the exact time would have
        to be read from disk.
        """
        firsts, lasts = self._columns
        run = position(*lasts, after)
        if run == len(lasts[0]):
            return None
        if Key(int(firsts[0][run]), int(firsts[1][run])) >= after:
            return int(firsts[0][run])
        try:
            keys = self.segment.key_block(self._low + run, at_hand=True).keys
        except NotAtHand:
            return after.due_ms
        return int(keys[0][position(*keys, after)])

    def find(self, due_ms: Int64s, offsets: Int64s, at_hand: bool = False) -> list[Pick]:
        """Return picks of the messages with these keys that are here; blocking unless ``at_hand``.

        The positions in the picks are indexes of the given keys.

        Args:
          due_ms: the due time of each key. The keys must be sorted.
          offsets: the offset of each key.
          at_hand: look only into the block cache.

        Raises:
          NotAtHand: if ``at_hand`` is true and a block would have to be read from disk.
          IndexDamaged: if a block fails its checksum.
        """
        return [
            Pick(positions, self.segment.message_block(run, at_hand).columns, rows)
            for run, positions, rows in self._matches(due_ms, offsets, at_hand)
        ]

    def _matches(
        self, due_ms: Int64s, offsets: Int64s, at_hand: bool
    ) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yield each run that has some of the given sorted keys.

        Yields the number of the run, the indexes of these keys among the given ones, and their
        rows in the run.
        """
        firsts, lasts = self._columns
        low = position(*lasts, Key(int(due_ms[0]), int(offsets[0])))
        high = position(*firsts, Key(int(due_ms[-1]), int(offsets[-1])).successor())
        for run in range(low, high):
            begin = position(due_ms, offsets, Key(int(firsts[0][run]), int(firsts[1][run])))
            last = Key(int(lasts[0][run]), int(lasts[1][run]))
            end = position(due_ms, offsets, last.successor())
            if begin < end:
                part = slice(begin, end)
                rows = self._rows_in_run(self._low + run, due_ms[part], offsets[part], at_hand)
                positions = np.flatnonzero(rows >= 0)
                if len(positions):
                    yield self._low + run, positions + begin, rows[positions]

    def _rows_in_run(self, run: int, due_ms: Int64s, offsets: Int64s, at_hand: bool) -> Int64s:
        segment = self.segment
        low, high = segment.low_offset[run], segment.high_offset[run]
        if not ((offsets >= low) & (offsets <= high)).any():
            return np.zeros(0, np.int64)
        return match(segment.key_block(run, at_hand).keys, (due_ms, offsets))


def _columns(segment: Segment, run: int) -> Columns:
    """Return the columns of the messages of a run; blocking."""
    return segment.message_block(run).columns


class SliceSpan:
    """The runs of a topic in a segment that may have keys in a plan's range; a ``plan.Span``."""

    on_disk: Final = True

    __slots__ = ("_high", "_low", "_slice", "_start", "_until")

    def __init__(self, slice_: TopicSlice, low: int, high: int, start: Key, until: Key) -> None:
        self._slice = slice_
        self._low = low
        self._high = high
        self._start = start
        self._until = until

    @property
    def count(self) -> int:
        return self._slice.rows_in(self._low, self._high)

    @property
    def likely_count(self) -> int:
        """An estimate of the number of messages in the range, from the directory alone.

        It assumes that the messages of the first and the last run are spread evenly in time.
        """
        segment = self._slice.segment
        count = self.count
        for run in {self._low, self._high - 1}:
            first_ms, last_ms = int(segment.first_ms[run]), int(segment.last_ms[run])
            inside_ms = min(last_ms, self._until.due_ms) - max(first_ms, self._start.due_ms)
            if first_ms < self._start.due_ms or last_ms >= self._until.due_ms:
                share = max(inside_ms, 0) / max(last_ms - first_ms, 1)
                count -= round(int(segment.run_rows[run]) * (1 - min(share, 1)))
        return count

    def landmarks(self, wanted: int, stride: int) -> Landmarks:
        """Return the first and last keys of runs, as far as these keys lie in the range.

        Uses runs with about ``wanted`` messages, from the start of the range on.
        """
        segment = self._slice.segment
        # The first run may lie mostly before the range, so its messages do not count.
        reach = int(segment.rows_before[self._low + 1]) + wanted
        high = min(self._high, int(segment.rows_before.searchsorted(reach)))
        part = slice(self._low, max(high, self._low + 1))
        firsts = (segment.first_ms[part], segment.first_offset[part])
        lasts = (segment.last_ms[part], segment.last_offset[part])
        half = segment.run_rows[part] / 2
        begin = position(*firsts, self._start)
        end = position(*lasts, self._until)
        return Landmarks(
            np.concatenate((firsts[0][begin:], lasts[0][:end])),
            np.concatenate((firsts[1][begin:], lasts[1][:end])),
            np.concatenate((half[begin:], half[:end])),
            np.arange(len(half) - begin + end) >= len(half) - begin,
        )

    def keys(self, stop: Key) -> list[Keys]:
        keys = []
        for run, part in self._parts(stop):
            due_ms, offsets = self._slice.segment.key_block(run).keys
            keys.append((due_ms[part], offsets[part]))
        return keys

    def traits(self, stop: Key) -> list[UInt32s | None]:
        found = []
        for run, part in self._parts(stop):
            traits = self._slice.segment.traits(run)
            found.append(None if traits is None else traits[part])
        return found

    def sources(self, stop: Key) -> list[Source]:
        segment = self._slice.segment
        return [
            Source(partial(_columns, segment, run), np.arange(part.start, part.stop))
            for run, part in self._parts(stop)
        ]

    def _parts(self, stop: Key) -> Iterator[tuple[int, slice]]:
        """Yield the number of each run with keys of the span below ``stop``, and their slice.

        The slice selects those rows of the run. It may be empty.
        """
        segment = self._slice.segment
        for run in range(self._low, self._high):
            if Key(int(segment.first_ms[run]), int(segment.first_offset[run])) >= stop:
                return
            keys = segment.key_block(run).keys
            low = position(*keys, self._start) if run == self._low else 0
            yield run, slice(low, max(low, position(*keys, stop)))
