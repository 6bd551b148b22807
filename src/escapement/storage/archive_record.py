"""Archive records: which offsets of each topic are archived, by which run.

Owns the tables ``archives`` and ``archived_chunks``. One transaction records that a run has
written and verified its files, and adds their offsets to the topic's set. Files without a record
do not count. An offset is archived once: a record with an offset that is in the set already is
refused, so two runs cannot archive the same message. After the record the log may delete the
message (broker/upkeep/archive_hold.py).

Only one run of the archive job works on a log at a time: :func:`alone`. A record is written over
the connection that holds this lock, so it fails if the lock was lost. The pipeline defines the
content of a manifest. storage/removal.py has a deleted topic's rows deleted; its files stay.
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
# A day. The server closes a connection that is idle for longer, and releases its lock.
_IDLE_S: Final = 86_400
# Offsets compared in one step.
_AT_ONCE: Final = 1 << 20


class ArchiveRecord(NamedTuple):
    """The record of one run's archive of one topic."""

    topic_id: int
    run: str
    archived_at_ms: int
    message_count: int
    size_bytes: int  # of the files
    first_offset: int
    last_offset: int
    manifest: bytes


def archived(connection: Connection, topic_id: int, low: int = 0, high: int = NO_END) -> OffsetSet:
    """Return the archived offsets of a topic; complete at least for ``[low, high)``."""
    rows = connection.execute(
        "SELECT chunk, data FROM archived_chunks"
        " WHERE topic_id = ? AND (chunk = ? OR chunk BETWEEN ? AND ?) ORDER BY chunk",
        (topic_id, FULL_CHUNKS, low // CHUNK_SIZE, high // CHUNK_SIZE),
    ).rows
    return loaded(rows, OffsetSet())


def version(connection: Connection) -> int:
    """Return a number that grows with each record."""
    found = connection.execute("SELECT MAX(id) FROM archives").rows[0][0]
    return 0 if found is None else int(found)


def records(
    connection: Connection, topic_id: int, low: int = 0, high: int = NO_END
) -> list[ArchiveRecord]:
    """Return the records of a topic that may overlap ``[low, high)``, in order of creation."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM archives"
        " WHERE topic_id = ? AND last_offset >= ? AND first_offset < ? ORDER BY id",
        (topic_id, low, high),
    ).rows
    return [ArchiveRecord(*row) for row in rows]


def is_recorded(connection: Connection, topic_id: int, run: str) -> bool:
    """Return whether the run has a record for the topic."""
    query = "SELECT 1 FROM archives WHERE topic_id = ? AND run = ?"
    return bool(connection.execute(query, (topic_id, run)).rows)


def record(engine: Engine, connection: Connection, new: ArchiveRecord, offsets: OffsetSet) -> None:
    """Record that the manifest's files have these messages, in a transaction of its own.

    Raises:
      NotFound: if the topic was deleted; nothing is recorded.
      Conflict: if some messages are archived already; nothing is recorded.
      StorageUnavailable: if the database cannot be reached.
      OutcomeUnknown: if the commit got no reply; the record may exist or not.
    """
    assert len(offsets) == new.message_count, "the record's count differs from its offsets"
    with transaction(connection):
        # The lock makes the deletion of the topic, and other records of it, wait.
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
    """Hold the lock of the archive job while this connection and this process live.

    Raises:
      Conflict: if another run holds it.
    """
    if engine.kind != "mysql":
        # SQLite has no locks besides those of transactions.
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
        # A run may take long between two statements.
        connection.execute(f"SET SESSION wait_timeout = {_IDLE_S}")
        yield


def _busy() -> Conflict:
    return Conflict("another run is archiving this log; wait until it has ended")


def lacking(archived: OffsetSet, low: int, high: int) -> Iterator[Int64s]:
    """Yield the offsets in ``[low, high)`` that are not archived; int64[n] each, ascending."""
    while (low := archived.first_missing(low)) < high:
        found = archived.missing(low, high, _AT_ONCE)
        yield found
        low = int(found[-1]) + 1
