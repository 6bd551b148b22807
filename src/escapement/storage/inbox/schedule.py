"""Schedules of repeated messages, and the progress of each.

Owns the table ``schedules``. ``next_ms`` decides which occurrences have been published. It moves
forward in the transaction that writes the inbox entries of the occurrences it passes, and never
back. So each occurrence is published once, whenever a broker crashes and however the clock is
set. All functions run inside a transaction of the caller. The content of a schedule stays in the
table until it is published; a broker keeps the other columns in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from escapement.errors import AlreadyExists
from escapement.recurrence import Missed, Recurrence
from escapement.storage.engine.base import Connection, Dialect, DuplicateKey
from escapement.storage.engine.paging import by_id
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.inbox.inbox import names_in


@dataclass(slots=True)
class Schedule:
    """A schedule without its content. ``next_ms`` is None if the schedule has ended."""

    id: int
    name: str
    topic: str
    recurrence: Recurrence
    missed: Missed
    paused: bool
    next_ms: int | None
    last_ms: int | None  # the last published occurrence
    published: int
    created_at_ms: int
    size_bytes: int


class Content(NamedTuple):
    """The message that a schedule publishes each time. An empty key means no key."""

    payload: bytes
    key: bytes


class Move(NamedTuple):
    """A step of one schedule past these occurrences, which the caller publishes."""

    schedule: Schedule
    times: list[int]
    next_ms: int | None

    @property
    def last_ms(self) -> int | None:
        """The last published occurrence after this step."""
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
) -> Schedule:
    """Create a schedule.

    Raises:
      AlreadyExists: if a schedule of this name exists.
    """
    size_bytes = len(content.payload) + len(content.key)
    try:
        id = connection.execute(
            "INSERT INTO schedules (bundle_id, name, topic, cron, timezone, every_ms, anchor_ms,"
            " until_ms, missed, paused, next_ms, last_ms, published, created_at_ms, size_bytes,"
            " payload, message_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, NULL, 0, ?, ?, ?, ?)",
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
                content.payload,
                content.key,
            ),
        ).last_id
    except DuplicateKey as error:
        raise AlreadyExists(f"the schedule {name} exists already") from error
    return Schedule(
        id, name, topic, recurrence, missed, False, next_ms, None, 0, now_ms, size_bytes
    )


def delete_schedule(connection: Connection, id: int) -> None:
    """Delete a schedule. Messages that it has published are not affected."""
    connection.execute("DELETE FROM schedules WHERE id = ?", (id,))


def set_paused(connection: Connection, id: int, paused: bool, next_ms: int | None) -> None:
    """Pause or resume a schedule. ``next_ms`` is its next occurrence."""
    connection.execute(
        "UPDATE schedules SET paused = ?, next_ms = ? WHERE id = ?", (int(paused), next_ms, id)
    )


def advance_schedules(
    dialect: Dialect, connection: Connection, moves: Sequence[Move]
) -> dict[int, Content]:
    """Advance these schedules. The caller publishes their occurrences in the same transaction.

    Returns:
      The content of each schedule, by id. A schedule that is paused, or whose stored ``next_ms``
      differs from its ``Schedule``, is left out and unchanged.
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
    """Return whether any schedule is in a namespace, or publishes into it. O(schedules)."""
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
        " last_ms, published, created_at_ms, size_bytes"
    )
    rows = by_id(connection, "schedules", columns, "bundle_id = ?", (bundle_id,))
    for id, name, topic, cron, timezone, every_ms, anchor_ms, until_ms, *rest in rows:
        missed, paused, *figures = rest
        recurrence = Recurrence(cron, timezone, every_ms, anchor_ms, until_ms)
        names = bytes(name).decode(), bytes(topic).decode()
        yield Schedule(id, *names, recurrence, missed, bool(paused), *figures)
