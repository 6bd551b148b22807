"""What is to be freed, because nobody can find it any more. Owns the table ``removals``.

Marked is what a deleted topic, subscription, mailbox or parcel left behind
(storage/freeing.py), generations of the log that go as a whole (storage/forgetting.py), and
namespaces that are being deleted with all that is in them (the broker's Razing). A delete
itself only takes the entry out of the catalog and marks its id here, in one transaction; ids are
never reused, so nothing can find the rows again, and freeing them may take its time, and go on
after a crash.
"""

from __future__ import annotations

from typing import Literal

from escapement.storage.engine.base import Connection

What = Literal[
    "topic", "subscription", "lag", "mailbox", "parcel", "adopted", "generation", "namespace"
]


def mark(connection: Connection, kind: What, id: int) -> None:
    """Remember, inside the open transaction, that rows of ``id`` are to be freed."""
    connection.execute("REPLACE INTO removals (kind, id) VALUES (?, ?)", (kind, id))


def marked(connection: Connection, kind: What) -> list[int]:
    """The ids of this kind that are marked."""
    rows = connection.execute("SELECT id FROM removals WHERE kind = ? ORDER BY id", (kind,)).rows
    return [int(id) for (id,) in rows]


def done(connection: Connection, kind: What, id: int) -> None:
    """Nothing of ``id`` is left."""
    connection.execute("DELETE FROM removals WHERE kind = ? AND id = ?", (kind, id))
