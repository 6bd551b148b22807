"""The data source ``escapement``: the class that Spark loads first.

Spark starts a Python process for each request, and sends an instance from one process to the next
as a pickle. So an instance has nothing but its options. Methods import the modules they need,
because the first two processes of a session only request the name and the schema, and should start
fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from escapement.pipeline.columns import read_schema

if TYPE_CHECKING:
    from escapement.pipeline.sink.writer import BatchWriter, StreamWriter
    from escapement.pipeline.source.batch_reader import BatchReader
    from escapement.pipeline.source.stream_reader import StreamReader


class EscapementSource(DataSource):
    """The data source for topics as DataFrames; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "escapement"

    def schema(self) -> str:
        return read_schema()

    def reader(self, schema: StructType) -> BatchReader:
        from escapement.pipeline.options import Options
        from escapement.pipeline.source.batch_reader import BatchReader

        return BatchReader(Options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from escapement.pipeline.source.stream_reader import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from escapement.pipeline.options import Options
        from escapement.pipeline.sink.writer import BatchWriter

        return BatchWriter(Options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from escapement.pipeline.options import Options
        from escapement.pipeline.sink.writer import StreamWriter

        return StreamWriter(Options(self.options), schema, overwrite)
