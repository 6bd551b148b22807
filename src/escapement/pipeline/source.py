"""The data source ``escapement``: what Spark asks for first.

Every instance lives in a Python process that Spark starts for one question, and travels to
the next as a pickle, so it holds its options and nothing else.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from escapement.pipeline.columns import read_schema
from escapement.pipeline.options import Options
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
        return BatchReader(Options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(Options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(Options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(Options(self.options), schema, overwrite)
