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
from escapement.pipeline.archivefile import FILE_SCHEMA, FoundFile, decode, encode
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
    from pyspark.sql import Observation
    from pyspark.sql.functions import bit_xor
    from pyspark.sql.functions import sum as total

    pickled = [pickle.dumps(part) for part in parts]

    def make(numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from _made(address, pickle.loads(pickled[number]))

    passed = Observation("archive")
    (
        spark.range(0, len(parts), 1, len(parts))
        .mapInArrow(make, "content STRING, messages BIGINT, mixed BIGINT, total BIGINT")
        .observe(
            passed,
            total("messages").alias("messages"),
            bit_xor("mixed").alias("mixed"),
            total("total").alias("total"),
        )
        .select("content")
        .write.option("lineSep", _MAGIC.decode())
        .option("maxRecordsPerFile", "1")
        .option("compression", "none")
        .text(directory)
    )
    return Digest(*(passed.get[name] or 0 for name in Digest.__slots__))


def _made(address: LogAddress, part: Part) -> Iterator[Any]:
    """The files of a part, each as a row."""
    import pyarrow as pa

    engine = address.engine()
    try:
        for content, digest in encode(part.topic, read_part(engine, part, FILE_SCHEMA)):
            length = len(content) - len(_MAGIC)
            assert content[length:].to_pybytes() == _MAGIC
            places = pa.array([0, length], pa.int32()).buffers()[1]
            string = pa.Array.from_buffers(pa.string(), 1, [None, places, content])
            sums = [pa.array([getattr(digest, name)], pa.int64()) for name in Digest.__slots__]
            yield pa.record_batch([string, *sums], ["content", *Digest.__slots__])
    finally:
        engine.close()


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
