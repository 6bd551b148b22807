"""Named producers: who may still publish under a name, and how far each has come.

Owns the table ``producers``. Opening a name raises its epoch, which fences whoever
opened it before. The sequences here are those of the last checkpoint; the journal
adds to them, and a running broker knows better than this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from escapement.errors import NotFound
from escapement.storage.engine.base import Connection

# Before a producer's first message.
NO_SEQUENCE: Final = -1
_PAGE_ROWS: Final = 10_000
# Rows looked at in one step of expiry.
_STEP_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A producer of one topic; sequence and offset are -1 before its first message."""

    id: int
    topic_id: int
    name: str
    epoch: int
    last_sequence: int
    last_offset: int
    updated_at_ms: int


def open_producer(connection: Connection, topic_id: int, name: str, now_ms: int) -> ProducerRecord:
    """The producer of that name, made if there is none, with the next epoch.

    Raises:
      NotFound: if it would be made, and its topic was deleted.
    """
    rows = connection.execute(
        "SELECT id, epoch, last_sequence, last_offset FROM producers"
        " WHERE topic_id = ? AND name = ?",
        (topic_id, name),
    ).rows
    if not rows:
        if not connection.execute("SELECT 1 FROM topics WHERE id = ?", (topic_id,)).rows:
            raise NotFound(f"the topic of producer {name} was deleted")
        id = connection.execute(
            "INSERT INTO producers (topic_id, name, epoch, last_sequence, last_offset,"
            " updated_at_ms) VALUES (?, ?, 1, ?, ?, ?)",
            (topic_id, name, NO_SEQUENCE, NO_SEQUENCE, now_ms),
        ).last_id
        return ProducerRecord(id, topic_id, name, 1, NO_SEQUENCE, NO_SEQUENCE, now_ms)
    ((id, epoch, last_sequence, last_offset),) = rows
    connection.execute(
        "UPDATE producers SET epoch = ?, updated_at_ms = ? WHERE id = ?", (epoch + 1, now_ms, id)
    )
    return ProducerRecord(id, topic_id, name, epoch + 1, last_sequence, last_offset, now_ms)


def forget(connection: Connection, producer_ids: Sequence[int], before_ms: int) -> None:
    """Delete producers, inside the open transaction, unless they were used since.

    Those already gone are no error.
    """
    if producer_ids:
        connection.execute_many(
            "DELETE FROM producers WHERE id = ? AND updated_at_ms < ?",
            [(id, before_ms) for id in producer_ids],
        )


def read_idle(connection: Connection, before_ms: int, after_id: int) -> tuple[list[int], int]:
    """Ids past ``after_id`` last used before ``before_ms``, and where to go on (0: the end)."""
    rows = connection.execute(
        f"SELECT id, updated_at_ms FROM producers WHERE id > ? ORDER BY id LIMIT {_STEP_ROWS}",
        (after_id,),
    ).rows
    idle = [id for id, updated_at_ms in rows if updated_at_ms < before_ms]
    return idle, rows[-1][0] if len(rows) == _STEP_ROWS else 0


def read_producers(connection: Connection) -> Iterator[ProducerRecord]:
    """All of them, a page at a time."""
    after = 0
    while True:
        rows = connection.execute(
            "SELECT id, topic_id, name, epoch, last_sequence, last_offset, updated_at_ms"
            f" FROM producers WHERE id > ? ORDER BY id LIMIT {_PAGE_ROWS}",
            (after,),
        ).rows
        for row in rows:
            yield ProducerRecord(*row)
        if len(rows) < _PAGE_ROWS:
            return
        after = rows[-1][0]
