"""The adapter of Spark's interface for batch reads.

Column names are case-insensitive, as in Spark with the default of ``spark.sql.caseSensitive``.
Columns are returned under the names that the user's schema has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from escapement.errors import InvalidRequest
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.columns import INSTANT, NULLABLE, READ_COLUMNS
from escapement.pipeline.kept_memory import keep_memory
from escapement.pipeline.options import LogAddress, Options
from escapement.pipeline.source.archived_reading import ArchivedPart, read_archived
from escapement.pipeline.source.part import Part
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part

_OPERATORS: Final = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}


class BatchReader(DataSourceReader):
    """The reader of one ``spark.read.format("escapement").load()``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_types(schema)
        self._columns = columns_of(schema)
        self._plan = BatchPlan(options, [name.lower() for name, _ in self._columns])

    @property
    def pushFilters(self) -> _Pushing:
        return _Pushing(self._plan)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(parts) for parts in self._plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._plan.address, self._columns, partition)


class _Pushing:
    """The ``pushFilters`` method of a reader, which uses filters as hints to read less.

    The method returns every filter, so Spark evaluates all filters again, and results do not depend
    on push-down. But if push-down is disabled, Spark refuses readers that override ``pushFilters``.
    It compares ``pushFilters.__func__`` with the method of the base class. The attribute
    ``__func__`` of this class makes the two equal.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            operator = _OPERATORS.get(type(one))
            if operator is None or len(one.attribute) != 1:
                continue
            column, plan = one.attribute[0].lower(), self._plan
            if column == "topic" and operator == "=":
                plan.topics = tuple(t for t in plan.topics if t.full == one.value)
            plan.selection = plan.selection.narrowed(column, operator, one.value)
        return filters


def read_partition(
    address: LogAddress, columns: Sequence[tuple[str, bool]], partition: InputPartition
) -> Iterator[Any]:
    """Yield the messages of a Spark partition as record batches; runs in a task.

    Args:
      columns: the column names of the user's schema, and whether each is nullable.
      partition: its value is a sequence of parts, or None for no parts.
    """
    parts: Sequence[Part | ArchivedPart] = partition.value or ()
    keep_memory()
    schema = arrow_schema([(name.lower(), nullable) for name, nullable in columns])
    names = [name for name, _ in columns]
    for part in parts:
        for batch in _batches(address, part, schema):
            yield batch if schema.names == names else batch.rename_columns(names)


def _batches(address: LogAddress, part: Part | ArchivedPart, schema: Any) -> Iterator[Any]:
    if isinstance(part, ArchivedPart):
        yield from read_archived(part, schema)
        return
    with closing(address.engine()) as engine:
        yield from read_part(engine, part, schema)


def columns_of(schema: StructType) -> list[tuple[str, bool]]:
    """Return each column's name in a schema, and whether the column is nullable."""
    return [(field.name, field.nullable) for field in schema.fields]


def check_types(schema: StructType) -> None:
    """Check the schema that the user gives for a read.

    Raises:
      InvalidRequest: if a column is unknown, has another type than messages have, is wrongly
        declared NOT NULL, or is named twice.
    """
    names = [name.lower() for name in schema.fieldNames()]
    for field in schema.fields:
        name = field.name.lower()
        known = READ_COLUMNS.get(name)
        if known is None:
            raise InvalidRequest(
                f"messages have no column {field.name!r}; their columns are"
                f" {', '.join(READ_COLUMNS)}"
            )
        asked, ours = field.dataType.simpleString(), known.lower().replace(" ", "")
        if asked != ours:
            raise InvalidRequest(
                f"the column {field.name} is {ours}, not {asked}: read it as {ours}, then cast it"
                + (f" (write {INSTANT})" if asked == "timestamp_ntz" else "")
            )
        if name in NULLABLE and not field.nullable:
            raise InvalidRequest(
                f"the column {field.name} may be null: leave out NOT NULL in the schema"
            )
        if names.count(name) > 1:
            raise InvalidRequest(
                f"the schema has two columns {name}: name it once, and select it twice"
            )
