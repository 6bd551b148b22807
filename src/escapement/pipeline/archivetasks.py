"""The tasks of the job ``archive``: some make files, and others read them back.

Arrow makes the files (pipeline/archivefile.py), and Spark writes them, to any file system that it
knows, and commits each task once. What writes bytes in Spark is its format for text: it writes a
string as it is, and behind each the separator of lines. A file of Parquet ends with four fixed
bytes: those are the separator here, and each string is a file without them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from escapement.pipeline.archivedigest import Digest
from escapement.pipeline.archivefile import FILE_SCHEMA, Encoded, FoundFile, decode, encode
from escapement.pipeline.options import LogAddress
from escapement.pipeline.part import Part
from escapement.pipeline.reading import read_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAGIC: Final = b"PAR1"
# What Spark calls files of its format for text.
SUFFIX: Final = ".txt"


def write(
    spark: SparkSession, address: LogAddress, parts: Sequence[Part], directory: str
) -> Digest:
    """Write all messages of the parts to files in a directory; what they are, taken on the way."""
    from pyspark.accumulators import AccumulatorParam

    class Sum(AccumulatorParam[Digest]):
        def zero(self, value: Digest) -> Digest:
            return value

        def addInPlace(self, value1: Digest, value2: Digest) -> Digest:
            return value1 + value2

    pickled = [pickle.dumps(part) for part in parts]
    # Of each part what one task has added that succeeded, and no other.
    passed = spark.sparkContext.accumulator(Digest(), Sum())

    def make(numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                part: Part = pickle.loads(pickled[number])
                for content, digest in _made(address, part):
                    passed.add(digest)
                    yield _row(content)

    (
        spark.range(0, len(parts), 1, len(parts))
        .mapInArrow(make, "content STRING")
        .write.option("lineSep", _MAGIC.decode())
        .option("maxRecordsPerFile", "1")
        .option("compression", "none")
        .text(directory)
    )
    read: Digest = passed.value
    return read


def _made(address: LogAddress, part: Part) -> Iterator[Encoded]:
    engine = address.engine()
    try:
        yield from encode(part.topic, read_part(engine, part, FILE_SCHEMA))
    finally:
        engine.close()


def _row(content: Any) -> Any:
    """A file without its end, as a record batch of one row."""
    import pyarrow as pa

    length = len(content) - len(_MAGIC)
    assert content[length:].to_pybytes() == _MAGIC
    places = pa.array([0, length], pa.int32()).buffers()[1]
    string = pa.Array.from_buffers(pa.string(), 1, [None, places, content])
    return pa.record_batch([string], ["content"])


def read_back(spark: SparkSession, directory: str) -> dict[str, FoundFile]:
    """What is in all files of a directory, by their whole paths.

    Raises:
      PySparkException: if one is damaged, among others.
    """

    def found(files: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in files:
            for path, content in zip(batch["path"], batch["content"], strict=True):
                if len(content.as_buffer()):  # a task that made none may leave an empty one
                    row = [[path.as_py()], [pickle.dumps(decode(content.as_buffer()))]]
                    yield pa.record_batch(row, ["path", "found"])

    # A file at a time, and not a column less: Java would copy all files to leave one out.
    with _setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", "1"):
        rows = (
            spark.read.format("binaryFile")
            .option("pathGlobFilter", f"*{SUFFIX}")
            .load(directory)
            .mapInArrow(found, "path STRING, found BINARY")
            .collect()
        )
    return {row["path"]: pickle.loads(row["found"]) for row in rows}


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Have a setting of the session for a while."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
