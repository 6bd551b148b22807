"""Named producers: the epoch that fences each name, and the progress of each.

Owns the table ``producers``. Opening a name raises its epoch, which fences the previous producer
of that name. The stored sequences are those of the last checkpoint. The journal adds to them, and
a running broker has newer ones in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from escapement.errors import NotFound
from escapement.storage.engine.base import Connection
from escapement.storage.engine.paging import by_id

# The sequence before a producer's first message.
NO_SEQUENCE: Final = -1
# Rows read in one step of expiry.
_STEP_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A producer of one topic. Sequence and offset are -1 before its first message."""

    id: int
    topic_id: int
    name: str
    epoch: int
    last_sequence: int
    last_offset: int
    updated_at_ms: int


def open_producer(connection: Connection, topic_id: int, name: str, now_ms: int) -> ProducerRecord:
    """Return the producer of that name with its next epoch, creating it if it does not exist.

    Raises:
      NotFound: if it does not exist and its topic was deleted.
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
    """Delete producers that were not used since ``before_ms``, inside the open transaction.

    Ignores unknown ids.
    """
    if producer_ids:
        connection.execute_many(
            "DELETE FROM producers WHERE id = ? AND updated_at_ms < ?",
            [(id, before_ms) for id in producer_ids],
        )


def read_idle(connection: Connection, before_ms: int, after_id: int) -> tuple[list[int], int]:
    """Return ids after ``after_id`` last used before ``before_ms``, and the next ``after_id``.

    The latter is 0 at the end.
    """
    rows = connection.execute(
        f"SELECT id, updated_at_ms FROM producers WHERE id > ? ORDER BY id LIMIT {_STEP_ROWS}",
        (after_id,),
    ).rows
    idle = [id for id, updated_at_ms in rows if updated_at_ms < before_ms]
    return idle, rows[-1][0] if len(rows) == _STEP_ROWS else 0


def read_producers(connection: Connection) -> Iterator[ProducerRecord]:
    """Yield all producers, reading a page at a time."""
    columns = "id, topic_id, name, epoch, last_sequence, last_offset, updated_at_ms"
    for row in by_id(connection, "producers", columns):
        yield ProducerRecord(*row)
