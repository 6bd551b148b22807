"""Spark's writers: what Spark asks for, answered by a bulk write.

A writer is made in the driver, travels to the tasks as a pickle, and back to a process of the
driver's for the commit; of a stream that process makes a new one. Record batches come as Arrow has
them.
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
from escapement.pipeline import bulk
from escapement.pipeline.bulk import BulkWrite, Part, Report
from escapement.pipeline.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

# Where Spark tells a task which query and which batch it works for.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class StagedPart(WriterCommitMessage):
    """What a task tells the commit."""

    part: Part


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("escapement").mode("append")``."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('messages are added, never replaced: write with mode("append")')
        self._plan = BulkWrite.plan(options, _columns(schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        return StagedPart(bulk.write_part(self._plan, _task().partitionId(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _say(bulk.commit(self._plan, _parts(messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages
        bulk.abandon(self._plan)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("escapement")``: a job for each batch, in a series of the query."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest(
                'messages are added, never replaced: write with outputMode("append")'
            )
        self._plan = BulkWrite.plan(options, _columns(schema), of_stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise InvalidRequest("Spark does not say which query and batch this is")
        plan = self._plan.of_batch(f"query/{query}", int(batch))
        return StagedPart(bulk.write_part(plan, task.partitionId(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        parts = _parts(messages)
        if parts:  # a batch without tasks has nothing to be known by, and nothing in it
            report = bulk.commit(self._plan.of_batch(parts[0].series, batchId), parts)
            if report.messages or report.repeated:  # a batch may be empty, every time
                _say(report)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # There may be none: then no task has said which query this is.
        bulk.abandon_batch(self._plan, batchId, _parts(messages))


def _say(report: Report) -> None:
    print(f"escapement: {report.line}", file=sys.stderr)


def _columns(schema: StructType) -> dict[str, str]:
    names = schema.fieldNames()
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidRequest(f"there are two columns {twice[0]!r}")
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, StagedPart)]


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "this runs in a task"
    return task
