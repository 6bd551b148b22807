"""Compaction: merges several segments into one and leaves out obsolete messages.

Segments are the files of the delayed index: messages sorted by topic and key ``(due_ms, offset)``.
A compaction reads some of them, its *inputs*, and writes a new one, its *output*. When a durable
*manifest* (the file that names the segments of the index) names the output in place of the inputs,
the inputs are deleted. Readers that have an input open can go on reading it.

The merge runs in a child process of low priority (``python -m escapement.storage.index``), because
it would hold the interpreter lock for minutes. A small merge is not worth a process and runs in the
calling thread. A merge has only a part of the keys and messages in memory at a time.

The caller names *obsolete* messages, which need not be kept. :meth:`Compaction.exclude` takes
offsets that every subscription has durably acknowledged, and deleted topics.
:meth:`Compaction.outdate` takes rescheduled messages: such a message is in the index under each of
its due times, and only the key with the current one is needed. The named offsets go to files,
because there may be a hundred million of them. All other messages are kept, so a message that the
caller does not name only costs space. This module knows nothing of acknowledgements.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.errors import IndexDamaged, StorageError
from escapement.message import Bools, Int64s
from escapement.sorting import find_sorted
from escapement.storage.index.keys import KEY_MAX, KEY_MIN, Key, Keys, merge
from escapement.storage.index.merging.numbers_by_topic import NumbersByTopic, NumbersByTopicFile
from escapement.storage.index.merging.tiers import SegmentSize
from escapement.storage.index.plan import Fetch, Plan
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.manifest import (
    Manifest,
    ManifestFile,
    Position,
    latest,
)
from escapement.storage.index.segments.segment import Segment, TopicSlice
from escapement.storage.index.segments.writer import SegmentWriter, whole_segment, writing

# A merge reads about this many keys of a topic at once.
_WINDOW_ROWS: Final = 1 << 16
# Inputs of less than this size in total are merged in the calling thread: a process takes 0.3 s to
# start, and this much is merged in that time.
_SMALL_BYTES: Final = 8 << 20
# The share of a segment's messages that are live is estimated from this many of its largest topics.
_ASKED_TOPICS: Final = 1024
# The exit code of the child process when an input is damaged.
EXIT_DAMAGED: Final = 3

# A function that estimates how many messages of a topic in a segment may still be needed. Its
# arguments are the topic's id; the first and the last offset of the topic's messages in the
# segment; and a function that takes a time and returns an upper bound of the number of these
# messages that are due from then on.
LiveCount = Callable[[int, int, int, Callable[[int], int]], int]


class TopicRange(NamedTuple):
    """A topic with messages in the inputs of a compaction, and the range of their offsets."""

    topic_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Job:
    """The description of a merge, which the child process gets as one line of JSON.

    Some fields are descriptions of files with a column of numbers for each topic
    (``numbers_by_topic.py``).
    """

    inputs: list[str]  # the paths of the segments to merge
    output: str  # the path of the new segment
    block_rows: int
    cache_bytes: int
    dropped: list[int]  # the ids of topics to leave out
    dead: dict[str, Any]  # a file with offsets of messages to leave out
    early: dict[str, Any]  # a file with offsets of messages to leave out if due early enough
    before_ms: dict[str, Any]  # a file: for each message of ``early``, the time it must be before
    outdated: dict[str, Any]  # a file with offsets of messages that need at most one key
    staying_ms: dict[str, Any]  # a file: for each message of ``outdated``, that key's due time
    due_until_ms: int  # ``dead`` and ``early`` do not apply to messages due after this time
    far_ms: int  # messages due from this time on are not read for a while

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Job:
        return cls(**json.loads(line))


def size_of(segment: Segment, dropped: Collection[int], live: LiveCount | None) -> SegmentSize:
    """Return the size of a segment, and an estimate of how many of its messages are live.

    Args:
      dropped: the ids of deleted topics, whose messages are not live.
      live: estimates the live messages of a topic. It is called for the largest topics of the
        segment. If it is None, all messages count as live.
    """
    name, total = segment.path.name, segment.rows
    if live is None:
        return SegmentSize(name, segment.size_bytes, total, total)
    rows = segment.topic_rows()
    lows, highs = segment.topic_offsets()
    asked = np.argsort(rows)[-_ASKED_TOPICS:]
    alive = 0
    for row in asked.tolist():
        topic_id = int(segment.topic_ids[row])
        if topic_id not in dropped:
            from_ms = partial(_rows_from, segment, topic_id)
            found = live(topic_id, int(lows[row]), int(highs[row]), from_ms)
            alive += min(found, int(rows[row]))
    return SegmentSize(name, segment.size_bytes, total, alive * total // int(rows[asked].sum()))


def _rows_from(segment: Segment, topic_id: int, due_ms: int) -> int:
    """Return an upper bound of a topic's messages in a segment that are due from ``due_ms`` on."""
    part = segment.slice(topic_id)
    span = None if part is None else part.between(Key(due_ms, 0), KEY_MAX)
    return 0 if span is None else span.count


class Compaction:
    """One compaction in progress. ``DelayedIndex.begin_compaction`` creates it."""

    def __init__(
        self,
        inputs: Sequence[Segment],
        output: Path,
        dropped: Collection[int],
        block_rows: int,
        due_until_ms: int,
        far_ms: int,
        manifest: ManifestFile,
        cache: BlockCache,
    ) -> None:
        self.inputs: Sequence[Segment] = tuple(inputs)
        self.segment: Segment | None = None
        self.finished = False
        self._output = output
        self._dropped = set(dropped)
        self._block_rows = block_rows
        self._due_until_ms = due_until_ms
        self._far_ms = far_ms
        self._manifest = manifest
        self._cache = cache
        self._rows: int | None = None
        self._named = False
        self._given_up = False
        self._child: subprocess.Popen[bytes] | None = None
        self._dead = NumbersByTopic(output.with_suffix(".dead"))
        self._early = NumbersByTopic(output.with_suffix(".early"))
        self._before = NumbersByTopic(output.with_suffix(".before"))
        self._outdated = NumbersByTopic(output.with_suffix(".outdated"))
        self._staying = NumbersByTopic(output.with_suffix(".staying"))
        self._last_dead = (-1, -1)

    def ranges(self) -> list[TopicRange]:
        """Return the topics with messages in the inputs, ascending, except dropped topics."""
        found: dict[int, tuple[int, int]] = {}
        for segment in self.inputs:
            lows, highs = segment.topic_offsets()
            rows = zip(segment.topic_ids.tolist(), lows.tolist(), highs.tolist(), strict=True)
            for topic_id, low, high in rows:
                known = found.get(topic_id, (low, high))
                found[topic_id] = min(low, known[0]), max(high, known[1])
        return [TopicRange(t, *found[t]) for t in sorted(found) if t not in self._dropped]

    def exclude(self, topic_id: int, offsets: Int64s | None) -> None:
        """Leave out messages of a topic from the output; blocking.

        Messages due after the compaction's ``due_until_ms`` are kept nevertheless. Topics must
        ascend from call to call. A topic's offsets may be passed in several calls, and ascend too.

        Args:
          offsets: the offsets of the messages to leave out; None leaves out the whole topic.

        Raises:
          StorageError: if writing to the disk fails.
        """
        if offsets is None:
            self._dropped.add(topic_id)
            return
        if not len(offsets):
            return
        assert (topic_id, int(offsets[0])) > self._last_dead, "topics and offsets must ascend"
        self._last_dead = (topic_id, int(offsets[-1]))
        self._dead.add(topic_id, offsets)

    def exclude_early(self, topic_id: int, offsets: Int64s, before_ms: Int64s) -> None:
        """Leave out messages of a topic that are due before a time of their own; blocking.

        Messages due after the compaction's ``due_until_ms`` are kept nevertheless. Topics and
        offsets must ascend as for ``exclude``.

        Args:
          offsets: the offsets of the messages.
          before_ms: for each message, the time. A key due at this time or later is kept.

        Raises:
          StorageError: if writing to the disk fails.
        """
        if len(offsets):
            self._early.add(topic_id, offsets)
            self._before.add(topic_id, before_ms)

    def outdate(self, topic_id: int, offsets: Int64s, staying_ms: Int64s) -> None:
        """Leave out every key of these messages except the one due at ``staying_ms``; blocking.

        This also applies to messages due after the compaction's ``due_until_ms``. Topics and
        offsets must ascend as for ``exclude``.

        Args:
          offsets: the offsets of the messages.
          staying_ms: for each message, the due time of the key to keep; -1 keeps no key.

        Raises:
          StorageError: if writing to the disk fails.
        """
        if len(offsets):
            self._outdated.add(topic_id, offsets)
            self._staying.add(topic_id, staying_ms)

    def run(self) -> None:
        """Merge the inputs, in a child process unless they are small; blocking.

        Raises:
          IndexDamaged: if an input is damaged.
          StorageError: if writing to the disk fails, or the child process fails or is ended by
            ``discard``.
        """
        if sum(segment.size_bytes for segment in self.inputs) < _SMALL_BYTES:
            return self.run_here()
        job = self._job()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "escapement.storage.index"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that its low priority counts (see index/__main__.py)
        )
        if self._given_up:
            self._child.kill()
        with self._child as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stderr is not None
            with suppress(BrokenPipeError):  # the child has failed, and its exit code says why
                child.stdin.write(job.encode())
                child.stdin.flush()  # do not close it yet: the child ends when it is closed
            answer, complaint = child.stdout.read(), child.stderr.read()
            code = child.wait()
            with suppress(BrokenPipeError):  # the child may have ended without reading the job
                child.stdin.close()
        if code:
            said = complaint.decode(errors="replace").strip().rpartition("\n")[2]
            kind = IndexDamaged if code == EXIT_DAMAGED else StorageError
            raise kind(f"Compaction into {self._output} failed with exit code {code}: {said}")
        self._rows = int(answer)
        return None

    def run_here(self) -> None:
        """Merge the inputs in this process and thread; blocking."""
        with writing(self._output):
            self._rows = merge_segments(self._job())

    def _job(self) -> Job:
        return Job(
            [str(segment.path) for segment in self.inputs],
            str(self._output),
            self._block_rows,
            self._cache.capacity_bytes,
            sorted(self._dropped),
            self._dead.plain(),
            self._early.plain(),
            self._before.plain(),
            self._outdated.plain(),
            self._staying.plain(),
            self._due_until_ms,
            self._far_ms,
        )

    @property
    def merged(self) -> bool:
        """Whether ``run`` has succeeded."""
        return self._rows is not None

    def finish(self, relied_on: Mapping[int, Position]) -> None:
        """Write a durable manifest that names the output, then delete the inputs; blocking.

        If no message is kept, there is no output file, and the manifest only loses the inputs.

        Args:
          relied_on: for each lane (a writer of the log), its position in the journal when the last
            obsolete message was named.

        Raises:
          StorageError: if writing to the disk fails.
        """
        assert self._rows is not None, "finish comes after run"
        added: dict[str, int] = {}
        if self._rows:
            self.segment = Segment(self._output, self._cache)
            added[self._output.name] = self.segment.size_bytes
        gone = {segment.path.name for segment in self.inputs}

        def change(old: Manifest | None) -> Manifest:
            assert old is not None
            assert gone <= old.segments.keys()
            kept = {name: size for name, size in old.segments.items() if name not in gone}
            until_ms = max(old.forgotten_until_ms, self._due_until_ms)
            return replace(
                old,
                segments={**kept, **added},
                forgotten_until_ms=until_ms,
                relied_on=latest(old.relied_on, relied_on),
            )

        with writing(self._output):
            self._manifest.update(change, self._name)
        self.finished = True
        self._discard_number_files()
        for segment in self.inputs:
            with suppress(OSError):  # the next start deletes files that no manifest names
                segment.path.unlink()

    def _name(self) -> None:
        self._named = True

    def let_go(self) -> None:
        """Drop the references to the inputs; blocking.

        Dropping the last reference to a deleted file closes it, which waits until the system has
        freed its space.
        """
        self.inputs = ()

    def discard(self) -> None:
        """Give up the compaction: kill the child process and delete the temporary files.

        Deletes the output too, unless a manifest on disk may name it. The next start deletes files
        that cannot be deleted now.
        """
        self._given_up = True
        if self._child is not None:
            self._child.kill()
        if not self._named:
            with suppress(OSError):
                self._output.unlink(missing_ok=True)
        self._discard_number_files()

    def _discard_number_files(self) -> None:
        for numbers in (self._dead, self._early, self._before, self._outdated, self._staying):
            with suppress(OSError):
                numbers.discard()


class _LeftOut:
    """The messages that a merge leaves out, read from the files of its job."""

    def __init__(self, job: Job) -> None:
        self._due_until_ms = job.due_until_ms
        self._dead = NumbersByTopicFile(job.dead)
        self._early = NumbersByTopicFile(job.early)
        self._before = NumbersByTopicFile(job.before_ms)
        self._outdated = NumbersByTopicFile(job.outdated)
        self._staying = NumbersByTopicFile(job.staying_ms)

    def keep(self, topic_id: int, keys: Keys) -> Bools:
        """Return a mask that is true for the keys of a topic that the merge keeps."""
        due_ms, offsets = keys
        _, named = find_sorted(self._dead.of(topic_id), offsets)
        keep = ~named | (due_ms > self._due_until_ms)
        early = self._early.of(topic_id)
        if len(early):
            row, named = find_sorted(early, offsets)
            until_ms = np.minimum(self._before.of(topic_id)[row] - 1, self._due_until_ms)
            keep &= ~named | (due_ms > until_ms)
        outdated = self._outdated.of(topic_id)
        if len(outdated):
            row, named = find_sorted(outdated, offsets)
            keep &= ~named | (self._staying.of(topic_id)[row] == due_ms)
        return keep


def merge_segments(job: Job) -> int:
    """Merge the inputs of a job, and return the number of messages in the output; blocking.

    The output is a durable file. It does not exist if all messages are left out.

    Raises:
      IndexDamaged: if an input is damaged.
      StorageError: if writing to the disk fails.
    """
    cache = BlockCache(job.cache_bytes)
    inputs = [Segment(Path(name), cache) for name in job.inputs]
    left_out = _LeftOut(job)
    topics = {topic for segment in inputs for topic in segment.topic_ids.tolist()}
    bulk = _is_far(inputs, job.far_ms)
    with whole_segment(Path(job.output), job.block_rows, bulk) as writer:
        for topic_id in sorted(topics.difference(job.dropped)):
            parts = [segment.slice(topic_id) for segment in inputs]
            _merge_topic(writer, topic_id, [part for part in parts if part is not None], left_out)
    return writer.rows


def _is_far(inputs: Sequence[Segment], far_ms: int) -> bool:
    """Return whether the inputs are large and mostly due from ``far_ms`` on.

    Most of their messages are then not read for a while.
    """
    if sum(segment.size_bytes for segment in inputs) < _SMALL_BYTES:
        return False
    far = sum(segment.rows_from(far_ms) for segment in inputs)
    return 2 * far > sum(segment.rows for segment in inputs)


def _merge_topic(
    writer: SegmentWriter, topic_id: int, parts: Sequence[TopicSlice], left_out: _LeftOut
) -> None:
    row_bytes = sum(part.message_bytes for part in parts) // sum(part.rows for part in parts)
    waiting: list[Keys] = []
    at = KEY_MIN
    while at < KEY_MAX:
        spans = [span for part in parts if (span := part.between(at, KEY_MAX)) is not None]
        plan = Plan(spans, KEY_MAX, _WINDOW_ROWS)
        keys = plan.read()
        at = plan.stop
        keep = left_out.keep(topic_id, keys)
        waiting.append((keys[0][keep], keys[1][keep]))
        # If few keys were kept, go on reading, so that the output's blocks become full.
        if at == KEY_MAX or sum(len(due_ms) for due_ms, _ in waiting) >= _WINDOW_ROWS:
            due_ms, offsets = merge(waiting)
            waiting = []
            for part in writer.steps(len(due_ms), row_bytes):
                run = due_ms[part], offsets[part]
                writer.append(topic_id, run, Fetch(topic_id, run, (), parts).read())
