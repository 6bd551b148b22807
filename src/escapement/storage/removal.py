"""Marks for deleted things whose rows are still in the database and are deleted later.

Owns the table ``removals``. A mark is a kind, such as "topic", and an id. A request that deletes a
topic, for example, only deletes its row in the catalog and marks its id here, in one transaction.
Ids are never reused, so no reader finds the topic's other rows any more. The housekeeper deletes
these in small steps, and continues after a crash. A mark names the bundle whose owner has deleted
the thing. Only the housekeeper of that bundle's broker deletes the rows.

There are marks for deleted topics, subscriptions, their lag, inbox targets, staged batches and the
parts of bulk changes (storage/cleanup/freeing.py), for generations of the log
(storage/cleanup/forgetting.py), and for namespaces that are being deleted with their content
(broker/deletion.py). The kind "staged_batch" is a deleted batch, with all its entries. The kind
"moved_batch" is a batch whose entries have been moved to the log. Of its entries, stuck ones stay.
"""

from __future__ import annotations

from typing import Literal

from escapement.storage.engine.base import Connection

What = Literal[
    "topic",
    "subscription",
    "lag",
    "inbox_target",
    "staged_batch",
    "moved_batch",
    "bulk_change",
    "generation",
    "namespace",
]


def mark(connection: Connection, kind: What, id: int, bundle_id: int = 0) -> None:
    """Mark the rows of an id for later deletion, inside the open transaction.

    Args:
      bundle_id: the bundle whose owner deletes them.
    """
    connection.execute(
        "REPLACE INTO removals (kind, id, bundle_id) VALUES (?, ?, ?)", (kind, id, bundle_id)
    )


def marked(connection: Connection, kind: What) -> list[int]:
    """Return the ids of this kind that are marked for deletion, in ascending order."""
    rows = connection.execute("SELECT id FROM removals WHERE kind = ? ORDER BY id", (kind,)).rows
    return [int(id) for (id,) in rows]


def done(connection: Connection, kind: What, id: int) -> None:
    """Delete the mark of this kind and id, after all marked rows have been deleted."""
    connection.execute("DELETE FROM removals WHERE kind = ? AND id = ?", (kind, id))
