"""What follows when a group of messages is done: the closings of groups.

Owns the table ``group_closings``. A group with a row there is *closed*: nothing joins it any
more. Each row names a subscription and a *follow-up*, a letter that goes into the inbox when
the subscription has acknowledged all of the group, in the transaction that records the row
as fired: exactly once. Of a subscription that was deleted the closing is void; a sought one
keeps it (``follow_seek``). Which messages belong to a group, the checkpoint writes
(storage/checkpoint.py).

Everything here runs inside a transaction of the caller's. The follow-up stays in the table
until it fires; a broker keeps the rest in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from escapement.errors import Conflict, NotFound
from escapement.storage.engine.base import Connection, DuplicateKey, Engine
from escapement.storage.letters import inbox
from escapement.storage.letters.letter import Letter, decode_letter, encode_letter

# Rows of one page when everything is read.
_PAGE_ROWS: Final = 1_000
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Closing:
    """One closing of a group, without the follow-up, of which it has a digest."""

    id: int
    topic_id: int
    group: str
    subscription_id: int
    subscription: str
    target: str
    digest: bytes
    closed_at_ms: int
    fired_at_ms: int | None  # None: it has not been


def digest_of(follow_up: Letter) -> bytes:
    """What is equal for equal follow-ups; 16 bytes."""
    content = follow_up.target.encode() + b"\0" + encode_letter(follow_up)
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()


def create_closing(
    connection: Connection,
    topic_id: int,
    group: str,
    subscription_id: int,
    subscription: str,
    follow_up: Letter,
    now_ms: int,
) -> Closing:
    """Close a group for one subscription.

    Raises:
      NotFound: if the subscription is gone.
      Conflict: if it is closed for that one already.
    """
    if not connection.execute("SELECT 1 FROM subscriptions WHERE id = ?", (subscription_id,)).rows:
        raise NotFound(f"the subscription {subscription} was deleted")
    digest = digest_of(follow_up)
    try:
        id = connection.execute(
            "INSERT INTO group_closings (topic_id, name, subscription_id, subscription, target,"
            " digest, closed_at_ms, fired_at_ms, letter) VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?)",
            (
                topic_id,
                group,
                subscription_id,
                subscription,
                follow_up.target.encode(),
                digest,
                now_ms,
                encode_letter(follow_up),
            ),
        ).last_id
    except DuplicateKey as error:
        raise Conflict(f"the group {group} is closed for {subscription} already") from error
    return Closing(
        id, topic_id, group, subscription_id, subscription, follow_up.target, digest, now_ms, None
    )


def fire(
    engine: Engine, connection: Connection, closings: Sequence[Closing], now_ms: int
) -> set[int]:
    """Put the follow-ups of groups that are done into the inbox; the ids of those it did.

    The others have been fired, or deleted, or are another subscription's by now.
    """
    letters: list[Letter] = []
    fired = set()
    for closing in closings:
        done = connection.execute(
            "UPDATE group_closings SET fired_at_ms = ? WHERE id = ? AND fired_at_ms IS NULL"
            " AND subscription_id = ? AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ?)",
            (now_ms, closing.id, closing.subscription_id, closing.subscription_id),
        ).affected
        if done:
            fired.add(closing.id)
            ((data,),) = connection.execute(
                "SELECT letter FROM group_closings WHERE id = ?", (closing.id,)
            ).rows
            batch, times, _ = decode_letter(data)
            source_id = f"group/{closing.id}"
            letters.append(Letter(closing.target, source_id, batch.encode(), len(batch), times))
    if letters:
        inbox.insert(engine, connection, letters, now_ms)
    return fired


def follow_seek(connection: Connection, topic_id: int, old_id: int, new_id: int) -> None:
    """A subscription was put in another's place: the closings are its own now."""
    connection.execute(
        "UPDATE group_closings SET subscription_id = ? WHERE topic_id = ? AND subscription_id = ?",
        (new_id, topic_id, old_id),
    )


def delete_closings(connection: Connection, topic_id: int, group: str) -> None:
    """Forget all closings of a group."""
    connection.execute(
        "DELETE FROM group_closings WHERE topic_id = ? AND name = ?", (topic_id, group)
    )


def read_closings(connection: Connection) -> Iterator[Closing]:
    """All there are, in the order of their ids."""
    after_id = 0
    while True:
        rows = connection.execute(
            "SELECT id, topic_id, name, subscription_id, subscription, target, digest,"
            " closed_at_ms, fired_at_ms FROM group_closings"
            f" WHERE id > ? ORDER BY id LIMIT {_PAGE_ROWS}",
            (after_id,),
        ).rows
        for id, topic_id, group, subscription_id, subscription, target, digest, *times in rows:
            content = bytes(target).decode(), bytes(digest)
            yield Closing(id, topic_id, group, subscription_id, subscription, *content, *times)
        if len(rows) < _PAGE_ROWS:
            return
        after_id = rows[-1][0]
