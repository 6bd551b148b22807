"""Reads what the log has forgotten out of an archive, as Arrow's record batches.

An archive's files are named by manifests in the database (storage/archive.py). A message is
read from a file only where the log has it no more: while it does, its own row says more of it.
So each comes once. Files, and parts of files, are left out by the bounds of offsets and times
that manifests and Parquet's own statistics give.

Opened by pyarrow's file systems, in the process that reads: it is to have what these need to
find their credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from escapement.errors import InvalidRequest, LogDamaged
from escapement.message import Int64s
from escapement.pipeline import arrow
from escapement.pipeline.archivemanifest import ArchivedFile, Manifest
from escapement.pipeline.localplace import local_path
from escapement.pipeline.selection import Selection, Span
from escapement.pipeline.standing import NO_COUNT, STATES, Standing
from escapement.storage import archive
from escapement.storage.engine.base import Connection

# Of one task; a file has no more than so many.
_MOST_MESSAGES: Final = 1_000_000
_MOST_FILES: Final = 64
# Of one record batch, before it is compressed.
_STEP_BYTES: Final = 8 << 20
_MOST_ROWS: Final = 1 << 17
# What repeats is in a file once, so its size there says little of these columns.
_MOST_REPEATED: Final = 1 << 12
_LONG: Final = frozenset({"key", "properties", "payload"})
# Spark's names of a file system that pyarrow calls otherwise.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
# Columns that decide whether a message is wanted, and what of the selection they are held against.
_RANGES: Final = (("published_at", "published"), ("deliver_at", "due"))

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ArchivedPart:
    """Files of one topic that one task reads, and what of them is wanted."""

    topic: str
    files: tuple[tuple[str, ArchivedFile], ...]  # each with its root
    selection: Selection
    live: Int64s  # these the log has; ascending
    standing: Standing | None  # if they are to be seen from a subscription

    @property
    def messages(self) -> int:
        """How many it has, at most."""
        return sum(file.messages for _, file in self.files)


def archived_parts(
    connection: Connection,
    topic: str,
    topic_id: int,
    selection: Selection,
    live: Int64s,
    standing: Standing | None,
) -> list[ArchivedPart]:
    """The parts of what is archived in these ranges, but for what is ``live``."""
    span = selection.offsets
    files: list[tuple[str, ArchivedFile]] = []
    for record in archive.records(connection, topic_id, span.low, span.high):
        manifest = Manifest.decode(record.manifest)
        files += [(manifest.root, file) for file in manifest.files if file.may_have(selection)]
    return [ArchivedPart(topic, tuple(some), selection, live, standing) for some in _bounded(files)]


def _bounded(files: Iterable[tuple[str, ArchivedFile]]) -> Iterator[list[tuple[str, ArchivedFile]]]:
    some: list[tuple[str, ArchivedFile]] = []
    messages = 0
    for root, file in files:
        if some and (messages + file.messages > _MOST_MESSAGES or len(some) == _MOST_FILES):
            yield some
            some, messages = [], 0
        some.append((root, file))
        messages += file.messages
    if some:
        yield some


def read_archived(part: ArchivedPart, schema: Any) -> Iterator[Any]:
    """The part's messages, in batches with the columns of ``schema``.

    Raises:
      InvalidRequest: if pyarrow cannot open the file system, or a file.
      LogDamaged: if a file is not what the manifest says.
    """
    for root, file in part.files:
        with opened(root, file) as (stream, path):
            yield from _read(part, stream, path, file, schema)


@contextmanager
def opened(root: str, file: ArchivedFile) -> Iterator[tuple[Any, str]]:
    """A file as a stream to read at any place, and its path, for errors.

    Raises:
      InvalidRequest: if pyarrow cannot open it.
    """
    system, base = _system(root)
    path = f"{base}/{file.path}"
    try:
        stream = system.open_input_file(path)
    except Exception as error:  # of every file system its own kinds
        raise _unopened(path, error) from None
    with stream:
        yield stream, path


@lru_cache(maxsize=16)
def _system(root: str) -> tuple[Any, str]:
    """The file system, and the root's path in it; nothing in a path is an escape."""
    from pyarrow import fs

    local = local_path(root)
    if local is not None:
        return fs.LocalFileSystem(), str(local)
    scheme, _, rest = root.partition(":")
    authority, slash, path = rest.removeprefix("//").partition("/")
    try:
        system, base = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{authority}")
    except Exception as error:  # of every file system its own kinds
        raise _unopened(root, error) from None
    return system, f"{base.rstrip('/')}{slash}{path}"


def _unopened(what: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the archive's {what} cannot be opened by pyarrow: {error}; read it by"
        " spark.read.parquet, and leave it out here: set archived to false"
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
    if part.standing is not None:
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
    """How many of a row group's rows make a record batch."""
    rows = max(_STEP_BYTES * int(group.num_rows) // max(int(group.total_byte_size), 1), 1)
    columns = map(group.column, range(group.num_columns))
    repeats = any(
        column.has_dictionary_page and column.path_in_schema.split(".")[0] in _LONG & needed
        for column in columns
    )
    return min(rows, _MOST_REPEATED if repeats else _MOST_ROWS)


def _may_have(group: Any, selection: Selection) -> bool:
    """Whether a row group may have any of the offsets, by its statistics."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "offset" and column.statistics is not None:
            found = column.statistics
            return not found.has_min_max or selection.offsets.meets(found.min, found.max)
    return True


def _batches(part: ArchivedPart, batch: Any, schema: Any) -> Iterator[Any]:
    """One record batch, or none if nothing of it is wanted."""
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
    if part.standing is not None:
        offsets, due_ms = (
            arrow.values_of(batch.column("offset"), np.int64),
            _times_ms(batch, "deliver_at"),
        )
        codes, counts = part.standing.codes_and_counts(due_ms, offsets)
        filled["state"] = arrow.words(STATES, codes)
        filled["attempt"] = arrow.integers(counts, counts != NO_COUNT)
    yield arrow.record_batch(schema, filled)


def _times_ms(batch: Any, name: str) -> Int64s:
    return arrow.values_of(batch.column(name).cast("int64"), np.int64) // 1000
