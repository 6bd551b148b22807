"""An archive file: messages of one topic and one day of publication, as Parquet, in memory.

Arrow encodes columns of messages as a file, and decodes a file to verify it. Encoding and decoding
both compute a digest of the messages (pipeline/archiving/digest.py). The two digests are equal if
the file has the messages that were encoded.

This module does not use Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from escapement.errors import StorageError
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.pipeline.archive_manifest import ArchivedFile
from escapement.pipeline.archiving.digest import Content, Digest
from escapement.pipeline.arrow import arrow_schema, longs, values_of
from escapement.pipeline.columns import NULLABLE, READ_COLUMNS
from escapement.storage.offsets import OffsetSet

# The columns of a file. All its messages have the same topic, which the file's metadata names.
FILE_SCHEMA: Final = arrow_schema(
    [(name, name in NULLABLE) for name in READ_COLUMNS if name != "topic"]
)
_TOPIC: Final = b"escapement.topic"
_ASCENDING: Final = ("offset", "deliver_at", "published_at")
# Options of Arrow's Parquet writer, for files that every Parquet reader supports. Payloads have no
# dictionary: compression finds repeated payloads too, and the writer would waste work on a
# dictionary that grows too large.
_FORMAT: Final[Mapping[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["priority", "attempt", "state"],
    "column_encoding": dict.fromkeys(_ASCENDING, "DELTA_BINARY_PACKED"),
    "write_statistics": list(_ASCENDING),
    "store_schema": False,
}
# The size of a row group before compression. Readers load a whole row group into memory.
_GROUP_BYTES: Final = 4 << 20
# The maximum size of all unfinished files of a task together, which are in memory. At this size,
# the largest file is finished. Python and Java may both have copies of a finished file.
_MOST_BYTES: Final = 48 << 20
_STEP_ROWS: Final = 1 << 16
_DAY_US: Final = 86_400_000_000
# The longest directory name that file systems accept, and the number of characters of a topic or
# namespace that the directory name keeps if it would be longer.
_MOST_NAME_CHARS: Final = 255
_KEPT_CHARS: Final = 200


def directory_of(topic: TopicName, day: date) -> str:
    """Return the path, below the archive's root, of the directory for a topic's files of one day.

    The path has Spark's partition style ``name=value``. Names are percent-encoded, slashes too.
    """
    partitions = (
        _partition_directory("namespace", topic.namespace_full),
        _partition_directory("topic", topic.full),
    )
    return f"{'/'.join(partitions)}/day={day.isoformat()}"


def _partition_directory(kind: str, name: str) -> str:
    """Return the directory name ``kind=name``. A name that is too long is cut and gets a hash."""
    directory = f"{kind}={quote(name, '')}"
    if len(directory) <= _MOST_NAME_CHARS:
        return directory
    return f"{kind}={quote(name[:_KEPT_CHARS], '')}~{sha256(name.encode()).hexdigest()[:16]}"


class Encoded(NamedTuple):
    """An encoded file, ready to be written."""

    content: Any  # pyarrow.Buffer
    digest: Digest  # of the messages in the file


def encode(topic: str, batches: Iterable[Any]) -> Iterator[Encoded]:
    """Encode a topic's messages as files of bounded size, at least one for each day.

    Args:
      batches: record batches with the columns of ``FILE_SCHEMA``.
    """
    files: dict[int, _Encoder] = {}  # unfinished files, by days since 1970
    for batch in batches:
        for day, some in _by_day(batch):
            if day not in files:
                files[day] = _Encoder(topic)
            files[day].add(some)
        while sum(file.size_bytes for file in files.values()) >= _MOST_BYTES:
            largest = max(files, key=lambda day: files[day].size_bytes)
            yield files.pop(largest).end()
    for file in files.values():
        yield file.end()


class _Encoder:
    """An archive file that is being encoded, and grows by batches of messages."""

    def __init__(self, topic: str) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = parquet.ParquetWriter(self._sink, FILE_SCHEMA, **_FORMAT)
        self._writer.add_key_value_metadata({_TOPIC: topic})
        self._content = Content(topic)
        self._group: list[Any] = []
        self._group_bytes = 0

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell()) + self._group_bytes

    def add(self, batch: Any) -> None:
        self._content.add(batch)
        self._group.append(batch)
        self._group_bytes += batch.nbytes
        if self._group_bytes >= _GROUP_BYTES:
            self._end_group()

    def end(self) -> Encoded:
        self._end_group()
        self._writer.close()
        return Encoded(self._sink.getvalue(), self._content.digest())

    def _end_group(self) -> None:
        if self._group:
            group = pa.Table.from_batches(self._group, FILE_SCHEMA)
            self._writer.write_table(group, row_group_size=len(group))
            self._group, self._group_bytes = [], 0


def _by_day(batch: Any) -> Iterator[tuple[int, Any]]:
    days = _microseconds(batch, "published_at") // _DAY_US
    for day in np.unique(days).tolist():
        rows = np.flatnonzero(days == day)
        low, high = int(rows[0]), int(rows[-1]) + 1
        whole = len(rows) == high - low
        yield day, batch.slice(low, high - low) if whole else batch.take(longs(rows))


class FoundFile(NamedTuple):
    """Facts about an archive file, as computed by decoding it."""

    topic: str
    day: date
    digest: Digest
    offsets: OffsetSet
    described: ArchivedFile  # the file's entry in a manifest, with an empty path


def decode(content: Any) -> FoundFile:
    """Decode a whole archive file, given as a buffer, and return facts about it.

    Raises:
      StorageError: if the file is damaged, has no messages, has a message twice, or has messages of
        several days.
    """
    try:
        return _decode(content)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise StorageError(f"the file is not a valid archive file: {error}") from error


def _decode(content: Any) -> FoundFile:
    file = parquet.ParquetFile(pa.BufferReader(content))
    topic = (file.metadata.metadata or {})[_TOPIC].decode()
    sums, offsets = Content(topic), OffsetSet()
    bounds: dict[str, list[int]] = {name: [] for name in _ASCENDING}
    for number in range(file.metadata.num_row_groups):
        for batch in file.iter_batches(_STEP_ROWS, row_groups=[number], use_threads=False):
            sums.add(batch)
            found = values_of(batch.column("offset"), np.int64)
            if offsets.add(found) != len(found):
                raise StorageError("the archive file has a message twice")
            for name, ends in bounds.items():
                values = found if name == "offset" else _microseconds(batch, name)
                ends += [int(values.min()), int(values.max())]
    digest = sums.digest()
    if not digest.messages:
        raise StorageError("the archive file has no messages")
    first_us, last_us = min(bounds["published_at"]), max(bounds["published_at"])
    if first_us // _DAY_US != last_us // _DAY_US:
        raise StorageError("the archive file has messages of several days")
    described = ArchivedFile(
        "",
        len(content),
        sha256(content).hexdigest(),
        digest.messages,
        min(bounds["offset"]),
        max(bounds["offset"]),
        min(bounds["deliver_at"]) // 1000,
        max(bounds["deliver_at"]) // 1000,
        first_us // 1000,
        last_us // 1000,
        digest.content,
    )
    day = date(1970, 1, 1) + timedelta(days=first_us // _DAY_US)
    return FoundFile(topic, day, digest, offsets, described)


def _microseconds(batch: Any, name: str) -> Int64s:
    return values_of(batch.column(name), np.int64)
