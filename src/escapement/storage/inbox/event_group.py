"""Group completions: the follow-ups of event groups.

Owns the table ``group_closings``. A group with a row there is *closed*: no message can join it.
Each row names a subscription and a *follow-up*, which is an inbox entry. When the subscription
has acknowledged all messages of the group, one transaction puts the follow-up into the inbox
and records the row as fired, so a follow-up fires exactly once. If the subscription is deleted,
its group completions are void. A seek keeps them (``follow_seek``). The checkpoint writes which
messages belong to a group (storage/state/checkpoint.py).

All functions run inside a transaction of the caller. A follow-up stays in the table until it
fires; a broker keeps the other columns in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from escapement.errors import Conflict, NotFound
from escapement.storage.engine.base import Connection, DuplicateKey, Engine
from escapement.storage.engine.paging import by_id
from escapement.storage.inbox import inbox
from escapement.storage.inbox.entry import InboxEntry, decode_inbox_entry, encode_inbox_entry

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Completion:
    """A group completion, with a digest in place of its follow-up."""

    id: int
    topic_id: int
    group: str
    subscription_id: int
    subscription: str
    target: str
    digest: bytes
    closed_at_ms: int
    fired_at_ms: int | None  # None: not fired yet


def digest_of(follow_up: InboxEntry) -> bytes:
    """Return a digest of a follow-up, 16 bytes, which is equal for equal follow-ups."""
    content = follow_up.target.encode() + b"\0" + encode_inbox_entry(follow_up)
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()


def create_completion(
    connection: Connection,
    topic_id: int,
    group: str,
    subscription_id: int,
    subscription: str,
    follow_up: InboxEntry,
    now_ms: int,
) -> Completion:
    """Create a group completion for one subscription.

    Raises:
      NotFound: if the subscription was deleted.
      Conflict: if the group has a completion for this subscription already.
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
                encode_inbox_entry(follow_up),
            ),
        ).last_id
    except DuplicateKey as error:
        raise Conflict(f"the group {group} is closed for {subscription} already") from error
    return Completion(
        id, topic_id, group, subscription_id, subscription, follow_up.target, digest, now_ms, None
    )


def fire(
    engine: Engine, connection: Connection, completions: Sequence[Completion], now_ms: int
) -> set[int]:
    """Put the follow-ups of completed groups into the inbox. Return the ids of those it fired.

    It leaves out a group completion that has fired already, was deleted, or belongs to another
    subscription by now.
    """
    inbox_entries: list[InboxEntry] = []
    fired = set()
    for completion in completions:
        done = connection.execute(
            "UPDATE group_closings SET fired_at_ms = ? WHERE id = ? AND fired_at_ms IS NULL"
            " AND subscription_id = ? AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ?)",
            (now_ms, completion.id, completion.subscription_id, completion.subscription_id),
        ).affected
        if done:
            fired.add(completion.id)
            ((data,),) = connection.execute(
                "SELECT letter FROM group_closings WHERE id = ?", (completion.id,)
            ).rows
            batch, times, body = decode_inbox_entry(data)
            source_id = f"group/{completion.id}"
            inbox_entries.append(InboxEntry(completion.target, source_id, body, len(batch), times))
    if inbox_entries:
        inbox.insert(engine, connection, inbox_entries, now_ms)
    return fired


def follow_seek(connection: Connection, topic_id: int, old_id: int, new_id: int) -> None:
    """Move the group completions of a subscription to the one that a seek replaced it with."""
    connection.execute(
        "UPDATE group_closings SET subscription_id = ? WHERE topic_id = ? AND subscription_id = ?",
        (new_id, topic_id, old_id),
    )


def delete_completions(connection: Connection, topic_id: int, group: str) -> None:
    """Delete all completions of a group."""
    connection.execute(
        "DELETE FROM group_closings WHERE topic_id = ? AND name = ?", (topic_id, group)
    )


def read_completions(connection: Connection) -> Iterator[Completion]:
    """Yield all group completions in the order of their ids."""
    columns = (
        "id, topic_id, name, subscription_id, subscription, target, digest, closed_at_ms,"
        " fired_at_ms"
    )
    rows = by_id(connection, "group_closings", columns)
    for id, topic_id, group, subscription_id, subscription, target, digest, *times in rows:
        content = bytes(target).decode(), bytes(digest)
        yield Completion(id, topic_id, group, subscription_id, subscription, *content, *times)
