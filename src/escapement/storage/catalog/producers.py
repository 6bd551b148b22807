"""Named producers: their epochs, and how far each has published.

A *named producer* belongs to one topic and numbers its messages with *sequences*, so that the
broker recognises a message that is sent again. Opening a producer by its name raises its *epoch*.
That fences the previous holder of the name: the broker refuses its messages. The broker chooses the
id of each producer (:func:`producer_ids`). This module owns the table ``producers``. The sequences
in the table are those of the last checkpoint. The journal has later ones, and a running broker has
the latest ones in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from escapement.errors import NotFound
from escapement.storage.engine.base import Connection, Step
from escapement.storage.engine.paging import by_id, of_topics

# The last sequence and the last offset of a producer that has not published yet.
NO_SEQUENCE: Final = -1
# The epoch of a producer that was opened once.
FIRST_EPOCH: Final = 1
# The lower bits of an id, this many, count the producers of one epoch of the lease. The epoch is in
# the bits above them, and the bundle above these.
_ID_BITS: Final = 32
_EPOCH_BITS: Final = 24
# Limit of the producers that one call of :func:`read_idle` examines.
_STEP_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A named producer of one topic, with the sequence and the offset of its last message.

    Both are -1 before its first message.
    """

    id: int
    topic_id: int
    name: str
    epoch: int
    last_sequence: int
    last_offset: int
    updated_at_ms: int


class NewProducer(NamedTuple):
    """A producer that is stored with its first batch."""

    id: int
    topic_id: int
    name: str
    epoch: int


def producer_ids(lease_epoch: int, bundle_id: int = 0) -> Iterator[int]:
    """Yield ids of new producers forever.

    Each start of a broker has its own epoch of the lease of its bundle, so no two get equal ids.
    """
    assert lease_epoch < 1 << _EPOCH_BITS, "the lease has changed hands 16 million times"
    return count((bundle_id << _ID_BITS + _EPOCH_BITS) + (lease_epoch << _ID_BITS) + 1)


def insertion(new: Sequence[NewProducer], now_ms: int) -> list[Step]:
    """Return the SQL statements that insert new producers, in the transaction of a group commit.

    They replace a row of the same name, of a producer that is being forgotten. If that row stayed,
    it would be deleted later, or a start would read its sequences instead of the new ones.
    """
    if not new:
        return []
    rows = [(*one, NO_SEQUENCE, NO_SEQUENCE, now_ms) for one in new]
    return [
        Step(
            "REPLACE INTO producers (id, topic_id, name, epoch, last_sequence, last_offset,"
            " updated_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
    ]


def open_producer(
    connection: Connection, new_id: int, topic_id: int, name: str, now_ms: int
) -> ProducerRecord:
    """Raise the epoch of a topic's named producer, and return it. Create it if it does not exist.

    Args:
      new_id: the id of a producer that is created.

    Raises:
      NotFound: if the producer does not exist and the topic was deleted.
    """
    rows = connection.execute(
        "SELECT id, epoch, last_sequence, last_offset FROM producers"
        " WHERE topic_id = ? AND name = ?",
        (topic_id, name),
    ).rows
    if not rows:
        if not connection.execute("SELECT 1 FROM topics WHERE id = ?", (topic_id,)).rows:
            raise NotFound(f"the topic of producer {name} was deleted")
        connection.execute(
            "INSERT INTO producers (id, topic_id, name, epoch, last_sequence, last_offset,"
            " updated_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (new_id, topic_id, name, FIRST_EPOCH, NO_SEQUENCE, NO_SEQUENCE, now_ms),
        )
        return ProducerRecord(new_id, topic_id, name, FIRST_EPOCH, NO_SEQUENCE, NO_SEQUENCE, now_ms)
    ((id, epoch, last_sequence, last_offset),) = rows
    connection.execute(
        "UPDATE producers SET epoch = ?, updated_at_ms = ? WHERE id = ?", (epoch + 1, now_ms, id)
    )
    return ProducerRecord(id, topic_id, name, epoch + 1, last_sequence, last_offset, now_ms)


def forget(connection: Connection, producer_ids: Sequence[int], before_ms: int) -> None:
    """Delete those of the given producers that were last used before ``before_ms``.

    Runs inside the open transaction. Ids of producers that do not exist are ignored.
    """
    if producer_ids:
        connection.execute_many(
            "DELETE FROM producers WHERE id = ? AND updated_at_ms < ?",
            [(id, before_ms) for id in producer_ids],
        )


def read_idle(connection: Connection, before_ms: int, after_id: int) -> tuple[dict[int, int], int]:
    """Return the ids of producers that were last used before ``before_ms``, in steps.

    Args:
      after_id: examine producers with higher ids only; 0 for the first step.

    Returns:
      The ids that this step found, each with the last sequence in its row, and ``after_id`` for
      the next step, or 0 after the last step.
    """
    rows = connection.execute(
        "SELECT id, updated_at_ms, last_sequence FROM producers WHERE id > ?"
        f" ORDER BY id LIMIT {_STEP_ROWS}",
        (after_id,),
    ).rows
    idle = {id: sequence for id, updated_at_ms, sequence in rows if updated_at_ms < before_ms}
    return idle, rows[-1][0] if len(rows) == _STEP_ROWS else 0


def read_producers(
    connection: Connection, topic_ids: Sequence[int] | None = None
) -> Iterator[ProducerRecord]:
    """Yield the named producers of some topics; None for all, in the order of their ids."""
    columns = "id, topic_id, name, epoch, last_sequence, last_offset, updated_at_ms"
    rows = by_id(connection, "producers", columns)
    if topic_ids is not None:
        rows = of_topics(connection, "producers", "name", columns, topic_ids)
    for row in rows:
        yield ProducerRecord(*row)
