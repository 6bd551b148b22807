"""The delayed index: the messages of all topics of a broker in delivery order, with payloads.

The log in the database has a topic's messages in the order of arrival. The index has them sorted by
their *key* ``(due_ms, offset)``, as a small LSM tree. New messages gather in memory tables. A
*checkpoint* freezes these tables and writes their messages to an immutable file, a *segment*. It
then writes a *manifest*, which names the segments and the journal positions up to which they are
complete. A *compaction* merges segments. The index is a function of the log: if it is damaged or
missing, it is discarded and filled again from the log.

The index is a *set* of keys for each topic. Adding a key again changes nothing, and readers merge
duplicates. So a caller that may have lost messages adds them again without a check. An *entry* is a
message as stored in one table or segment: a message that was added twice has two entries, and a
message that is no longer needed, an *obsolete* one, keeps its entry until a merge removes it.

The index does not know which messages are acknowledged, cancelled or due: callers say which to
keep, and ask for ranges of keys. It reads no clock and starts no thread. Methods marked *blocking*
access the disk and may run in a thread. All others belong to one thread, and each is one
synchronous step.

Readers work in two steps. A *plan* reads the keys in a range, for the timing wheel or for a
subscription with a backlog. A *fetch* reads the messages of given keys, for a consumer. Both are
*pinned*: when they are made, they take references to the tables and segments that they will read.
A message arrives here after its COMMIT, together with its offset and due time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.sorting import bounds
from escapement.storage.index.checkpoint import Checkpoint
from escapement.storage.index.keys import MAX_DUE_MS, Key, Keys
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.memory import Generation, MemoryTable
from escapement.storage.index.merging.compaction import Compaction, LiveCount, size_of
from escapement.storage.index.merging.tiers import choose
from escapement.storage.index.plan import Fetch, Plan, Span, Store, missing_positions
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.due_soon_blocks import DueSoonBlocks
from escapement.storage.index.segments.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestFile,
)
from escapement.storage.index.segments.segment import TopicSlice
from escapement.storage.index.segments.segment_set import Segments
from escapement.storage.index.segments.writer import writing
from escapement.traits import FIRST_PRIORITY, traits_of

# A checkpoint puts blocks with messages that are due soon into the block cache. Those of one topic
# may take the size of the cache divided by this.
_DUE_SOON_SHARE: Final = 8


class DelayedIndex:
    """The delayed index of a broker: one directory with the messages of all topics."""

    def __init__(
        self,
        directory: Path,
        limits: IndexLimits,
        manifest: ManifestFile,
        segments: Segments,
        cache: BlockCache,
    ) -> None:
        """Create the object for an index on disk. Call :meth:`open` instead."""
        self.limits = limits
        self._directory = directory
        self._manifest = manifest
        self._cache = cache
        # How many checkpoints have begun because memory was half full, since the index was opened.
        self.full_checkpoints = 0
        # Obsolete messages due by this time may have been removed, or a compaction in progress
        # removes them. The time never decreases, even if the wall clock is set back. A caller that
        # needs such a message again must add it again, whether it is due or not.
        self.forgotten_until_ms = manifest.current.forgotten_until_ms if manifest.current else 0
        self._segments = segments
        self._active = Generation(limits.table_rows, limits.kept_bytes)
        self._frozen: list[Generation] = []
        self._dropped: set[int] = set()
        self._checkpoint: Checkpoint | None = None
        self._compaction: Compaction | None = None

    # -- opening and discarding -------------------------------------------------

    @classmethod
    def open(cls, directory: Path, limits: IndexLimits | None = None) -> DelayedIndex:
        """Open the index in ``directory``, which is created if it does not exist; blocking.

        Verifies the manifest and the table of contents of every segment. The rest of a segment is
        verified when it is read. Deletes files that a crash left behind.

        Raises:
          StorageError: if the directory cannot be created or read, a file that a crash left cannot
            be deleted, or a limit of the process prevents opening a file.
          IndexDamaged: if a file is damaged. Then call :meth:`discard`, open the index again and
            fill it from the log.
        """
        limits = limits or IndexLimits()
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
        manifest = ManifestFile(directory)
        cache = BlockCache(limits.cache_bytes)
        named = manifest.current.segments if manifest.current else {}
        segments = Segments.open(directory, named, cache)
        with writing(directory):
            for path in directory.iterdir():
                if path.name != MANIFEST_NAME and path.name not in named:
                    path.unlink()
        return cls(directory, limits, manifest, segments, cache)

    @staticmethod
    def discard(directory: Path) -> None:
        """Delete all files of the index in ``directory``, the manifest first; blocking.

        Raises:
          StorageError: if a file cannot be deleted.
        """
        with writing(directory):
            (directory / MANIFEST_NAME).unlink(missing_ok=True)
            for path in directory.glob("*"):
                path.unlink(missing_ok=True)

    @property
    def manifest(self) -> Manifest | None:
        """The manifest on disk; None before the first checkpoint."""
        return self._manifest.current

    # -- adding -----------------------------------------------------------------

    def add(
        self, topic_id: int, offsets: Int64s | int, due_ms: Int64s, batch: MessageBatch
    ) -> UInt32s | None:
        """Add messages of the log. Messages that the index has already may be added again.

        Offsets should ascend from call to call too: the index has few tables for streams of
        messages that do not follow each other. It may refer to the bytes of a large batch without
        a copy, so they must not change afterwards.

        Args:
          offsets: the offset of each message, strictly ascending; or the first offset, if the
            messages have contiguous offsets.
          due_ms: the due time of each message.
          batch: the messages.

        Returns:
          The traits of the messages (their priorities and hashes of their keys), or None if all
          are 0.

        Complexity: O(bytes).
        """
        assert len(due_ms) == len(batch)
        traits = traits_of(batch)
        if len(due_ms) and topic_id not in self._dropped:
            first_ms, last_ms = bounds(due_ms)
            assert 0 <= first_ms <= last_ms <= MAX_DUE_MS
            if not isinstance(offsets, int):
                assert len(offsets) == len(batch)
                assert bool((offsets[1:] > offsets[:-1]).all()), "offsets must ascend"
            self._active.append(topic_id, offsets, due_ms, batch, traits)
        return traits

    def drop_topic(self, topic_id: int) -> None:
        """Remove a topic: at once from memory and for readers, and from disk by later merges.

        The drop is not recorded on disk. So after each start, the caller drops every topic of
        :meth:`topics` that does not exist any more. Topic ids are never reused.
        """
        self._dropped.add(topic_id)
        for generation in self._generations():
            generation.drop(topic_id)

    # -- reading ----------------------------------------------------------------

    def plan(self, topic_id: int, start: Key, until: Key, max_messages: int) -> Plan:
        """Return a plan that reads a topic's keys in ``[start, until)``, about ``max_messages``.

        The plan ends before the key ``plan.stop``, where the next plan starts. If the range has a
        message, the plan has at least one. It may differ from ``max_messages`` by a block (4096
        messages) for each segment.

        Complexity: O(tables + segments) binary searches, and no disk access before the plan is
        read.
        """
        spans = self._spans(topic_id, start, until)
        return Plan(spans, until, max_messages)

    def count_between(self, topic_id: int, start: Key, until: Key) -> int:
        """Estimate a topic's entries in ``[start, until)``, obsolete and duplicate ones included.

        The messages in the first and last block of each segment are assumed to be spread evenly in
        time.

        Complexity: O(tables + segments) binary searches, without disk access.
        """
        return sum(span.likely_count for span in self._spans(topic_id, start, until))

    def most_between(self, topic_id: int, start: Key, until: Key) -> int:
        """Return an upper bound of the number of a topic's entries in ``[start, until)``.

        Complexity: O(tables + segments) binary searches, without disk access.
        """
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
        """Return whether a topic has entries with a priority other than the default."""
        highest = [table.most_traits for table in self._tables(topic_id)]
        highest += [part.most_traits for part in self._slices_of(topic_id)]
        return max(highest, default=0) >= FIRST_PRIORITY

    def fetch(
        self, topic_id: int, due_ms: Int64s, offsets: Int64s, staged: Store | None = None
    ) -> Fetch:
        """Return a fetch that reads the messages of keys that plans returned, in their order.

        Args:
          due_ms: the due time of each message.
          offsets: the offset of each message.
          staged: another store of messages in memory. This method searches it first, and the fetch
            looks into the index only for messages that are not there.
        """
        keys: Keys = (due_ms, offsets)
        found = [] if staged is None else staged.find(due_ms, offsets)
        missing = missing_positions(len(offsets), found)
        if not len(missing):
            return Fetch(topic_id, keys, (), (), found)
        left = keys if not found else (due_ms[missing], offsets[missing])
        disk = [part for part in self._slices_of(topic_id) if part.may_hold(left)]
        return Fetch(topic_id, keys, list(self._tables(topic_id)), disk, found)

    def next_due(self, topic_id: int, after: Key) -> int | None:
        """Return a lower bound of the due time of a topic's first message at or past ``after``.

        Returns None if there is no such message. The bound is exact, except if ``after`` lies
        inside a block of a segment that is not in the block cache. Then it is ``after.due_ms``
        until a plan has read that block.
        """
        due = [run.next_due_ms(after) for t in self._tables(topic_id) for run in t.runs()]
        due += [part.next_due_ms(after) for part in self._slices_of(topic_id)]
        return min((time for time in due if time is not None), default=None)

    def topics(self) -> set[int]:
        """Return the ids of all topics that have entries and were not dropped; O(topics)."""
        found: set[int] = set()
        for generation in self._generations():
            found.update(generation.topics)
        for segment in self._segments:
            found.update(segment.topic_ids.tolist())
        return found - self._dropped

    def count(self, topic_id: int) -> int:
        """Return how many entries a topic has, duplicate and obsolete ones included."""
        return sum(table.count for table in self._tables(topic_id)) + sum(
            part.rows for part in self._slices_of(topic_id)
        )

    def mean_bytes(self, topic_id: int) -> float | None:
        """Return about the mean size of a topic's messages in bytes, or None if it has none."""
        tables, parts = list(self._tables(topic_id)), self._slices_of(topic_id)
        rows = sum(table.count for table in tables) + sum(part.rows for part in parts)
        if not rows:
            return None
        in_memory = sum(table.columns.payloads.used for table in tables)
        return (in_memory + sum(part.message_bytes for part in parts)) / rows

    @property
    def memory_bytes(self) -> int:
        """The memory that the memory tables take, without the block cache."""
        frozen_bytes = sum([generation.memory_bytes for generation in self._frozen])
        return self._active.memory_bytes + frozen_bytes

    @property
    def disk_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether messages that no checkpoint has frozen yet use half of the memory limit."""
        return self._active.memory_bytes >= self.limits.memory_bytes // 2

    @property
    def is_full(self) -> bool:
        """Whether the memory limit is reached. Then add no messages before a checkpoint ends."""
        return self.memory_bytes >= self.limits.memory_bytes

    # -- checkpoints --------------------------------------------------------------

    def begin_checkpoint(self, due_soon_ms: int = -1, far_ms: int = MAX_DUE_MS) -> Checkpoint:
        """Freeze the memory tables, which stay readable, and return a checkpoint to write them.

        Then call the checkpoint's ``write`` for each of its ``groups()``, then its ``finish``, then
        :meth:`install`. Or give it up with :meth:`abandon`.

        Args:
          due_soon_ms: messages due up to this time are put into the block cache, as far as there
            is room.
          far_ms: if most messages are due after this time and they are many, the segment is
            written past the operating system's page cache.
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
            DueSoonBlocks(due_soon_ms, self.limits.cache_bytes // _DUE_SOON_SHARE),
            far_ms,
        )
        return self._checkpoint

    def install(self, checkpoint: Checkpoint) -> None:
        """Let readers use a finished checkpoint's segment instead of the frozen tables."""
        assert checkpoint is self._checkpoint
        assert checkpoint.finished
        self._frozen = [g for g in self._frozen if g not in checkpoint.generations]
        self._checkpoint = None
        self._segments.swap((), checkpoint.segment)

    def abandon(self, checkpoint: Checkpoint) -> None:
        """Give up a checkpoint. Its messages stay in memory; the next checkpoint writes them."""
        assert checkpoint is self._checkpoint
        self._checkpoint = None
        checkpoint.discard()

    # -- compaction ---------------------------------------------------------------

    def choose_compaction(self, live: LiveCount | None = None) -> list[str]:
        """Return the file names of segments that are worth merging now; often none.

        Args:
          live: estimates how many messages of a topic in a range of offsets may still be needed;
            see ``LiveCount``. If it is None, only the sizes of segments decide.
        """
        sizes = [size_of(segment, self._dropped, live) for segment in self._segments]
        return choose(sizes, self.limits.max_segments, self.limits.merge_width)

    def begin_compaction(
        self,
        names: Collection[str],
        due_until_ms: int = MAX_DUE_MS,
        far_ms: int = MAX_DUE_MS,
    ) -> Compaction:
        """Begin to merge segments, and return the compaction.

        Then name the obsolete messages in its ``ranges()``, by its methods ``exclude``,
        ``exclude_early`` and ``outdate``. Then call its ``run``, its ``finish``, and
        :meth:`install_compaction`. Or give it up with :meth:`abandon_compaction`.

        Args:
          names: the file names of the segments.
          due_until_ms: messages due after this time are kept, even if they are excluded.
          far_ms: if most messages are due from this time on and they are many, the new segment is
            written past the operating system's page cache.
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
        )
        return self._compaction

    def install_compaction(self, compaction: Compaction) -> None:
        """Let readers use the finished compaction's segment instead of its inputs."""
        assert compaction is self._compaction
        assert compaction.finished
        self._compaction = None
        self._segments.swap(compaction.inputs, compaction.segment)

    def abandon_compaction(self, compaction: Compaction) -> None:
        """Give up a compaction. The segments that it was to merge stay as they are."""
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
