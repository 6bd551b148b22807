"""Deletion of the rows that deleted topics, subscriptions and inbox targets have left, in steps.

A request that deletes a topic, for example, only deletes its row in the catalog and marks its id in
the table ``removals`` (storage/removal.py). No reader finds the topic's rows in other tables any
more. This module deletes them later. It does the same for subscriptions and their lag, inbox
targets, abandoned staged batches, the parts of bulk changes that have ended, and those inbox
entries of a staged batch that have been moved to their topic's log. (An entry that can never be
moved is *stuck*, and stays.) One step is one short transaction, which delays no commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from escapement.storage import removal
from escapement.storage.engine.base import Connection, Row
from escapement.storage.inbox.inbox import first_fitting
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.log.generation import Generation

# Limit of rows deleted in one step. A row of the log may have some megabytes.
_STEP_ROWS: Final = 64
# Limit of the size of inbox entries deleted in one step. One entry may exceed it. Deleting a
# megabyte takes the database some milliseconds, which delays a lane. Bulk jobs leave gigabytes.
_STEP_BYTES: Final = 2 << 20
# Tables with rows of a topic, without those of the log. Each has an index of ``topic_id`` and the
# column given here.
OF_TOPICS: Final = {
    "producers": "id",
    "dedup_keys": "part",
    "replace_keys": "part",
    "moves": "chunk",
    "group_members": "group_name",
    "group_completions": "id",
    "archived_chunks": "chunk",
    "archives": "id",
}
_CHUNKS: Final = ("cursor_chunks", "subscription_id", "chunk")


def is_wanted(connection: Connection, bundle_id: int = 0) -> bool:
    """Return whether an id of the bundle is marked, so that :func:`free_step` has work."""
    return _marked(connection, bundle_id) is not None


def free_step(
    connection: Connection, generations: Sequence[Generation], bundle_id: int = 0
) -> bool:
    """Delete some rows of one marked id, or delete the mark if there are none left.

    Runs inside the open transaction of the bundle's owner.

    Args:
      generations: those of the bundle's log, which may have rows of a deleted topic.

    Returns:
      Whether there was a mark, so that another step may be needed.
    """
    found = _marked(connection, bundle_id)
    if found is None:
        return False
    kind, id = found
    if kind == "topic":
        log = {generation.table(id): "base_offset" for generation in generations}
        tables = log | OF_TOPICS
        more = any(_free(connection, table, "topic_id", tables[table], id) for table in tables)
        more = more or _free(connection, *_CHUNKS, cancellations_id(id))
    elif kind == "lag":
        more = _free(connection, "lags", "origin_id", "hour_ms", id)
    elif kind == "inbox_target":
        more = _free_entries(connection, "target_id = ?", id)
    elif kind == "staged_batch":
        more = _free_entries(connection, "target_id = ?", -id)
    elif kind == "moved_batch":
        more = _free_entries(connection, "target_id = ? AND stuck = 0", -id)
    elif kind == "bulk_change":
        more = _free(connection, "bulk_parts", "change_id", "last_offset", id)
    else:
        more = _free(connection, *_CHUNKS, id) or _free(connection, *_CHUNKS, lapses_id(id))
        more = more or _free(connection, "attempts", "subscription_id", "part", id)
    if not more:
        removal.done(connection, kind, id)
    return True


def _marked(connection: Connection, bundle_id: int) -> Row | None:
    """Return the kind and the id of a mark of the bundle; None if there is none."""
    rows = connection.execute(
        "SELECT kind, id FROM removals WHERE bundle_id = ?"
        " AND kind NOT IN ('generation', 'namespace') LIMIT 1",
        (bundle_id,),
    ).rows
    return rows[0] if rows else None


def _free_entries(connection: Connection, which: str, target_id: int) -> bool:
    """Delete the first inbox entries of a target or staged batch. Return whether there were any.

    Args:
      which: SQL condition for the entries, with ``target_id`` as its parameter.
      target_id: the id of the target, or the negative id of the staged batch.
    """
    rows = connection.execute(
        f"SELECT id, size_bytes FROM inbox WHERE {which} ORDER BY id LIMIT {_STEP_ROWS}",
        (target_id,),
    ).rows
    ids = first_fitting(rows, _STEP_BYTES)
    if ids:
        connection.execute(f"DELETE FROM inbox WHERE {which} AND id <= ?", (target_id, ids[-1]))
    return bool(ids)


def _free(connection: Connection, table: str, owner: str, order: str, id: int) -> bool:
    """Delete the first rows of one owner in a table. Return whether there were any.

    Args:
      owner: the column with the owner's id.
      order: the column by which the first rows are chosen.
      id: the owner's id.
    """
    last = connection.execute(
        f"SELECT MAX({order}) FROM (SELECT {order} FROM {table} WHERE {owner} = ?"
        f" ORDER BY {order} LIMIT {_STEP_ROWS}) AS step",
        (id,),
    ).rows[0][0]
    if last is None:
        return False
    connection.execute(f"DELETE FROM {table} WHERE {owner} = ? AND {order} <= ?", (id, last))
    return True
