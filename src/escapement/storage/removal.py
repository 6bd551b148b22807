"""Marks for rows to be deleted later, because no reader can find them any more.

Owns the table ``removals``. Marks exist for deleted topics, subscriptions, inbox targets and staged
batches (storage/cleanup/freeing.py), for generations of the log (storage/cleanup/forgetting.py),
and for namespaces that are being deleted with their content (namespace deletion in the broker). A
delete only removes the row from the catalog and marks its id here, in one transaction. Ids are
never reused, so no reader finds the other rows again. Deleting them may take long, and continues
after a crash.
"""

from __future__ import annotations

from typing import Literal

from escapement.storage.engine.base import Connection

What = Literal[
    "topic", "subscription", "lag", "mailbox", "parcel", "adopted", "generation", "namespace"
]


def mark(connection: Connection, kind: What, id: int) -> None:
    """Mark the rows of ``id`` for deletion, inside the open transaction."""
    connection.execute("REPLACE INTO removals (kind, id) VALUES (?, ?)", (kind, id))


def marked(connection: Connection, kind: What) -> list[int]:
    """Return the marked ids of this kind."""
    rows = connection.execute("SELECT id FROM removals WHERE kind = ? ORDER BY id", (kind,)).rows
    return [int(id) for (id,) in rows]


def done(connection: Connection, kind: What, id: int) -> None:
    """Delete the mark of ``id``, whose rows are all deleted."""
    connection.execute("DELETE FROM removals WHERE kind = ? AND id = ?", (kind, id))
