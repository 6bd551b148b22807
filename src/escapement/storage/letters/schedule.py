"""Schedules: what is published again and again, and how far each has come.

Owns the table ``schedules``. ``next_ms`` is the truth about what was published: it moves
forward in the transaction that writes the letters of the occurrences it passes, and never
back, so each occurrence is published once, whoever dies when and wherever the clock is set.
Everything here runs inside a transaction of the caller's. What is published stays in the
table until then; a broker keeps the rest in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from escapement.errors import AlreadyExists
from escapement.recurrence import Missed, Recurrence
from escapement.storage.engine.base import Connection, DuplicateKey

# Rows of one page when everything is read.
_PAGE_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule, without what it publishes. ``next_ms`` is None when it has ended."""

    id: int
    name: str
    topic: str
    recurrence: Recurrence
    missed: Missed
    paused: bool
    next_ms: int | None
    last_ms: int | None  # the last occurrence that was published
    published: int
    created_at_ms: int
    size_bytes: int


class Content(NamedTuple):
    """What a schedule publishes each time; an empty key is none."""

    payload: bytes
    key: bytes


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
    """Raises ``AlreadyExists``."""
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
    """It ceases to be; what it has published goes its way."""
    connection.execute("DELETE FROM schedules WHERE id = ?", (id,))


def set_paused(connection: Connection, id: int, paused: bool, next_ms: int | None) -> None:
    """Pause or resume it; ``next_ms`` is where it goes on."""
    connection.execute(
        "UPDATE schedules SET paused = ?, next_ms = ? WHERE id = ?", (int(paused), next_ms, id)
    )


def advance_schedule(
    connection: Connection, schedule: Schedule, times: list[int], next_ms: int | None
) -> Content | None:
    """Move it past ``times``, which the caller publishes in the same transaction.

    Returns:
      What to publish, or None if it is not where ``schedule`` says: then nothing is done.
    """
    moved = connection.execute(
        "UPDATE schedules SET next_ms = ?, last_ms = ?, published = published + ?"
        " WHERE id = ? AND next_ms = ? AND paused = 0",
        (
            next_ms,
            times[-1] if times else schedule.last_ms,
            len(times),
            schedule.id,
            schedule.next_ms,
        ),
    ).affected
    if not moved:
        return None
    ((payload, key),) = connection.execute(
        "SELECT payload, message_key FROM schedules WHERE id = ?", (schedule.id,)
    ).rows
    return Content(bytes(payload), bytes(key))


def has_schedules(connection: Connection, namespace: str) -> bool:
    """Whether a schedule is in a namespace, or publishes into it. O(schedules)."""
    # Names are ASCII, and "0" follows "/".
    first, end = f"{namespace}/".encode(), f"{namespace}0".encode()
    return bool(
        connection.execute(
            "SELECT 1 FROM schedules WHERE (name > ? AND name < ?) OR (topic > ? AND topic < ?)"
            " LIMIT 1",
            (first, end, first, end),
        ).rows
    )


def read_schedules(connection: Connection, bundle_id: int) -> Iterator[Schedule]:
    """All of a bundle, in the order of their ids."""
    after_id = 0
    while True:
        rows = connection.execute(
            "SELECT id, name, topic, cron, timezone, every_ms, anchor_ms, until_ms, missed,"
            " paused, next_ms, last_ms, published, created_at_ms, size_bytes FROM schedules"
            f" WHERE bundle_id = ? AND id > ? ORDER BY id LIMIT {_PAGE_ROWS}",
            (bundle_id, after_id),
        ).rows
        for id, name, topic, cron, timezone, every_ms, anchor_ms, until_ms, *rest in rows:
            missed, paused, *figures = rest
            recurrence = Recurrence(cron, timezone, every_ms, anchor_ms, until_ms)
            names = bytes(name).decode(), bytes(topic).decode()
            yield Schedule(id, *names, recurrence, missed, bool(paused), *figures)
        if len(rows) < _PAGE_ROWS:
            return
        after_id = rows[-1][0]
