"""The record of an outbox in the log: which rows the last batch has moved.

An *outbox* is a table in the database of an application. A *batch* is a number of its rows that
become inbox entries in one transaction of the log. The same transaction overwrites the record with
the number of the batch, and the ids and digests of its rows. So the rows of a batch are in the
inbox exactly if the record has this number or a higher one. Batches are numbered from 1 without
gaps. The source ids of inbox entries have the number of their batch, so they are never used again.

This module owns the table ``outboxes``. All functions run inside a transaction of the caller, which
the lease guards. The column ``moved_rows`` has the ids, i64 each, then the digests, 8 bytes each.
If an id does not fit into an i64, the column has the lowest i64, which is not the id of any row,
and then a list of the ids and a byte string of the digests, in msgpack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgpack
import numpy as np

from escapement.errors import StorageUnavailable
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.inbox import inbox
from escapement.storage.inbox.entry import InboxEntry

DIGEST_BYTES: Final = 8
_ROW_BYTES: Final = 8 + DIGEST_BYTES
# The id of a row: a number, or the value of a CHAR, UUID or BINARY column.
RowId = int | str | bytes
# Stands before ids that are not numbers of 64 bits.
_LOWEST: Final = -(2**63)
_OTHER_IDS: Final = _LOWEST.to_bytes(8, "little", signed=True)


class MovedRow(NamedTuple):
    """A row of an outbox that is in the inbox: its id, and a digest of its content."""

    id: RowId
    digest: bytes


class Record(NamedTuple):
    """The record of an outbox: the number of its last batch, and the rows of that batch."""

    batch: int
    rows: Sequence[MovedRow]


NO_RECORD: Final = Record(0, ())


def read_record(engine: Engine, connection: Connection, identity: bytes) -> Record:
    """Return the record of an outbox; ``NO_RECORD`` if none of its rows was ever moved."""
    rows = connection.execute(
        f"SELECT batch, moved_rows FROM outboxes WHERE identity = ?{engine.dialect.update_lock}",
        (identity,),
    ).rows
    return Record(int(rows[0][0]), _decode(bytes(rows[0][1]))) if rows else NO_RECORD


def write_batch(
    engine: Engine,
    connection: Connection,
    identity: bytes,
    record: Record,
    make_entries: Callable[[], Sequence[InboxEntry]],
    now_ms: int,
) -> None:
    """Insert the inbox entries of a batch, and overwrite the record of its outbox.

    Args:
      record: the new record. The record in the database must be that of the batch before.
      make_entries: makes the entries, in the thread of the transaction.

    Raises:
      StorageUnavailable: if the record is another one; nothing has changed.
    """
    before = read_record(engine, connection, identity).batch
    if before != record.batch - 1:
        raise StorageUnavailable(
            f"batch {record.batch} of an outbox cannot follow batch {before} in the log"
        )
    inbox.insert(engine, connection, make_entries(), now_ms)
    values = (record.batch, _encode(record.rows), now_ms, identity)
    sql = "UPDATE outboxes SET batch = ?, moved_rows = ?, moved_at_ms = ? WHERE identity = ?"
    if not before:
        sql = "INSERT INTO outboxes (batch, moved_rows, moved_at_ms, identity) VALUES (?, ?, ?, ?)"
    connection.execute(sql, values)


def source_id(identity: bytes, batch: int) -> str:
    """Return the source id of the inbox entries of a batch."""
    return f"outbox/{identity.hex()}/{batch}"


def _encode(rows: Sequence[MovedRow]) -> bytes:
    ids = [row.id for row in rows]
    digests = b"".join([row.digest for row in rows])
    if all(isinstance(id, int) and _LOWEST < id < -_LOWEST for id in ids):
        return np.array(ids, "<i8").tobytes() + digests
    packed: bytes = msgpack.packb((ids, digests))
    return _OTHER_IDS + packed


def _decode(data: bytes) -> list[MovedRow]:
    if data.startswith(_OTHER_IDS):
        ids, digests = msgpack.unpackb(data[len(_OTHER_IDS) :])
    else:
        count = len(data) // _ROW_BYTES
        ids, digests = np.frombuffer(data, "<i8", count).tolist(), data[8 * count :]
    return [
        MovedRow(id, digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES])
        for at, id in enumerate(ids)
    ]
