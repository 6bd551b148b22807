"""The delayed index: one bundle's messages in delivery order, with their payloads.

It holds the second order of a topic's messages, by ``(due_ms, offset)``, as a small LSM tree. New
messages gather in memory tables. A checkpoint turns them into an immutable segment and a manifest
that names the log position up to which the segments are complete. Compaction merges segments. The
index is a function of the log: if it is damaged or missing, it is discarded and filled again from
the log.

It is a *set* of keys for each topic. Adding a key again changes nothing, and readers merge
duplicates. So a caller that may have lost messages adds them again without a check.

It must not know which messages are acknowledged, cancelled or due: callers say which to keep, and
ask for ranges. It reads no clock and starts no thread. Methods marked *blocking* access the disk
and may run in a thread. All others belong to one thread and are one synchronous step.

A message arrives here after its COMMIT, together with its offset and due time. It leaves as a key
of a plan (into the wheel, or into a subscription with a backlog) and as a row of a fetch (to a
consumer).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from escapement.errors import StorageError
from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.storage.index.checkpoint import Checkpoint
from escapement.storage.index.keys import MAX_DUE_MS, Key, Keys
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.memory import Generation, MemoryTable
from escapement.storage.index.merging.compaction import Compaction, LiveCount, size_of
from escapement.storage.index.merging.tiers import choose
from escapement.storage.index.plan import Fetch, Plan, Span, Store, places_missing
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.due_soon_blocks import DueSoonBlocks
from escapement.storage.index.segments.manifest import (
    MANIFEST_NAME,
    Failpoint,
    Manifest,
    ManifestFile,
    no_failpoint,
)
from escapement.storage.index.segments.segment import TopicSlice
from escapement.storage.index.segments.segment_set import Segments
from escapement.traits import FIRST_PRIORITY, traits_of

# One topic's due-soon blocks may take the bytes of the block cache divided by this.
_DUE_SOON_SHARE: Final = 8


class DelayedIndex:
    """The delayed index of one bundle."""

    def __init__(
        self,
        directory: Path,
        limits: IndexLimits,
        manifest: ManifestFile,
        segments: Segments,
        cache: BlockCache,
        failpoint: Failpoint,
    ) -> None:
        """Use :meth:`open`."""
        self.limits = limits
        self._directory = directory
        self._manifest = manifest
        self._cache = cache
        self._failpoint = failpoint
        self.full_checkpoints = 0  # begun since the opening because memory was half full
        # Messages due by this time may have been left out, or are about to be. It never decreases,
        # even if the wall clock does. A caller that needs such a message again adds it again,
        # whether it is due or not.
        self.forgotten_until_ms = manifest.current.forgotten_until_ms if manifest.current else 0
        self._segments = segments
        self._active = Generation(limits.table_rows, limits.kept_bytes)
        self._frozen: list[Generation] = []
        self._dropped: set[int] = set()
        self._checkpoint: Checkpoint | None = None
        self._compaction: Compaction | None = None

    # -- opening and discarding -------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: Path,
        limits: IndexLimits | None = None,
        failpoint: Failpoint = no_failpoint,
    ) -> DelayedIndex:
        """Open the index of a directory, which is made if missing; blocking.

        Verifies the manifest and every segment's directory (blocks are verified when they are
        read), and deletes files that a crash left behind.

        Raises:
          StorageError: if the directory cannot be made.
          IndexDamaged: call :meth:`discard`, open again and fill the index from the log.
        """
        limits = limits or IndexLimits()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"Cannot use the index directory {directory}: {error.strerror}"
            ) from error
        manifest = ManifestFile(directory, failpoint)
        cache = BlockCache(limits.cache_bytes)
        named = manifest.current.segments if manifest.current else {}
        segments = Segments.open(directory, named, cache)
        for path in directory.iterdir():
            if path.name != MANIFEST_NAME and path.name not in named:
                path.unlink()
        return cls(directory, limits, manifest, segments, cache, failpoint)

    @staticmethod
    def discard(directory: Path) -> None:
        """Delete the index of a directory, the manifest first; blocking."""
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        for path in directory.glob("*"):
            path.unlink(missing_ok=True)

    @property
    def manifest(self) -> Manifest | None:
        """The newest durable state; None before the first checkpoint."""
        return self._manifest.current

    # -- adding -----------------------------------------------------------------

    def add(
        self, topic_id: int, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch
    ) -> UInt32s | None:
        """Add messages of the log; known ones do no harm. O(bytes).

        Successive calls should ascend as well: each ascending stream has its own table. The index
        refers to the bytes of a large batch without a copy. They must not change afterwards.

        Args:
          offsets: strictly ascending, or the first of contiguous ones.

        Returns:
          The messages' traits, or None if all are 0.
        """
        assert len(due_ms) == len(batch)
        traits = traits_of(batch)
        if len(due_ms) and topic_id not in self._dropped:
            assert due_ms.min() >= 0
            assert due_ms.max() <= MAX_DUE_MS
            if not isinstance(offsets, int):
                assert len(offsets) == len(batch)
                assert bool((offsets[1:] > offsets[:-1]).all()), "offsets must ascend"
            self._active.append(topic_id, offsets, due_ms, batch, traits)
        return traits

    def drop_topic(self, topic_id: int) -> None:
        """Remove a topic: at once from memory and for readers, and from disk by later merges.

        Topic ids are never reused, so nothing is written to disk. After a start, the caller drops
        every topic of :meth:`topics` that does not exist.
        """
        self._dropped.add(topic_id)
        for generation in self._generations():
            generation.drop(topic_id)

    # -- reading ----------------------------------------------------------------

    def plan(self, topic_id: int, start: Key, until: Key, max_messages: int) -> Plan:
        """Pin the messages in ``[start, until)``, cut after about ``max_messages``.

        ``plan.stop`` is where the next plan starts. If the range has a message, at least one lies
        before it. The cut misses ``max_messages`` by at most a block (4096 messages) for each
        segment. O(tables + segments) binary searches.
        """
        spans = self._spans(topic_id, start, until)
        return Plan(spans, until, max_messages)

    def count_between(self, topic_id: int, start: Key, until: Key) -> int:
        """Estimate the entries in ``[start, until)``; obsolete and duplicate ones count.

        The messages in the first and last block of each segment are assumed to be spread evenly in
        time. O(tables + segments) searches.
        """
        return sum(span.likely_count for span in self._spans(topic_id, start, until))

    def most_between(self, topic_id: int, start: Key, until: Key) -> int:
        """Return an upper bound of the entries in ``[start, until)``, at the same cost."""
        return sum(span.count for span in self._spans(topic_id, start, until))

    def _spans(self, topic_id: int, start: Key, until: Key) -> list[Span]:
        spans: list[Span] = []
        if start < until:
            for table in self._tables(topic_id):
                for run in table.runs():
                    found = run.between(start, until, table.columns)
                    spans += [found] if found else []
            for part in self._slices_of(topic_id):
                span = part.between(start, until)
                spans += [span] if span else []
        return spans

    def has_priorities(self, topic_id: int) -> bool:
        """Whether a topic has, or may have, entries with a priority other than the default.

        It is unknown for segments of the first version.
        """
        highest = [table.most_traits for table in self._tables(topic_id)]
        highest += [part.most_traits for part in self._slices_of(topic_id)]
        return max(highest, default=0) >= FIRST_PRIORITY

    def fetch(
        self, topic_id: int, due_ms: Int64s, offsets: Int64s, staged: Store | None = None
    ) -> Fetch:
        """Pin the messages of keys that plans returned; rows come in the order of the keys.

        Args:
          staged: a store outside the index, searched first and at once.
        """
        keys: Keys = (due_ms, offsets)
        found = [] if staged is None else staged.find(due_ms, offsets)
        missing = places_missing(len(offsets), found)
        if not len(missing):
            return Fetch(topic_id, keys, (), (), found)
        left = keys if not found else (due_ms[missing], offsets[missing])
        disk = [part for part in self._slices_of(topic_id) if part.may_hold(left)]
        return Fetch(topic_id, keys, list(self._tables(topic_id)), disk, found)

    def next_due(self, topic_id: int, after: Key) -> int | None:
        """Return a lower bound of the due time of the first message at or past ``after``.

        It is exact, except if a segment's block begins before ``after`` and is not cached. Then it
        is ``after.due_ms`` until a plan has read that block.
        """
        due = [run.next_due_ms(after) for t in self._tables(topic_id) for run in t.runs()]
        due += [part.next_due_ms(after) for part in self._slices_of(topic_id)]
        return min((time for time in due if time is not None), default=None)

    def topics(self) -> set[int]:
        """Return the ids of all topics with entries; O(topics)."""
        found: set[int] = set()
        for generation in self._generations():
            found.update(generation.topics)
        for segment in self._segments:
            found.update(segment.topic_ids.tolist())
        return found - self._dropped

    def count(self, topic_id: int) -> int:
        """Return how many entries a topic has; duplicate and obsolete ones count."""
        return sum(table.count for table in self._tables(topic_id)) + sum(
            part.rows for part in self._slices_of(topic_id)
        )

    def mean_bytes(self, topic_id: int) -> float | None:
        """Return the mean size of a topic's messages, about; None if it has none here."""
        tables, parts = list(self._tables(topic_id)), self._slices_of(topic_id)
        rows = sum(table.count for table in tables) + sum(part.rows for part in parts)
        if not rows:
            return None
        in_memory = sum(table.columns.payloads.used for table in tables)
        return (in_memory + sum(part.message_bytes for part in parts)) / rows

    @property
    def memory_bytes(self) -> int:
        """The memory of the tables, without the block cache."""
        return sum(generation.memory_bytes for generation in self._generations())

    @property
    def disk_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether messages that no checkpoint has begun to write use half of the memory."""
        return self._active.memory_bytes >= self.limits.memory_bytes // 2

    @property
    def is_full(self) -> bool:
        """Whether memory is at its bound: add nothing before a checkpoint ends."""
        return self.memory_bytes >= self.limits.memory_bytes

    # -- checkpoints --------------------------------------------------------------

    def begin_checkpoint(self, due_soon_ms: int = -1, far_ms: int = MAX_DUE_MS) -> Checkpoint:
        """Freeze memory, which stays readable, and begin to write it.

        Messages due up to ``due_soon_ms`` stay in the block cache, as far as there is room. If most
        are due after ``far_ms``, the file bypasses the system's cache.

        Follow with ``write`` for each of its ``groups()``, then ``finish``, then
        :meth:`install`; or :meth:`abandon`.
        """
        assert self._checkpoint is None, "one checkpoint at a time"
        self.full_checkpoints += self.needs_checkpoint
        if self._active.rows:
            self._frozen.append(self._active)
            self._active = Generation(self.limits.table_rows, self.limits.kept_bytes)
        self._checkpoint = Checkpoint(
            tuple(self._frozen),
            self._segments.next_path(),
            self.limits.block_rows,
            self._manifest,
            self._cache,
            self._failpoint,
            DueSoonBlocks(due_soon_ms, self.limits.cache_bytes // _DUE_SOON_SHARE),
            far_ms,
        )
        return self._checkpoint

    def install(self, checkpoint: Checkpoint) -> None:
        """Replace the frozen memory by the finished checkpoint's segment."""
        assert checkpoint is self._checkpoint
        assert checkpoint.finished
        self._frozen = [g for g in self._frozen if g not in checkpoint.generations]
        self._checkpoint = None
        self._segments.swap((), checkpoint.segment)

    def abandon(self, checkpoint: Checkpoint) -> None:
        """Give up a checkpoint; the next one writes its messages."""
        assert checkpoint is self._checkpoint
        self._checkpoint = None
        checkpoint.discard()

    # -- compaction ---------------------------------------------------------------

    def choose_compaction(self, live: LiveCount | None = None) -> list[str]:
        """Return the names of segments that are worth merging now; often none.

        ``live`` estimates how many offsets in a range (both ends included) may still be needed;
        see ``LiveCount``. Without it, only sizes count.
        """
        sizes = [size_of(segment, self._dropped, live) for segment in self._segments]
        return choose(sizes, self.limits.max_segments, self.limits.merge_width)

    def begin_compaction(
        self,
        names: Collection[str],
        due_until_ms: int = MAX_DUE_MS,
        far_ms: int = MAX_DUE_MS,
    ) -> Compaction:
        """Begin to merge the named segments; messages due after ``due_until_ms`` are kept.

        If most messages are due after ``far_ms``, the file bypasses the system's cache.

        Follow with ``exclude`` and ``outdate`` for obsolete messages in its ``ranges()``, then
        ``run``, then ``finish``, then :meth:`install_compaction`; or :meth:`abandon_compaction`.
        """
        assert self._compaction is None, "one compaction at a time"
        inputs = self._segments.named(names)
        assert len(inputs) == len(names) > 0
        self.forgotten_until_ms = max(self.forgotten_until_ms, due_until_ms)
        self._compaction = Compaction(
            inputs,
            self._segments.next_path(),
            self._dropped,
            self.limits.block_rows,
            due_until_ms,
            far_ms,
            self._manifest,
            self._cache,
            self._failpoint,
        )
        return self._compaction

    def install_compaction(self, compaction: Compaction) -> None:
        """Replace the inputs by the finished compaction's segment."""
        assert compaction is self._compaction
        assert compaction.finished
        self._compaction = None
        self._segments.swap(compaction.inputs, compaction.segment)

    def abandon_compaction(self, compaction: Compaction) -> None:
        """Give up a compaction; the inputs stay as they are."""
        assert compaction is self._compaction
        self._compaction = None
        compaction.discard()

    # -- internals ----------------------------------------------------------------

    def _generations(self) -> list[Generation]:
        return [*self._frozen, self._active]

    def _tables(self, topic_id: int) -> Iterator[MemoryTable]:
        for generation in self._generations():
            topic = generation.topics.get(topic_id)
            if topic is not None:
                yield from topic.tables

    def _slices_of(self, topic_id: int) -> tuple[TopicSlice, ...]:
        return () if topic_id in self._dropped else self._segments.of(topic_id)
