"""The adapters of Spark's interfaces for writes, batch and streaming, over a bulk write.

The driver creates a writer, and Spark sends it to the tasks as a pickle. A process beside the
driver makes the commit. For a batch write, Spark sends the writer to it. For a stream, that process
creates a new writer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from escapement.errors import InvalidRequest
from escapement.pipeline.options import Options
from escapement.pipeline.sink import bulk_write
from escapement.pipeline.sink.bulk_write import BulkWrite, Part, Report

if TYPE_CHECKING:
    import pyarrow as pa

# Names of properties of a Spark task: the id of its streaming query, and the number of the batch.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class StagedPart(WriterCommitMessage):
    """The message in which a task sends the result of its part to the commit."""

    part: Part


class BatchWriter(DataSourceArrowWriter):
    """The writer of ``df.write.format("escapement").mode("append")``."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('messages cannot be overwritten: write with mode("append")')
        self._plan = BulkWrite.plan(options, _columns(schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        return StagedPart(bulk_write.write_part(self._plan, _task().partitionId(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _say(bulk_write.commit(self._plan, _parts(messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages
        bulk_write.abandon(self._plan)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream.format("escapement")``.

    Each batch is a bulk job. The series of the job belongs to the query, and its version is the
    number of the batch.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('messages cannot be overwritten: write with outputMode("append")')
        self._plan = BulkWrite.plan(options, _columns(schema), of_stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise InvalidRequest(
                f"Spark has not set the properties {_QUERY_ID} and {_BATCH_ID} of the task, so the"
                " batch cannot be identified: start the query with writeStream"
            )
        plan = self._plan.of_batch(f"query/{query}", int(batch))
        return StagedPart(bulk_write.write_part(plan, task.partitionId(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        parts = _parts(messages)
        if parts:  # without parts, the batch has no messages
            report = bulk_write.commit(self._plan.of_batch(parts[0].series, batchId), parts)
            if report.messages or report.repeated:  # print nothing for empty batches
                _say(report)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Without a finished task, this process has no parts and does not know the id of the query.
        bulk_write.abandon_batch(self._plan, batchId, _parts(messages))


def _say(report: Report) -> None:
    print(f"escapement: {report.line}", file=sys.stderr)


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, StagedPart)]


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "this must run in a task"
    return task
