"""The delayed index: one bundle's messages in delivery order, payloads included.

Owns the second order of a topic's messages, by ``(due_ms, offset)``: a small LSM tree.
New messages gather in memory tables; a checkpoint turns them into an immutable segment
and a manifest that names the log position up to which the segments are complete;
compaction merges segments. It is a function of the log: when it is damaged or gone, it
is discarded and filled again from there.

It is a *set* of keys for each topic. Adding a key again changes nothing, and readers
merge duplicates, so whoever may have lost something adds again without asking.

Must not know what is acknowledged, cancelled or due: it is told what to keep, and asked
for ranges. It reads no clock and starts no thread; methods marked *blocking* touch the
disk and may run in a thread, all others belong to one thread and are one synchronous
step.

A message arrives here after its COMMIT, together with its offset and due time; it
leaves as keys of a plan (into the wheel, into a subscription that is behind) and as a
batch of a fetch (to a consumer).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from escapement.errors import StorageError
from escapement.message import Int64s, MessageBatch, UInt32s
from escapement.storage.index.block import BlockCache
from escapement.storage.index.checkpoint import Checkpoint
from escapement.storage.index.compaction import Compaction, LiveCount, size_of
from escapement.storage.index.keys import MAX_DUE_MS, Bools, Key, Keys
from escapement.storage.index.limits import IndexLimits
from escapement.storage.index.manifest import (
    MANIFEST_NAME,
    Failpoint,
    Lineage,
    Manifest,
    ManifestFile,
    Position,
    no_failpoint,
)
from escapement.storage.index.memory import Generation, MemoryTable
from escapement.storage.index.near import NearBlocks
from escapement.storage.index.plan import Fetch, Plan, Span, Store, places_missing
from escapement.storage.index.segment import TopicSlice
from escapement.storage.index.segments import Segments
from escapement.storage.index.tiers import choose
from escapement.traits import FIRST_PRIORITY, traits_of

# Of the block cache, what one topic may take of a checkpoint.
_NEAR_SHARE: Final = 8

Mask = Callable[[int, Int64s, Int64s], Bools | None]


class DelayedIndex:
    """The delayed index of one bundle; see the module's text for who may call what."""

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
        self.full_checkpoints = 0  # begun since it was opened because memory was half full
        # What was due by then may have been left out, or be about to be; monotone, as the wall
        # clock is not: whoever needs it again adds it again, due or not.
        self.forgotten_until_ms = manifest.current.forgotten_until_ms if manifest.current else 0
        self._segments = segments
        self._active = Generation(limits.table_rows, limits.kept_bytes)
        self._frozen: list[Generation] = []
        self._dropped: set[int] = set()
        self._checkpoint: Checkpoint | None = None
        self._compaction: Compaction | None = None

    # -- from start to end ------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: Path,
        limits: IndexLimits | None = None,
        failpoint: Failpoint = no_failpoint,
    ) -> DelayedIndex:
        """Open the index of a directory, which is created if missing; blocking.

        Verifies the manifest and every segment's directory (blocks are verified when
        they are read), and deletes what a crash left behind.

        Raises:
          StorageError: if the directory cannot be made.
          IndexDamaged: call :meth:`discard`, open again and fill it from the log.
        """
        limits = limits or IndexLimits()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot use the index directory {directory}: {error.strerror}"
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

    # -- in ---------------------------------------------------------------------

    def add(
        self, topic_id: int, base_offset: int, due_ms: Int64s, batch: MessageBatch
    ) -> UInt32s | None:
        """Take a live group: offsets contiguous from ``base_offset``; O(bytes).

        Bytes of a large one are kept as they are; nobody may change them any more.
        Returns the messages' traits, None if none has any.
        """
        assert len(due_ms) == len(batch)
        traits = traits_of(batch)
        if len(due_ms) and topic_id not in self._dropped:
            assert due_ms.min() >= 0
            assert due_ms.max() <= MAX_DUE_MS
            self._active.append(topic_id, base_offset, due_ms, batch, traits)
        return traits

    def add_again(
        self, topic_id: int, offsets: Int64s, due_ms: Int64s, batch: MessageBatch
    ) -> UInt32s | None:
        """Take messages of any age, offsets strictly ascending; known ones do no harm.

        Successive calls should ascend as well: each stream that does has its own table.
        Bytes are kept as by ``add``.
        Returns the messages' traits, None if none has any.
        """
        assert len(offsets) == len(due_ms) == len(batch)
        traits = traits_of(batch)
        if len(due_ms) and topic_id not in self._dropped:
            assert due_ms.min() >= 0
            assert due_ms.max() <= MAX_DUE_MS
            assert bool((offsets[1:] > offsets[:-1]).all()), "offsets must ascend"
            self._active.append(topic_id, offsets, due_ms, batch, traits)
        return traits

    def drop_topic(self, topic_id: int) -> None:
        """Forget a topic for good: now in memory and for readers, on disk when merged.

        Ids are never used again, so nothing is written down: after a start, the caller
        drops every topic of :meth:`topics` that does not exist.
        """
        self._dropped.add(topic_id)
        for generation in self._generations():
            generation.drop(topic_id)

    # -- out --------------------------------------------------------------------

    def plan(self, topic_id: int, start: Key, until: Key, max_messages: int) -> Plan:
        """Pin what lies in ``[start, until)``, cut after about ``max_messages``.

        ``plan.stop`` is where the next plan starts. If anything lies in the range, at
        least one message lies before it. How far the cut misses ``max_messages`` is
        bounded by a block (4096 messages) for each segment. O(tables + segments) binary
        searches.
        """
        spans = self._spans(topic_id, start, until)
        return Plan(spans, start, until, max_messages)

    def count_between(self, topic_id: int, start: Key, until: Key) -> int:
        """How many entries lie in ``[start, until)``; dead ones and duplicates count.

        In the first and last block of each segment messages are taken to be spread evenly in
        time. O(tables + segments) searches.
        """
        return sum(span.likely_count for span in self._spans(topic_id, start, until))

    def most_between(self, topic_id: int, start: Key, until: Key) -> int:
        """No fewer than the entries in ``[start, until)``: all of their blocks. As cheap."""
        return sum(span.count for span in self._spans(topic_id, start, until))

    def _spans(self, topic_id: int, start: Key, until: Key) -> list[Span]:
        spans: list[Span] = []
        if start < until:
            for table in self._tables(topic_id):
                for run in table.runs():
                    found = run.between(start, until, table)
                    spans += [found] if found else []
            for part in self._slices_of(topic_id):
                span = part.between(start, until)
                spans += [span] if span else []
        return spans

    def has_priorities(self, topic_id: int) -> bool:
        """Whether a topic has entries of other priorities than the default; or may have.

        It is not known of segments of an earlier version.
        """
        highest = [table.most_traits for table in self._tables(topic_id)]
        highest += [part.most_traits for part in self._slices_of(topic_id)]
        return max(highest, default=0) >= FIRST_PRIORITY

    def fetch(
        self, topic_id: int, due_ms: Int64s, offsets: Int64s, near: Store | None = None
    ) -> Fetch:
        """Pin the messages of keys that plans returned; rows come in the order asked.

        Args:
          near: a store outside the index that is looked into first, at once.
        """
        keys: Keys = (due_ms, offsets)
        found = [] if near is None else near.find(due_ms, offsets)
        missing = places_missing(len(offsets), found)
        if not len(missing):
            return Fetch(topic_id, keys, (), (), found)
        left = keys if not found else (due_ms[missing], offsets[missing])
        disk = [part for part in self._slices_of(topic_id) if part.may_hold(left)]
        return Fetch(topic_id, keys, list(self._tables(topic_id)), disk, found)

    def next_due(self, topic_id: int, after: Key) -> int | None:
        """A lower bound of when the first message at or past ``after`` is due.

        Exact, but for a segment's block that begins before ``after`` and is not cached:
        then it is ``after.due_ms``, until a plan has read that block.
        """
        due = [run.next_due_ms(after) for t in self._tables(topic_id) for run in t.runs()]
        due += [part.next_due_ms(after) for part in self._slices_of(topic_id)]
        return min((time for time in due if time is not None), default=None)

    def topics(self) -> set[int]:
        """The ids of all topics with entries; O(topics)."""
        found: set[int] = set()
        for generation in self._generations():
            found.update(generation.topics)
        for segment in self._segments:
            found.update(segment.topic_ids.tolist())
        return found - self._dropped

    def count(self, topic_id: int) -> int:
        """How many entries a topic has; duplicates and dead ones count."""
        return sum(table.count for table in self._tables(topic_id)) + sum(
            part.rows for part in self._slices_of(topic_id)
        )

    def mean_bytes(self, topic_id: int) -> float | None:
        """How large a topic's messages are, about; None if it has none here."""
        tables, parts = list(self._tables(topic_id)), self._slices_of(topic_id)
        rows = sum(table.count for table in tables) + sum(part.rows for part in parts)
        if not rows:
            return None
        in_memory = sum(table.payloads.used for table in tables)
        return (in_memory + sum(part.message_bytes for part in parts)) / rows

    @property
    def memory_bytes(self) -> int:
        """What the memory tables take; the block cache comes on top."""
        return sum(generation.memory_bytes for generation in self._generations())

    @property
    def disk_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def needs_checkpoint(self) -> bool:
        """Half of the memory is used by messages that no checkpoint has begun to write."""
        return self._active.memory_bytes >= self.limits.memory_bytes // 2

    @property
    def is_full(self) -> bool:
        """Memory is at its bound: nothing should be added before a checkpoint ends."""
        return self.memory_bytes >= self.limits.memory_bytes

    # -- checkpoints --------------------------------------------------------------

    def begin_checkpoint(self, near_ms: int = -1, far_ms: int = MAX_DUE_MS) -> Checkpoint:
        """Freeze memory (it stays readable) and begin to write it.

        What is due up to ``near_ms`` stays in the block cache, as far as there is room. Where
        most is due after ``far_ms`` the file is written past the system's cache.

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
            NearBlocks(near_ms, self.limits.cache_bytes // _NEAR_SHARE),
            far_ms,
        )
        return self._checkpoint

    def install(self, checkpoint: Checkpoint) -> None:
        """Let the finished checkpoint's segment take the place of what it wrote."""
        assert checkpoint is self._checkpoint
        assert checkpoint.finished
        self._frozen = [g for g in self._frozen if g not in checkpoint.generations]
        self._checkpoint = None
        self._segments.swap((), checkpoint.segment)

    def abandon(self, checkpoint: Checkpoint) -> None:
        """Give a checkpoint up; what it was to write is part of the next one."""
        assert checkpoint is self._checkpoint
        self._checkpoint = None
        checkpoint.discard()

    def checkpoint(
        self, log_identity: str, positions: Mapping[int, Position], mask: Mask | None = None
    ) -> None:
        """All steps of a checkpoint at once; blocking."""
        checkpoint = self.begin_checkpoint()
        try:
            for group in checkpoint.groups():
                keeps = [None if mask is None else mask(*part) for part in group.parts()]
                checkpoint.write(group, keeps)
            checkpoint.finish(log_identity, positions, Lineage())
        except BaseException:
            self.abandon(checkpoint)
            raise
        self.install(checkpoint)

    # -- compaction ---------------------------------------------------------------

    def choose_compaction(self, live: LiveCount | None = None) -> list[str]:
        """The names of segments that are worth merging now; often none.

        ``live`` says about how many offsets in a range (both ends included) may still be
        needed; see ``LiveCount``. Without it, sizes alone decide.
        """
        sizes = [size_of(segment, self._dropped, live) for segment in self._segments]
        return choose(sizes, self.limits.max_segments, self.limits.merge_width)

    def begin_compaction(
        self,
        names: Collection[str],
        due_until_ms: int = MAX_DUE_MS,
        far_ms: int = MAX_DUE_MS,
    ) -> Compaction:
        """Begin to merge the segments named; what is due after ``due_until_ms`` is kept.

        Where most is due after ``far_ms`` the file is written past the system's cache.

        Follow with ``exclude`` and ``outdate`` for what is dead in its ``ranges()``, then
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
        """Let the finished compaction's segment take the place of its inputs."""
        assert compaction is self._compaction
        assert compaction.finished
        self._compaction = None
        self._segments.swap(compaction.inputs, compaction.segment)

    def abandon_compaction(self, compaction: Compaction) -> None:
        """Give a compaction up; the inputs stay as they are."""
        assert compaction is self._compaction
        self._compaction = None
        compaction.discard()

    # -- what serves them ---------------------------------------------------------

    def _generations(self) -> list[Generation]:
        return [*self._frozen, self._active]

    def _tables(self, topic_id: int) -> Iterator[MemoryTable]:
        for generation in self._generations():
            topic = generation.topics.get(topic_id)
            if topic is not None:
                yield from topic.tables

    def _slices_of(self, topic_id: int) -> tuple[TopicSlice, ...]:
        return () if topic_id in self._dropped else self._segments.of(topic_id)
