"""That what was written is what was read: sums over messages, by Spark itself.

A digest says how many messages, which offsets, and a sum in which no message can be exchanged
for another unseen: 64-bit hashes over all columns, by exclusive or, and by addition of their upper
halves. It does not depend on the order of messages, so it is taken while they are written, and
again of what is read back, file by file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np

from escapement.errors import StorageError
from escapement.pipeline.archivemanifest import ArchivedFile
from escapement.pipeline.columns import READ_COLUMNS, read_schema
from escapement.storage.offsets import OffsetSet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, Row, SparkSession

# Places in a bitmap of Spark's ``bitmap_construct_agg``.
_BITMAP: Final = 1 << 15
_MASK: Final = (1 << 64) - 1
# Maps have no hash, their entries do.
_HASHED: Final = ", ".join(
    f"map_entries({name})" if kind.startswith("MAP") else f"`{name}`"
    for name, kind in READ_COLUMNS.items()
)
_HASH: Final = f"xxhash64({_HASHED}) AS hash"
_DIGEST: Final[Mapping[str, str]] = {
    "messages": "count(*)",
    "mixed": "bit_xor(hash)",
    "total": "sum(shiftrightunsigned(hash, 32))",
    "first_offset": "min(`offset`)",
    "last_offset": "max(`offset`)",
    "offsets": "sum(`offset`)",
}
_BOUNDS: Final[Mapping[str, str]] = {
    "min_due_ms": "unix_millis(min(deliver_at))",
    "max_due_ms": "unix_millis(max(deliver_at))",
    "min_published_ms": "unix_millis(min(published_at))",
    "max_published_ms": "unix_millis(max(published_at))",
}


@dataclass(frozen=True, slots=True)
class Digest:
    """See the module's docstring; of nothing all is 0."""

    messages: int = 0
    mixed: int = 0
    total: int = 0
    offsets: int = 0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Digest:
        """What Spark says."""
        return cls(*(int(row.get(name) or 0) for name in cls.__slots__))

    def __add__(self, other: Digest) -> Digest:
        return Digest(
            self.messages + other.messages,
            self.mixed ^ other.mixed,
            self.total + other.total,
            self.offsets + other.offsets,
        )

    @property
    def content(self) -> str:
        """The sum as 32 hexadecimal digits."""
        return f"{self.mixed & _MASK:016x}{self.total & _MASK:016x}"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What is in a file, read back."""

    row: Row
    digest: Digest
    sha256: str
    size_bytes: int

    @property
    def topic(self) -> str:
        """Whose messages it has."""
        return str(self.row["topic"])

    def described(self, path: str) -> ArchivedFile:
        """For a manifest, in which it has this path."""
        bounds = {name: int(self.row[name]) for name in _BOUNDS}
        return ArchivedFile(
            path,
            self.size_bytes,
            self.sha256,
            self.digest.messages,
            self.row["first_offset"],
            self.row["last_offset"],
            **bounds,
            content=self.digest.content,
        )


def digested(messages: DataFrame, into: Observation) -> DataFrame:
    """The messages, of which a digest is taken while they pass: :meth:`Digest.of` reads it."""
    from pyspark.sql.functions import expr

    columns = [expr(how).alias(name) for name, how in _DIGEST.items()]
    return messages.selectExpr("*", _HASH).observe(into, *columns).drop("hash")


def read_back(spark: SparkSession, directory: str) -> dict[str, WrittenFile]:
    """What is in all Parquet files below a directory, by their whole paths."""
    from pyspark.sql.functions import expr

    wanted = {**_DIGEST, **_BOUNDS, "topic": "max(topic)"}
    columns = [expr(how).alias(name) for name, how in wanted.items()]
    found = messages_of(spark, directory).groupBy("file").agg(*columns).collect()
    summed = (
        spark.read.format("binaryFile")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .load(directory)
        .selectExpr("path", "length", "sha2(content, 256) AS sha256")
    )
    sums = {row["path"]: row for row in summed.collect()}
    files: dict[str, WrittenFile] = {}
    for row in found:
        path = unquote(row["file"])
        digest = Digest.of(row.asDict())
        files[path] = WrittenFile(row, digest, sums[path]["sha256"], sums[path]["length"])
    return files


def messages_of(spark: SparkSession, directory: str) -> DataFrame:
    """The messages below a directory, with their hashes and their ``file``, percent-encoded."""
    return (
        spark.read.schema(f"{read_schema()}, namespace STRING, day DATE")
        .parquet(directory)
        .selectExpr(*(f"`{name}`" for name in READ_COLUMNS), "_metadata.file_path AS file", _HASH)
    )


def offsets_of(
    spark: SparkSession, directory: str, files: Mapping[str, WrittenFile]
) -> dict[str, OffsetSet]:
    """Which messages are in each file, by its whole path.

    Raises:
      StorageError: if a message is in a file twice.
    """
    found: dict[str, OffsetSet] = {}
    sparse = False
    for path, file in files.items():
        found[path] = OffsetSet()
        low, high = file.row["first_offset"], file.row["last_offset"] + 1
        if high - low == file.digest.messages and _sum(low, high) == file.digest.offsets:
            found[path].add_range(low, high)
        else:
            sparse = True
    if sparse:
        for path, offsets in _bitmaps(spark, directory):
            found[path].add(offsets)
    for path, file in files.items():
        if len(found[path]) != file.digest.messages:
            raise StorageError(f"{path} has a message twice: nothing is archived")
    return found


def _sum(low: int, high: int) -> int:
    return (low + high - 1) * (high - low) // 2


def _bitmaps(spark: SparkSession, directory: str) -> list[tuple[str, Any]]:
    rows: Sequence[Row] = (
        messages_of(spark, directory)
        .selectExpr("file", "`offset` + 1 AS place")
        .selectExpr(
            "file", "bitmap_bucket_number(place) AS bucket", "bitmap_bit_position(place) AS bit"
        )
        .groupBy("file", "bucket")
        .agg({"bit": "bitmap_construct_agg"})
        .collect()
    )
    found = []
    for file, bucket, bitmap in rows:
        bits = np.unpackbits(np.frombuffer(bytes(bitmap), np.uint8), bitorder="little")
        offsets = np.flatnonzero(bits) + (bucket - 1) * _BITMAP
        found.append((unquote(file), offsets))
    return found
