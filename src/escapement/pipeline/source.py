"""The data source ``escapement``: what Spark asks for first.

Every instance lives in a Python process that Spark starts for one question, and travels to
the next as a pickle, so it holds its options and nothing else. What answers a question is
imported when that is asked: the first two processes of a session want but a name and a schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from escapement.pipeline.columns import read_schema

if TYPE_CHECKING:
    from escapement.pipeline.reader import BatchReader
    from escapement.pipeline.stream import StreamReader
    from escapement.pipeline.writer import BatchWriter, StreamWriter


class EscapementSource(DataSource):
    """Topics of escapement as DataFrames; docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "escapement"

    def schema(self) -> str:
        return read_schema()

    def reader(self, schema: StructType) -> BatchReader:
        from escapement.pipeline.options import Options
        from escapement.pipeline.reader import BatchReader

        return BatchReader(Options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from escapement.pipeline.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from escapement.pipeline.options import Options
        from escapement.pipeline.writer import BatchWriter

        return BatchWriter(Options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from escapement.pipeline.options import Options
        from escapement.pipeline.writer import StreamWriter

        return StreamWriter(Options(self.options), schema, overwrite)
