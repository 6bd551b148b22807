"""An index filled from the log by tasks on many machines.

Three passes over the log's rows, which the driver names: a small one that samples when messages
are due, so that the delivery order can be cut into ranges (pipeline/ranges.py); one that reads
all of it and sends each range's messages to one place, in blocks of columns; and there one that
sorts and writes them, as segments of the broker's own format, in the directory of the index that
is being built. Tasks are plain functions here; Spark only carries what they give.

That directory must be one for driver and tasks (pipeline/shown.py). A task that is tried again, or
runs twice, writes files of its own; the driver names those of the attempts that it was told of, and
deletes all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from escapement.message import Int64s, MessageBatch
from escapement.pipeline.claims import TopicClaims
from escapement.pipeline.options import LogAddress
from escapement.pipeline.ranges import Ranges, Sample
from escapement.pipeline.shown import Shown
from escapement.storage.engine.base import Connection
from escapement.storage.index.bulk import BulkTable
from escapement.storage.index.writer import SegmentWriter, writing
from escapement.storage.log.log import Log
from escapement.storage.log.logtable import LogRow, RowKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rows of the log that a task reads at once, and in all: some seconds of work.
_STEP_BYTES: Final = 4 << 20
_PART_BYTES: Final = 64 << 20
# Rows that are read of each part as a sample.
_SAMPLED_ROWS: Final = 2
# A range is no smaller, so that a small log does not become many segments, and half of what a
# task holds, because a sample is not exact.
_LEAST_RANGE_BYTES: Final = 16 << 20

T = TypeVar("T")


class Block(NamedTuple):
    """Messages of one topic in one range, as they travel."""

    topic_id: int
    due_ms: bytes  # int64[n]
    offsets: bytes  # int64[n], ascending
    body: bytes  # a MessageBatch's


class Written(NamedTuple):
    """A segment that a task has written."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What all tasks of a job know."""

    address: LogAddress
    shown: Shown
    now_ms: int
    memory_bytes: int


class Counters(NamedTuple):
    """How far those tasks have come that have ended, in the driver; accumulators of Spark's.

    A task that runs again because what it gave was lost counts again: they are for people.
    """

    messages: Any  # read
    read_bytes: Any
    written: Any  # messages

    @classmethod
    def of(cls, spark: SparkSession) -> Counters:
        """New ones."""
        return cls(*(spark.sparkContext.accumulator(0) for _ in cls._fields))


Claims = dict[int, TopicClaims]


# -- what tasks do ---------------------------------------------------------------


def sample(work: Work, claims: Claims, keys: Sequence[RowKey]) -> list[Sample]:
    """When some messages are due that stand for those in these rows."""
    work.shown.check()
    some = [keys[(2 * at + 1) * len(keys) // (2 * _SAMPLED_ROWS)] for at in range(_SAMPLED_ROWS)]
    some = list(dict.fromkeys(some))
    stand_for = sum(key.message_count for key in keys) / sum(key.message_count for key in some)
    found = []
    with _reading(work.address) as connection:
        for rows in Log.look(connection).fetch(connection, some, _STEP_BYTES):
            for row in rows:
                due_ms, offsets, _ = _pending(work, claims, row)
                found.append(Sample.of(row.key.topic_id, due_ms, offsets, stand_for))
    return found


def scatter(
    work: Work, claims: Claims, ranges: Ranges, keys: Sequence[RowKey]
) -> Iterator[tuple[int, Block]]:
    """What is pending of these rows, in blocks, each with the number of its range."""
    work.shown.check()
    with _reading(work.address) as connection:
        for rows in Log.look(connection).fetch(connection, keys, _STEP_BYTES):
            # What was restated has other offsets than those around it, and does not ascend.
            for (topic_id, _), group in groupby(rows, key=_stream):
                columns = [_pending(work, claims, row) for row in group]
                due_ms = np.concatenate([column[0] for column in columns])
                offsets = np.concatenate([column[1] for column in columns])
                batch = MessageBatch.concat([column[2] for column in columns])
                yield from _blocks(topic_id, due_ms, offsets, batch, ranges)


def gather(work: Work, attempt: int, blocks: Iterable[tuple[int, Block]]) -> Iterator[Written]:
    """Sort and write the blocks of a range, as one segment or, if it is large, as several.

    Args:
      attempt: a number that no other attempt of any task has.
    """
    work.shown.check()
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
    path = work.shown.directory / name
    with writing(path):
        writer = SegmentWriter(path, bulk=True)
        try:
            table.write(writer)
            writer.finish()
            writer.sync()
        except BaseException:
            writer.discard()
            raise
    done = Written(name, table.count)
    table.clear()
    return done


def _stream(row: LogRow) -> tuple[int, int]:
    """Rows of one stream have ascending offsets: those of a topic, and each restatement."""
    return row.key.topic_id, min(row.key.base_offset, 0)


def _pending(work: Work, claims: Claims, row: LogRow) -> tuple[Int64s, Int64s, MessageBatch]:
    """Times, offsets and contents of what an index must have of a row."""
    due_ms, offsets, batch = row.content.due_ms, row.offsets, row.content.batch()
    of_topic = claims.get(row.key.topic_id)  # None if it was deleted
    if of_topic is None:
        at = np.zeros(0, np.int64)
    else:
        at = np.flatnonzero(of_topic.live(due_ms, offsets, work.now_ms))
        if len(at) == len(due_ms):
            return due_ms, offsets, batch
    return due_ms[at], offsets[at], batch.take(at)


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


@contextmanager
def _reading(address: LogAddress) -> Iterator[Connection]:
    engine = address.engine()
    try:
        connection = engine.connect()
        try:
            yield connection
        finally:
            connection.close()
    finally:
        engine.close()


# -- what the driver does --------------------------------------------------------


def fill(
    spark: SparkSession, work: Work, claims: Claims, keys: Sequence[RowKey], counters: Counters
) -> list[Written]:
    """Have the index filled; what was written, in the order of its keys. Blocking."""
    context = spark.sparkContext
    total_bytes = sum(key.size_bytes for key in keys)
    if not keys:
        return []
    least = -(-2 * total_bytes // work.memory_bytes)
    wished = min(context.defaultParallelism, total_bytes // _LEAST_RANGE_BYTES)
    count = max(least, wished, 1)
    known = context.broadcast(claims)
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
    """What each task reads: about equal bytes, in the order of the log."""
    ends = np.cumsum([key.size_bytes for key in keys])
    total_bytes = int(ends[-1])
    part_bytes = max(min(_PART_BYTES, total_bytes // processors), 1)
    bounds = np.unique(ends.searchsorted(np.arange(part_bytes, total_bytes, part_bytes)))
    lows = [0, *bounds[bounds > 0].tolist()]
    return [list(keys[low:high]) for low, high in pairwise([*lows, len(keys)])]


def _sample(work: Work, claims: Any, keys: list[RowKey]) -> list[Sample]:
    return sample(work, claims.value, keys)


def _scatter(
    work: Work, claims: Any, ranges: Ranges, counters: Counters, keys: list[RowKey]
) -> Iterator[tuple[int, Block]]:
    yield from scatter(work, claims.value, ranges, keys)
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
