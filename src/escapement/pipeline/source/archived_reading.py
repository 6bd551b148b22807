"""A reader of archived messages that the log has forgotten, as Arrow record batches.

Manifests in the database name the files of an archive (storage/archive_record.py). A message is
read from a file only if the log no longer has it, so each message is read once. The log is
preferred because its row has more information. The reader skips whole files by the bounds of
offsets and times in their manifest. It skips row groups, the sections of a Parquet file, by the
bounds of offsets in the file's statistics.

The reading process opens files through pyarrow's file systems, which must find their credentials
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from escapement.errors import InvalidRequest, LogDamaged
from escapement.message import Bools, Int64s
from escapement.pipeline import arrow
from escapement.pipeline.archive_manifest import ArchivedFile, Manifest
from escapement.pipeline.directories.local_directory import local_path
from escapement.pipeline.selection import Selection, Span
from escapement.pipeline.source.message_status import NO_COUNT, STATES, MessageStatuses
from escapement.pipeline.task_groups import group_pieces
from escapement.storage import archive_record
from escapement.storage.engine.base import Connection

# The bounds of one part, which one task reads.
_MOST_MESSAGES: Final = 1_000_000
_MOST_FILES: Final = 64
# The bounds of one record batch: the size of its data before compression, and the number of rows.
_STEP_BYTES: Final = 8 << 20
_MOST_ROWS: Final = 1 << 17
# The maximum of rows in a record batch with a dictionary-encoded column of long values. Such a
# column may be much larger in memory than in the file, which stores repeated values once.
_MOST_REPEATED: Final = 1 << 12
_LONG: Final = frozenset({"key", "properties", "payload"})
# Spark's names of file systems for which pyarrow has another name.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
# Columns of times that a selection bounds, each with the attribute of the selection for its range.
_RANGES: Final = (("published_at", "published"), ("deliver_at", "due"))


@dataclass(frozen=True, slots=True, eq=False)
class ArchivedPart:
    """Files of one topic that one task reads, and the selection of their messages."""

    topic: str
    files: tuple[tuple[str, ArchivedFile], ...]  # each with the root directory of its archive
    selection: Selection
    live: Int64s  # offsets that the log still has, which are not read from files; ascending
    # If given, states and attempts are those of one subscription, instead of those in the files.
    statuses: MessageStatuses | None

    @property
    def messages(self) -> int:
        """The number of messages in all files, an upper bound of the number of selected ones."""
        return sum(file.messages for _, file in self.files)


def archived_parts(
    connection: Connection,
    topic: str,
    topic_id: int,
    selection: Selection,
    live: Int64s,
    statuses: MessageStatuses | None,
) -> list[ArchivedPart]:
    """Return the parts with all archived messages of a selection, divided among tasks.

    Args:
      live: offsets that the log still has, which are not read from files; ascending.
      statuses: the data for the states and attempts of one subscription, or None.
    """
    span = selection.offsets
    files: list[tuple[str, ArchivedFile]] = []
    for record in archive_record.records(connection, topic_id, span.low, span.high):
        manifest = Manifest.decode(record.manifest)
        files += [(manifest.root, file) for file in manifest.files if file.may_have(selection)]
    return [
        ArchivedPart(topic, some, selection, live, statuses)
        for some in group_pieces(files, lambda one: one[1].messages, _MOST_MESSAGES, _MOST_FILES)
    ]


def read_archived(part: ArchivedPart, schema: Any) -> Iterator[Any]:
    """Yield the part's messages, in record batches with the columns of ``schema``.

    Raises:
      InvalidRequest: if pyarrow cannot open the file system, or a file.
      LogDamaged: if a file is damaged or contradicts its manifest.
    """
    for root, file in part.files:
        with opened(root, file) as (stream, path):
            yield from _read(part, stream, path, file, schema)


@contextmanager
def opened(root: str, file: ArchivedFile) -> Iterator[tuple[Any, str]]:
    """Open an archive file. Yield it as a seekable stream, and its path for error messages.

    Args:
      root: the root directory of the archive, as a URI in Spark's notation.

    Raises:
      InvalidRequest: if pyarrow cannot open the file.
    """
    system, base = _system(root)
    path = f"{base}/{file.path}"
    try:
        stream = system.open_input_file(path)
    except Exception as error:  # each file system raises exceptions of its own
        raise _unopened(path, error) from None
    with stream:
        yield stream, path


@lru_cache(maxsize=16)
def _system(root: str) -> tuple[Any, str]:
    """Return pyarrow's file system for an archive's root, and the path of the root in it.

    Making the file system of S3 takes 5 ms, as long as reading thousands of messages. Each has its
    own connections. So it is made once for all files of a root.
    """
    from pyarrow import fs

    local = local_path(root)
    if local is not None:
        return fs.LocalFileSystem(), str(local)
    scheme, _, rest = root.partition(":")
    authority, slash, path = rest.removeprefix("//").partition("/")
    try:
        system, base = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{authority}")
    except Exception as error:  # each file system raises exceptions of its own
        raise _unopened(root, error) from None
    return system, f"{base.rstrip('/')}{slash}{path}"


def _unopened(what: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"pyarrow cannot open the archive at {what}: {error}. Set the option archived to false to"
        " read only the log, and read the archive with spark.read.parquet"
    )


def _read(
    part: ArchivedPart, stream: Any, path: str, file: ArchivedFile, schema: Any
) -> Iterator[Any]:
    from pyarrow import ArrowInvalid, parquet

    try:
        content = parquet.ParquetFile(stream)
    except (ArrowInvalid, OSError) as error:
        raise LogDamaged(f"{path} is damaged: {error}") from None
    metadata = content.metadata
    if metadata.num_rows != file.messages:
        raise LogDamaged(f"{path} has {metadata.num_rows} messages, not {file.messages}")
    needed = {"offset", *(name for name in schema.names if name != "topic")}
    needed |= {name for name, kind in _RANGES if getattr(part.selection, kind) != Span()}
    if part.statuses is not None:
        needed.add("deliver_at")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not _may_have(group, part.selection):
            continue
        for batch in content.iter_batches(
            batch_size=_rows_at_once(group, needed), row_groups=[number], columns=sorted(needed)
        ):
            yield from _batches(part, batch, schema)


def _rows_at_once(group: Any, needed: Set[str]) -> int:
    """Return the maximum number of rows of a record batch that is read from a row group.

    Args:
      needed: the names of the columns to read.
    """
    rows = max(_STEP_BYTES * int(group.num_rows) // max(int(group.total_byte_size), 1), 1)
    columns = map(group.column, range(group.num_columns))
    repeats = any(
        column.has_dictionary_page and column.path_in_schema.split(".")[0] in _LONG & needed
        for column in columns
    )
    return min(rows, _MOST_REPEATED if repeats else _MOST_ROWS)


def _may_have(group: Any, selection: Selection) -> bool:
    """Return whether a row group may have selected offsets, by its Parquet statistics."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "offset" and column.statistics is not None:
            found = column.statistics
            return not found.has_min_max or selection.offsets.meets(found.min, found.max)
    return True


def _batches(part: ArchivedPart, batch: Any, schema: Any) -> Iterator[Any]:
    """Yield one record batch with the selected messages of ``batch``, or nothing if it has none."""
    offsets = arrow.values_of(batch.column("offset"), np.int64)
    span = part.selection.offsets
    wanted: Bools = (offsets >= span.low) & (offsets < span.high)
    wanted &= ~np.isin(offsets, part.live)
    for name, kind in _RANGES:
        if name in batch.schema.names:
            times_ms, span = _times_ms(batch, name), getattr(part.selection, kind)
            wanted &= (times_ms >= span.low) & (times_ms < span.high)
    if not wanted.any():
        return
    if not wanted.all():
        batch = batch.filter(arrow.booleans(wanted))
    filled = {
        name: arrow.same(part.topic, len(batch))
        if name == "topic"
        else batch.column(name).cast(schema.field(name).type)
        for name in schema.names
    }
    if part.statuses is not None:
        offsets, due_ms = (
            arrow.values_of(batch.column("offset"), np.int64),
            _times_ms(batch, "deliver_at"),
        )
        codes, counts = part.statuses.codes_and_counts(due_ms, offsets)
        filled["state"] = arrow.words(STATES, codes)
        filled["attempt"] = arrow.integers(counts, counts != NO_COUNT)
    yield arrow.record_batch(schema, filled)


def _times_ms(batch: Any, name: str) -> Int64s:
    return arrow.values_of(batch.column(name).cast("int64"), np.int64) // 1000
