"""The tasks of the job ``archive``, which write files and read them back.

Arrow encodes the files (pipeline/archiving/archive_file.py). On a local file system, the task
itself writes and reads them. The driver uses the files that the successful attempt at each task
reports.

On any other file system, Spark writes the files and commits each task once. Other tasks then read
all files back. Spark can write raw bytes only in its text format: it writes each string unchanged,
followed by a line separator. Every Parquet file ends with the same four bytes. So these four bytes
are the line separator, and each string is one Parquet file without them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from escapement.message import Blobs
from escapement.pipeline.archiving.archive_file import (
    FILE_SCHEMA,
    Encoded,
    FoundFile,
    decode,
    encode,
)
from escapement.pipeline.archiving.digest import Digest
from escapement.pipeline.archiving.local_files import Stored, store
from escapement.pipeline.arrow import binaries
from escapement.pipeline.directories.local_directory import local_path
from escapement.pipeline.directories.shared_directory import SharedDirectory
from escapement.pipeline.kept_memory import keep_memory
from escapement.pipeline.options import LogAddress
from escapement.pipeline.source.part import Part
from escapement.pipeline.source.reading import read_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The last four bytes of every Parquet file.
_MAGIC: Final = b"PAR1"
# The suffix of files that Spark's text format writes.
_SUFFIX: Final = ".txt"


class Made(NamedTuple):
    """The files that all tasks wrote."""

    read: Digest  # of the messages as read from the log
    files: dict[str, FoundFile]  # facts about the files, as read back, by file name


def make(spark: SparkSession, address: LogAddress, parts: Sequence[Part], directory: str) -> Made:
    """Write all messages of the parts to files in a directory (a URI), and read the files back.

    Raises:
      PySparkException: if a task fails; for example because a file is damaged, or a worker does not
        see the local directory.
    """
    local = local_path(directory)
    if local is not None:
        return _make_locally(spark, address, parts, local)
    read = _write(spark, address, parts, directory)
    return Made(read, read_back(spark, directory) if read.messages else {})


def _make_locally(
    spark: SparkSession, address: LogAddress, parts: Sequence[Part], directory: Path
) -> Made:
    pickled = [pickle.dumps(part) for part in parts]
    shared = SharedDirectory.mark_in(directory)

    def stored(numbers: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for number, part in _of_task(numbers, pickled):
            for one in store(shared, number, _encoded(address, part)):
                told = binaries(Blobs.of([pickle.dumps(one)]))
                yield pa.record_batch([told], ["stored"])

    rows = _numbers(spark, parts).mapInArrow(stored, "stored BINARY").collect()
    found: list[Stored] = [pickle.loads(row["stored"]) for row in rows]
    read = sum((one.digest for one in found), Digest())
    return Made(read, {one.name: one.found for one in found})


def _write(
    spark: SparkSession, address: LogAddress, parts: Sequence[Part], directory: str
) -> Digest:
    """Write the files through Spark, and return the digest of the messages read."""
    from pyspark.accumulators import AccumulatorParam

    class Sum(AccumulatorParam[Digest]):
        def zero(self, value: Digest) -> Digest:
            return value

        def addInPlace(self, value1: Digest, value2: Digest) -> Digest:
            return value1 + value2

    pickled = [pickle.dumps(part) for part in parts]
    # Spark adds the updates of one successful attempt at each task, and no others.
    passed = spark.sparkContext.accumulator(Digest(), Sum())

    def made(numbers: Iterator[Any]) -> Iterator[Any]:
        for _, part in _of_task(numbers, pickled):
            for content, digest in _encoded(address, part):
                passed.add(digest)
                yield _row(content)

    (
        _numbers(spark, parts)
        .mapInArrow(made, "content STRING")
        .write.option("lineSep", _MAGIC.decode())
        .option("maxRecordsPerFile", "1")
        .option("compression", "none")
        .text(directory)
    )
    read: Digest = passed.value
    return read


def _numbers(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    """Return a DataFrame with the number of each part, in a row and a Spark task of its own."""
    return spark.range(0, len(parts), 1, len(parts))


def _of_task(numbers: Iterator[Any], pickled: Sequence[bytes]) -> Iterator[tuple[int, Part]]:
    keep_memory()
    for batch in numbers:
        for number in batch["id"].to_pylist():
            yield number, pickle.loads(pickled[number])


def _encoded(address: LogAddress, part: Part) -> Iterator[Encoded]:
    with closing(address.engine()) as engine:
        yield from encode(part.topic, read_part(engine, part, FILE_SCHEMA))


def _row(content: Any) -> Any:
    """Return a Parquet file without its last four bytes, as a record batch of one string."""
    import pyarrow as pa

    length = len(content) - len(_MAGIC)
    assert content[length:].to_pybytes() == _MAGIC
    string = binaries(Blobs(np.array([length], np.uint32), content[:length]))
    return pa.record_batch([string.view(pa.string())], ["content"])


def read_back(spark: SparkSession, directory: str) -> dict[str, FoundFile]:
    """Read and decode all files of a directory in Spark tasks. Return facts about each, by name."""

    def found(files: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        keep_memory()
        for batch in files:
            for number, content in enumerate(batch["content"]):
                if len(content.as_buffer()):  # a task without messages may leave an empty file
                    told = binaries(Blobs.of([pickle.dumps(decode(content.as_buffer()))]))
                    yield pa.record_batch([batch["path"].slice(number, 1), told], ["path", "found"])

    # A task gets one file at a time, to bound its memory. All columns are read, because Java would
    # copy the bytes of every file to drop a column.
    with _setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", "1"):
        rows = (
            spark.read.format("binaryFile")
            .option("pathGlobFilter", f"*{_SUFFIX}")
            .load(directory)
            .mapInArrow(found, "path STRING, found BINARY")
            .collect()
        )
    return {row["path"].rpartition("/")[2]: pickle.loads(row["found"]) for row in rows}


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of the Spark session for the duration of the ``with`` block."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
