"""Recurring schedules, and how far each has been published.

A *schedule* publishes the same message again and again. Each time at which it does is an
*occurrence*. This module owns the table ``schedules``. Its column ``next_ms`` is the next
occurrence to be published. The transaction that writes the inbox entries of occurrences also moves
``next_ms`` past them. Only an update of the schedule may move ``next_ms`` back, and never to a
time up to the last published occurrence. So each occurrence is published once, even if the broker
crashes or the clock is set.

All functions run inside a transaction of the caller. The *content* of a schedule is the payload and
the key of its message. The broker keeps the other columns in memory, and reads the content for each
occurrence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from escapement.errors import AlreadyExists, LimitExceeded
from escapement.recurrence import Missed, Recurrence
from escapement.storage.engine.base import Connection, Dialect, DuplicateKey
from escapement.storage.engine.paging import by_id
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.inbox.inbox import names_in


@dataclass(slots=True)
class Schedule:
    """A schedule without its content.

    ``next_ms`` is None if the schedule has no more occurrences. ``published`` is the number of
    messages published, and ``size_bytes`` is the size of the content. The message of an occurrence
    is due at a time within ``spread_ms`` from the occurrence on.
    """

    id: int
    name: str
    topic: str
    recurrence: Recurrence
    missed: Missed
    paused: bool
    next_ms: int | None
    last_ms: int | None  # the last published occurrence; None: none yet
    published: int
    created_at_ms: int
    size_bytes: int
    spread_ms: int = 0


class Content(NamedTuple):
    """The message that a schedule publishes each time. An empty key means no key."""

    payload: bytes
    key: bytes

    @property
    def size_bytes(self) -> int:
        """The size of payload and key."""
        return len(self.payload) + len(self.key)

    def check(self, most_bytes: int) -> None:
        """Raise ``LimitExceeded`` if the content is larger than ``most_bytes``."""
        if self.size_bytes > most_bytes:
            raise LimitExceeded(
                f"payload and key of a schedule may have at most {most_bytes} bytes, not "
                f"{self.size_bytes}"
            )


class Move(NamedTuple):
    """The publishing of some occurrences of a schedule.

    ``times`` are the occurrences to publish, and ``next_ms`` is the one after them. ``times`` may
    be empty, if missed occurrences are skipped.
    """

    schedule: Schedule
    times: list[int]
    next_ms: int | None

    @property
    def last_ms(self) -> int | None:
        """The last published occurrence once ``times`` are published; None if there is none."""
        return self.times[-1] if self.times else self.schedule.last_ms


def create_schedule(
    connection: Connection,
    name: str,
    topic: str,
    recurrence: Recurrence,
    missed: Missed,
    next_ms: int,
    content: Content,
    now_ms: int,
    bundle_id: int = 0,
    spread_ms: int = 0,
) -> Schedule:
    """Create a schedule that publishes ``content`` to a topic.

    Args:
      name: the full name of the schedule.
      topic: the full name of the topic.
      missed: how to treat occurrences that passed while no broker could publish them.
      next_ms: the first occurrence.

    Raises:
      AlreadyExists: if a schedule of this name exists.
    """
    size_bytes = content.size_bytes
    try:
        id = connection.execute(
            "INSERT INTO schedules (bundle_id, name, topic, cron, timezone, every_ms, anchor_ms,"
            " until_ms, missed, paused, next_ms, last_ms, published, created_at_ms, size_bytes,"
            " spread_ms, payload, message_key)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, NULL, 0, ?, ?, ?, ?, ?)",
            (
                bundle_id,
                name.encode(),
                topic.encode(),
                recurrence.cron,
                recurrence.timezone,
                recurrence.every_ms,
                recurrence.anchor_ms,
                recurrence.until_ms,
                missed,
                next_ms,
                now_ms,
                size_bytes,
                spread_ms,
                content.payload,
                content.key,
            ),
        ).last_id
    except DuplicateKey as error:
        raise AlreadyExists(f"the schedule {name} exists already") from error
    return Schedule(
        id, name, topic, recurrence, missed, False, next_ms, None, 0, now_ms, size_bytes, spread_ms
    )


def update_schedule(
    connection: Connection,
    new: Schedule,
    payload: bytes | None,
    key: bytes | None,
    most_bytes: int,
) -> Schedule:
    """Store changes of a schedule, and return it.

    Args:
      new: the changed schedule. Its name, ``paused`` and its figures stay as they are stored.
      payload, key: the new content; None for a part that stays.
      most_bytes: the maximum size of the content.

    Raises:
      LimitExceeded: if the content is too large.
    """
    old = content_of(connection, new.id)
    content = Content(old.payload if payload is None else payload, old.key if key is None else key)
    content.check(most_bytes)
    recurrence = new.recurrence
    connection.execute(
        "UPDATE schedules SET topic = ?, cron = ?, timezone = ?, every_ms = ?, anchor_ms = ?,"
        " until_ms = ?, missed = ?, next_ms = ?, size_bytes = ?, spread_ms = ?, payload = ?,"
        " message_key = ? WHERE id = ?",
        (
            new.topic.encode(),
            recurrence.cron,
            recurrence.timezone,
            recurrence.every_ms,
            recurrence.anchor_ms,
            recurrence.until_ms,
            new.missed,
            new.next_ms,
            content.size_bytes,
            new.spread_ms,
            content.payload,
            content.key,
            new.id,
        ),
    )
    return replace(new, size_bytes=content.size_bytes)


def content_of(connection: Connection, id: int) -> Content:
    """Return the content of a schedule, which must exist."""
    ((payload, key),) = connection.execute(
        "SELECT payload, message_key FROM schedules WHERE id = ?", (id,)
    ).rows
    return Content(bytes(payload), bytes(key))


def count_published(connection: Connection, id: int) -> None:
    """Count one more published message of a schedule."""
    connection.execute("UPDATE schedules SET published = published + 1 WHERE id = ?", (id,))


def delete_schedule(connection: Connection, id: int) -> None:
    """Delete a schedule. Messages that it has published are not affected."""
    connection.execute("DELETE FROM schedules WHERE id = ?", (id,))


def set_paused(connection: Connection, id: int, paused: bool, next_ms: int | None) -> None:
    """Pause or resume a schedule.

    Args:
      next_ms: the next occurrence to publish; None if there is none.
    """
    connection.execute(
        "UPDATE schedules SET paused = ?, next_ms = ? WHERE id = ?", (int(paused), next_ms, id)
    )


def advance_schedules(
    dialect: Dialect, connection: Connection, moves: Sequence[Move]
) -> dict[int, Content]:
    """Record that the occurrences of ``moves`` are published, which the caller does afterwards.

    The caller publishes them in the same transaction, by writing inbox entries. A schedule is
    skipped if it is paused or deleted, or if its ``next_ms`` has changed in the database.

    Returns:
      The content of each schedule that was not skipped, by its id.
    """
    by_id = {move.schedule.id: move for move in moves}
    found: dict[int, Content] = {}
    for ids in padded(list(by_id)):
        rows = connection.execute(
            "SELECT id, next_ms, payload, message_key FROM schedules WHERE paused = 0"
            f" AND id {in_list(ids)}{dialect.update_lock}",
            ids,
        ).rows
        for id, next_ms, payload, key in rows:
            if next_ms == by_id[id].schedule.next_ms:
                found[id] = Content(bytes(payload), bytes(key))
    if found:
        there = [by_id[id] for id in found]
        moved = connection.execute_many(
            "UPDATE schedules SET next_ms = ?, last_ms = ?, published = published + ? WHERE id = ?",
            [(one.next_ms, one.last_ms, len(one.times), one.schedule.id) for one in there],
        )
        assert moved == len(there), "rows that this transaction has locked are gone"
    return found


def has_schedules(connection: Connection, namespace: str) -> bool:
    """Return whether any schedule belongs to a namespace or publishes into it. O(schedules)."""
    return bool(
        connection.execute(
            "SELECT 1 FROM schedules WHERE (name > ? AND name < ?) OR (topic > ? AND topic < ?)"
            " LIMIT 1",
            names_in(namespace) * 2,
        ).rows
    )


def read_schedules(connection: Connection, bundle_id: int) -> Iterator[Schedule]:
    """Yield all schedules of a bundle, in the order of their ids."""
    columns = (
        "id, name, topic, cron, timezone, every_ms, anchor_ms, until_ms, missed, paused, next_ms,"
        " last_ms, published, created_at_ms, size_bytes, spread_ms"
    )
    rows = by_id(connection, "schedules", columns, "bundle_id = ?", (bundle_id,))
    for id, name, topic, cron, timezone, every_ms, anchor_ms, until_ms, *rest in rows:
        missed, paused, *figures = rest
        recurrence = Recurrence(cron, timezone, every_ms, anchor_ms, until_ms)
        names = bytes(name).decode(), bytes(topic).decode()
        yield Schedule(id, *names, recurrence, missed, bool(paused), *figures)
