"""What of each topic is in an archive: a set of offsets, and who wrote them where.

Owns the tables ``archives`` and ``archived_chunks``. A record says that files were written and
verified, and adds their offsets to the topic's set, in one transaction; until then whatever was
written counts for nothing. An offset is archived once: a record that names one which is in the
set already is refused, so no two runs can archive the same message. From then on the log may
forget it (broker/upkeep/archivehold.py).

One run of the job is at work on a log at a time: :func:`alone`. A record is made over the very
connection that holds this, so it fails if that was lost. What is in a manifest is the
pipeline's business. A deleted topic's rows are freed by storage/removal.py; its files stay.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from escapement.errors import Conflict, EscapementError, NotFound
from escapement.message import Int64s
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.transaction import transaction
from escapement.storage.log.logtable import NO_END
from escapement.storage.offsets import CHUNK_SIZE, FULL_CHUNKS, OffsetSet

# Named locks belong to the whole server: the database's name keeps ours apart.
_LOCK_NAME: Final = "CONCAT('escapement.archive.', SHA1(DATABASE()))"
_COLUMNS: Final = (
    "topic_id, run, archived_at_ms, message_count, size_bytes, first_offset, last_offset, manifest"
)
# The server closes a connection, and gives up its lock, that is idle for longer: a day.
_IDLE_S: Final = 86_400
# Offsets compared at once.
_AT_ONCE: Final = 1 << 20


class ArchiveRecord(NamedTuple):
    """What one run has archived of one topic."""

    topic_id: int
    run: str
    archived_at_ms: int
    message_count: int
    size_bytes: int  # of the files
    first_offset: int
    last_offset: int
    manifest: bytes


def archived(connection: Connection, topic_id: int, low: int = 0, high: int = NO_END) -> OffsetSet:
    """What of a topic is archived, at least of ``[low, high)``."""
    found = OffsetSet()
    rows = connection.execute(
        "SELECT chunk, data FROM archived_chunks"
        " WHERE topic_id = ? AND (chunk = ? OR chunk BETWEEN ? AND ?) ORDER BY chunk",
        (topic_id, FULL_CHUNKS, low // CHUNK_SIZE, high // CHUNK_SIZE),
    ).rows
    for chunk, data in rows:
        found.load_chunk(chunk, data)
    return found


def version(connection: Connection) -> int:
    """A number that grows with each record."""
    found = connection.execute("SELECT MAX(id) FROM archives").rows[0][0]
    return 0 if found is None else int(found)


def records(
    connection: Connection, topic_id: int, low: int = 0, high: int = NO_END
) -> list[ArchiveRecord]:
    """Those of a topic that may have any of ``[low, high)``, as they were made."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM archives"
        " WHERE topic_id = ? AND last_offset >= ? AND first_offset < ? ORDER BY id",
        (topic_id, low, high),
    ).rows
    return [ArchiveRecord(*row) for row in rows]


def is_recorded(connection: Connection, topic_id: int, run: str) -> bool:
    """Whether the run has recorded what it wrote of the topic."""
    query = "SELECT 1 FROM archives WHERE topic_id = ? AND run = ?"
    return bool(connection.execute(query, (topic_id, run)).rows)


def record(engine: Engine, connection: Connection, new: ArchiveRecord, offsets: OffsetSet) -> None:
    """These messages of the topic are in the files of the manifest; in a transaction of its own.

    Raises:
      NotFound: if the topic was deleted; nothing is recorded.
      Conflict: if some of them are archived already; nothing is recorded.
      StorageUnavailable: when the database cannot be reached.
      OutcomeUnknown: it may be recorded, or not.
    """
    assert len(offsets) == new.message_count, "a record of other messages"
    with transaction(connection):
        # Whoever deletes the topic waits, and so does whoever else would record.
        there = connection.execute(
            f"SELECT 1 FROM topics WHERE id = ?{engine.dialect.update_lock}", (new.topic_id,)
        ).rows
        if not there:
            raise NotFound(f"topic {new.topic_id} was deleted while it was archived")
        known = archived(connection, new.topic_id, new.first_offset, new.last_offset + 1)
        added = known.union_update(offsets)
        if added != len(offsets):
            raise Conflict(
                f"{len(offsets) - added:,} messages of topic {new.topic_id} are archived already:"
                " another run was at work"
            )
        for chunk, data in known.dirty_chunks().items():
            if data:
                connection.execute(
                    "REPLACE INTO archived_chunks (topic_id, chunk, data) VALUES (?, ?, ?)",
                    (new.topic_id, chunk, data),
                )
            else:
                connection.execute(
                    "DELETE FROM archived_chunks WHERE topic_id = ? AND chunk = ?",
                    (new.topic_id, chunk),
                )
        connection.execute(
            f"INSERT INTO archives ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", tuple(new)
        )


@contextmanager
def alone(engine: Engine, connection: Connection) -> Iterator[None]:
    """Archive a log alone, for as long as this connection lives and this process does.

    Raises:
      Conflict: if somebody else is at it.
    """
    if engine.kind != "mysql":
        # SQLite has no locks but those of transactions.
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
    if connection.execute(f"SELECT GET_LOCK({_LOCK_NAME}, 0)").rows[0][0] != 1:
        raise _busy()
    # Between two statements whole steps of a run may lie.
    connection.execute(f"SET SESSION wait_timeout = {_IDLE_S}")
    try:
        yield
    finally:
        # A connection that ends takes the lock along, but the server may notice only later.
        with suppress(EscapementError):
            connection.execute(f"SELECT RELEASE_LOCK({_LOCK_NAME})")


def _busy() -> Conflict:
    return Conflict("another run archives this log just now: wait until it has ended")


def lacking(archived: OffsetSet, low: int, high: int) -> Iterator[Int64s]:
    """What of ``[low, high)`` is not archived, in steps; int64[n] each, ascending."""
    while (low := archived.first_missing(low)) < high:
        found = archived.missing(low, high, _AT_ONCE)
        yield found
        low = int(found[-1]) + 1
