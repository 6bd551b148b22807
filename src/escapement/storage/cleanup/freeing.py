"""Deletion of rows that no reader can find any more, in bounded steps.

These are rows of a deleted topic, subscription, inbox target or staged batch, and those entries of
a staged batch that have been moved to their topic's log. (Held entries stay.) storage/removal.py
marks what to delete. One step is one short transaction, which delays no commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from escapement.storage import removal
from escapement.storage.engine.base import Connection
from escapement.storage.inbox.inbox import first_fitting
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.log.generation import Generation

# Rows deleted in one step: log rows have up to some megabytes each.
_STEP_ROWS: Final = 64
# Size of inbox entries deleted in one step, unless the first is larger. Deleting a megabyte takes
# the database some milliseconds, which delays a lane. Bulk jobs leave gigabytes.
_STEP_BYTES: Final = 2 << 20
# Tables with rows of a topic, beside those of the log, and the column after its id in an index.
_OF_TOPICS: Final = {
    "producers": "id",
    "dedup_keys": "part",
    "moves": "chunk",
    "group_members": "name",
    "group_closings": "id",
    "archived_chunks": "chunk",
    "archives": "id",
}
_CHUNKS: Final = ("cursor_chunks", "subscription_id", "chunk")


def free_step(connection: Connection, generations: Sequence[Generation]) -> bool:
    """Delete some rows inside the open transaction. Return False if there were none."""
    found = connection.execute(
        "SELECT kind, id FROM removals WHERE kind NOT IN ('generation', 'namespace') LIMIT 1"
    ).rows
    if not found:
        return False
    kind, id = found[0]
    if kind == "topic":
        log = {generation.table(id): "base_offset" for generation in generations}
        tables = log | _OF_TOPICS
        more = any(_free(connection, table, "topic_id", tables[table], id) for table in tables)
        more = more or _free(connection, *_CHUNKS, cancellations_id(id))
    elif kind == "lag":
        more = _free(connection, "lags", "origin_id", "hour_ms", id)
    elif kind == "mailbox":
        more = _free_entries(connection, "mailbox_id = ?", id)
    elif kind == "parcel":
        more = _free_entries(connection, "mailbox_id = ?", -id)
    elif kind == "adopted":
        more = _free_entries(connection, "mailbox_id = ? AND held = 0", -id)
    else:
        more = _free(connection, *_CHUNKS, id) or _free(connection, *_CHUNKS, lapses_id(id))
        more = more or _free(connection, "attempts", "subscription_id", "part", id)
    if not more:
        removal.done(connection, kind, id)
    return True


def _free_entries(connection: Connection, which: str, box_id: int) -> bool:
    """Delete the first entries of a target or staged batch. Return whether there were any."""
    rows = connection.execute(
        f"SELECT id, size_bytes FROM inbox WHERE {which} ORDER BY id LIMIT {_STEP_ROWS}",
        (box_id,),
    ).rows
    ids = first_fitting(rows, _STEP_BYTES)
    if ids:
        connection.execute(f"DELETE FROM inbox WHERE {which} AND id <= ?", (box_id, ids[-1]))
    return bool(ids)


def _free(connection: Connection, table: str, owner: str, order: str, id: int) -> bool:
    """Delete the first rows of ``id`` in a table. Return whether there were any."""
    last = connection.execute(
        f"SELECT MAX({order}) FROM (SELECT {order} FROM {table} WHERE {owner} = ?"
        f" ORDER BY {order} LIMIT {_STEP_ROWS}) AS step",
        (id,),
    ).rows[0][0]
    if last is None:
        return False
    connection.execute(f"DELETE FROM {table} WHERE {owner} = ? AND {order} <= ?", (id, last))
    return True
