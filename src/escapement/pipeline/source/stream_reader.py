"""The adapter of Spark's interface for streaming reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from escapement.pipeline.options import Options
from escapement.pipeline.source.batch_reader import check_types, columns_of, read_partition
from escapement.pipeline.source.streaming import Positions, StreamPlan, from_json, to_json


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        # Options and schema are checked on first use, because Spark replaces an error of the
        # constructor with an error of its own.
        self._options = options
        self._schema = schema
        # Where a query with Trigger.AvailableNow ends; None for other queries.
        self._target: Positions | None = None

    @cached_property
    def _columns(self) -> list[tuple[str, bool]]:
        check_types(self._schema)
        return columns_of(self._schema)

    @cached_property
    def _plan(self) -> StreamPlan:
        names = [name.lower() for name, _ in self._columns]
        return StreamPlan(Options(self._options), names)

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._plan.most_at_once
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        latest = self._plan.latest() if self._target is None else self._target
        return to_json(self._plan.reached(from_json(start), latest, most))

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self._plan.latest())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._plan.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = self._plan.tasks(from_json(start), from_json(end))
        return [InputPartition(parts) for parts in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._plan.address, self._columns, partition)
