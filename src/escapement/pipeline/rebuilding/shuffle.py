"""The Spark engine of the job ``rebuild``: builds a delayed index from the log with Spark's tasks.

The driver lists the keys of all log rows and divides them into *parts*, one for each task. Then
there are three steps:

1. Sample the due times of pending messages, to cut the delivery order into *ranges*
   (pipeline/rebuilding/ranges.py).
2. Read all rows, and send the pending messages of each range to one task, in blocks of columns.
3. Sort the messages of each range, and write them as *segments*, the files of an index, into the
   directory of the new index.

Tasks are plain functions; Spark transports their results. Driver and tasks must share the directory
(pipeline/directories/shared_directory.py). A task that is retried or runs twice writes separate
files. The driver uses the files of the attempts that Spark reports, and deletes all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from escapement.message import Int64s, MessageBatch
from escapement.pipeline.directories.shared_directory import SharedDirectory
from escapement.pipeline.options import LogAddress
from escapement.pipeline.rebuilding.pending_messages import PendingByTopic, pending_of
from escapement.pipeline.rebuilding.ranges import Ranges, Sample
from escapement.storage.index.merging.bulk import BulkTable
from escapement.storage.index.segments.writer import whole_segment
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow, RowKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The size of the log rows that a task reads at once, and that of a part: some seconds of work.
_STEP_BYTES: Final = 4 << 20
_PART_BYTES: Final = 64 << 20
# The number of log rows that are sampled in each part.
_SAMPLED_ROWS: Final = 2
# The least size of a range, so that a small log does not become many segments. The target size is
# at most half of a task's memory, because a sample is not exact.
_LEAST_RANGE_BYTES: Final = 16 << 20


class Block(NamedTuple):
    """Messages of one topic in one range, in the form in which tasks send them to each other."""

    topic_id: int
    due_ms: bytes  # int64[n]
    offsets: bytes  # int64[n], ascending
    body: bytes  # an encoded MessageBatch


class Written(NamedTuple):
    """A segment that a task has written, as a file name and its number of messages."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The parameters that are the same for all tasks."""

    address: LogAddress
    shared: SharedDirectory  # the directory of the new index
    now_ms: int
    memory_bytes: int  # for the messages that one task sorts


class Counters(NamedTuple):
    """The progress of finished tasks, as Spark accumulators.

    Use them only to show the progress. If Spark loses the result of a task and runs the task again,
    its work is counted twice.
    """

    messages: Any  # messages read from the log
    read_bytes: Any  # the size of the log rows read
    written: Any  # messages written to segments

    @classmethod
    def of(cls, spark: SparkSession) -> Counters:
        """Create counters in a Spark session, all 0."""
        return cls(*(spark.sparkContext.accumulator(0) for _ in cls._fields))


# -- in tasks --------------------------------------------------------------------


def sample(work: Work, pending_by_topic: PendingByTopic, keys: Sequence[RowKey]) -> list[Sample]:
    """Return samples of the pending messages in the log rows ``keys``."""
    work.shared.check()
    some = [keys[(2 * at + 1) * len(keys) // (2 * _SAMPLED_ROWS)] for at in range(_SAMPLED_ROWS)]
    some = list(dict.fromkeys(some))
    stand_for = sum(key.message_count for key in keys) / sum(key.message_count for key in some)
    found = []
    with work.address.connected() as (_, connection):
        for rows in Log.look(connection).fetch(connection, some, _STEP_BYTES):
            for row in rows:
                due_ms, offsets, _ = pending_of(row, pending_by_topic, work.now_ms)
                found.append(Sample.of(row.key.topic_id, due_ms, offsets, stand_for))
    return found


def scatter(
    work: Work, pending_by_topic: PendingByTopic, ranges: Ranges, keys: Sequence[RowKey]
) -> Iterator[tuple[int, Block]]:
    """Yield the pending messages of the log rows ``keys``, in blocks with their range's number."""
    work.shared.check()
    with work.address.connected() as (_, connection):
        for rows in Log.look(connection).fetch(connection, keys, _STEP_BYTES):
            # A row that restates messages is a group of its own. So offsets ascend in each block.
            for (topic_id, _), group in groupby(rows, key=_stream):
                columns = [pending_of(row, pending_by_topic, work.now_ms) for row in group]
                due_ms = np.concatenate([column[0] for column in columns])
                offsets = np.concatenate([column[1] for column in columns])
                batch = MessageBatch.concat([one for column in columns for one in column[2]])
                yield from _blocks(topic_id, due_ms, offsets, batch, ranges)


def gather(work: Work, attempt: int, blocks: Iterable[tuple[int, Block]]) -> Iterator[Written]:
    """Sort the blocks of a range and write them as a segment, or as several if memory is full.

    Args:
      attempt: a number that is unique among all attempts of all tasks.
    """
    work.shared.check()
    table, number = BulkTable(work.memory_bytes), 0
    for _, block in blocks:
        batch = MessageBatch.decode(block.body)
        if not table.has_room(len(batch), batch.size_bytes):
            yield _written(work, f"{attempt}-{number}", table)
            number += 1
        due_ms, offsets = np.frombuffer(block.due_ms, "<i8"), np.frombuffer(block.offsets, "<i8")
        table.add(block.topic_id, offsets, due_ms, batch)
    if table.count:
        yield _written(work, f"{attempt}-{number}", table)


def _written(work: Work, name: str, table: BulkTable) -> Written:
    with whole_segment(work.shared.directory / name) as writer:
        table.write(writer)
    done = Written(name, table.count)
    table.clear()
    return done


def _stream(row: LogRow) -> tuple[int, int]:
    """Return the group of a log row: the topic's id, and 0 or the row's own negative key.

    All rows of a topic that state messages for the first time are one group. A row that restates
    rescheduled or relocated messages is a group of its own. Offsets ascend in each group.
    """
    return row.key.topic_id, min(row.key.base_offset, 0)


def _blocks(
    topic_id: int, due_ms: Int64s, offsets: Int64s, batch: MessageBatch, ranges: Ranges
) -> Iterator[tuple[int, Block]]:
    of_range = ranges.of(topic_id, due_ms, offsets)
    order = np.argsort(of_range, kind="stable")
    of_range, due_ms, offsets = of_range[order], due_ms[order], offsets[order]
    batch = batch.take(order)
    firsts = np.flatnonzero(np.diff(of_range, prepend=-1))
    for low, high in pairwise([*firsts.tolist(), len(order)]):
        part = slice(low, high)
        times, names = due_ms[part].tobytes(), offsets[part].tobytes()
        yield int(of_range[low]), Block(topic_id, times, names, batch.part(low, high).encode())


# -- in the driver ---------------------------------------------------------------


def fill(
    spark: SparkSession,
    work: Work,
    pending_by_topic: PendingByTopic,
    keys: Sequence[RowKey],
    counters: Counters,
) -> list[Written]:
    """Write the segments of the index. Return them in the order of their ranges. Blocking."""
    context = spark.sparkContext
    total_bytes = sum(key.size_bytes for key in keys)
    if not keys:
        return []
    least = -(-2 * total_bytes // work.memory_bytes)
    wished = min(context.defaultParallelism, total_bytes // _LEAST_RANGE_BYTES)
    count = max(least, wished, 1)
    known = context.broadcast(pending_by_topic)
    try:
        parts = _parts(keys, context.defaultParallelism)
        source = context.parallelize(parts, len(parts))
        samples: list[Sample] = []
        if count > 1:
            samples = source.flatMap(partial(_sample, work, known)).collect()
        ranges = Ranges.cut(samples, count)
        blocks: Any = source.flatMap(partial(_scatter, work, known, ranges, counters))
        ranged = blocks.partitionBy(ranges.count, int)
        return list(ranged.mapPartitions(partial(_gather, work, counters)).collect())
    finally:
        known.destroy()


def _parts(keys: Sequence[RowKey], processors: int) -> list[list[RowKey]]:
    """Divide the log rows, in order, into parts of about equal size, one for each task."""
    ends = np.cumsum([key.size_bytes for key in keys])
    total_bytes = int(ends[-1])
    part_bytes = max(min(_PART_BYTES, total_bytes // processors), 1)
    bounds = np.unique(ends.searchsorted(np.arange(part_bytes, total_bytes, part_bytes)))
    lows = [0, *bounds[bounds > 0].tolist()]
    return [list(keys[low:high]) for low, high in pairwise([*lows, len(keys)])]


def _sample(work: Work, pending_by_topic: Any, keys: list[RowKey]) -> list[Sample]:
    return sample(work, pending_by_topic.value, keys)


def _scatter(
    work: Work, pending_by_topic: Any, ranges: Ranges, counters: Counters, keys: list[RowKey]
) -> Iterator[tuple[int, Block]]:
    yield from scatter(work, pending_by_topic.value, ranges, keys)
    counters.messages.add(sum(key.message_count for key in keys))
    counters.read_bytes.add(sum(key.size_bytes for key in keys))


def _gather(
    work: Work, counters: Counters, blocks: Iterable[tuple[int, Block]]
) -> Iterator[Written]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a task runs this"
    for written in gather(work, context.taskAttemptId(), blocks):
        counters.written.add(written.rows)
        yield written
