"""Archive records: which messages of each topic are archived, and in which files.

The archive job copies finished messages to files outside the database, in steps. Each step has an
id, its *run*. When the files of a run are written and verified, one transaction adds a record for
each topic to the table ``archives``, and the offsets of the messages to the topic's set of archived
offsets, in the table ``archived_chunks``. This module owns both tables. A record's *manifest* lists
the files; the package ``pipeline`` defines its format. Files that no record names do not count.

An offset is archived once: a record with an offset that is already in the set is refused, so two
runs cannot archive the same message. The log deletes a message only after it is recorded here
(broker/upkeep/archive_hold.py).

Only one archive job works on a log at a time: :func:`alone`. The job writes its records over the
connection that holds this lock, so writing fails if the lock was lost. After a topic is deleted,
storage/cleanup deletes its rows in these tables. Its archive files stay.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from escapement.errors import Conflict, NotFound
from escapement.message import Int64s
from escapement.storage.data_table import ARCHIVED_CHUNKS, loaded
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.named_lock import named_lock
from escapement.storage.engine.transaction import transaction
from escapement.storage.log.log_table import NO_END
from escapement.storage.offsets import CHUNK_SIZE, FULL_CHUNKS, OffsetSet

_COLUMNS: Final = (
    "topic_id, run, archived_at_ms, message_count, size_bytes, first_offset, last_offset, manifest"
)
# How long the job's connection may be idle: a day. After that the MySQL server closes the
# connection, which releases the lock.
_IDLE_S: Final = 86_400
# Limit of offsets in each array that :func:`lacking` yields.
_AT_ONCE: Final = 1 << 20


class ArchiveRecord(NamedTuple):
    """The record of the files that one run wrote for one topic."""

    topic_id: int
    run: str
    archived_at_ms: int
    message_count: int
    size_bytes: int  # total size of the files
    first_offset: int
    last_offset: int
    manifest: bytes


def archived(connection: Connection, topic_id: int, low: int = 0, high: int = NO_END) -> OffsetSet:
    """Return the set of a topic's archived offsets. It may lack offsets outside ``[low, high)``."""
    rows = connection.execute(
        "SELECT chunk, data FROM archived_chunks"
        " WHERE topic_id = ? AND (chunk = ? OR chunk BETWEEN ? AND ?) ORDER BY chunk",
        (topic_id, FULL_CHUNKS, low // CHUNK_SIZE, high // CHUNK_SIZE),
    ).rows
    return loaded(rows, OffsetSet())


def version(connection: Connection) -> int:
    """Return a number that grows with each archive record of any topic; 0 without records."""
    found = connection.execute("SELECT MAX(id) FROM archives").rows[0][0]
    return 0 if found is None else int(found)


def records(
    connection: Connection, topic_id: int, low: int = 0, high: int = NO_END
) -> list[ArchiveRecord]:
    """Return a topic's archive records, oldest first.

    Leaves out a record if all of its offsets lie outside ``[low, high)``.
    """
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM archives"
        " WHERE topic_id = ? AND last_offset >= ? AND first_offset < ? ORDER BY id",
        (topic_id, low, high),
    ).rows
    return [ArchiveRecord(*row) for row in rows]


def is_recorded(connection: Connection, topic_id: int, run: str) -> bool:
    """Return whether there is an archive record of this run for the topic."""
    query = "SELECT 1 FROM archives WHERE topic_id = ? AND run = ?"
    return bool(connection.execute(query, (topic_id, run)).rows)


def record(engine: Engine, connection: Connection, new: ArchiveRecord, offsets: OffsetSet) -> None:
    """Store an archive record and add its offsets to the topic's set, in one transaction.

    Args:
      new: the record, whose manifest lists verified files.
      offsets: the offsets of all messages in these files.

    Raises:
      NotFound: if the topic was deleted; nothing is recorded.
      Conflict: if some messages are archived already; nothing is recorded.
      StorageUnavailable: if the database cannot be reached.
      OutcomeUnknown: if the commit got no reply; the record may exist or not.
    """
    assert len(offsets) == new.message_count, "the record's count differs from its offsets"
    with transaction(connection):
        # Lock the topic's row, so that a deletion of the topic, or another record, has to wait.
        there = connection.execute(
            f"SELECT 1 FROM topics WHERE id = ?{engine.dialect.update_lock}", (new.topic_id,)
        ).rows
        if not there:
            raise NotFound(f"topic {new.topic_id} was deleted while it was archived")
        known = archived(connection, new.topic_id, new.first_offset, new.last_offset + 1)
        added = known.union_update(offsets)
        if added != len(offsets):
            raise Conflict(
                f"{len(offsets) - added:,} messages of topic {new.topic_id} are archived already"
                " by another run; run archive again"
            )
        chunks = [(new.topic_id, *chunk) for chunk in known.dirty_chunks().items()]
        for sql, params in ARCHIVED_CHUNKS.changes(chunks):
            connection.execute(sql, params)
        connection.execute(
            f"INSERT INTO archives ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", tuple(new)
        )


@contextmanager
def alone(engine: Engine, connection: Connection) -> Iterator[None]:
    """Hold the lock of the archive job while the ``with`` block runs.

    The lock is lost if the process ends, or on MySQL if ``connection`` breaks.

    Raises:
      Conflict: if another archive job holds the lock.
    """
    if engine.kind != "mysql":
        # SQLite has no named locks, so a lock file beside the database replaces them.
        file = os.open(f"{engine.location}.archiving", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise _busy() from None
            yield
        finally:
            os.close(file)
        return
    with named_lock(connection, "archive.", 0) as got:
        if not got:
            raise _busy()
        # The job may send no statement for hours while it writes files.
        connection.execute(f"SET SESSION wait_timeout = {_IDLE_S}")
        yield


def _busy() -> Conflict:
    return Conflict("another run is archiving this log; wait until it has ended")


def lacking(archived: OffsetSet, low: int, high: int) -> Iterator[Int64s]:
    """Yield the offsets in ``[low, high)`` that ``archived`` lacks, ascending, as int64 arrays."""
    while (low := archived.first_missing(low)) < high:
        found = archived.missing(low, high, _AT_ONCE)
        yield found
        low = int(found[-1]) + 1
