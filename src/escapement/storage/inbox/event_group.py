"""Group completions: messages that are published when an event group is done.

A message may belong to an *event group*: a named group of messages of one topic. A *group
completion* names a group, a subscription and a *follow-up*, which is an inbox entry. It is a row of
the table ``group_completions``, which this module owns. A group with a completion is *closed*: no
message can join it any more.

When the subscription has acknowledged all messages of the group, the completion *fires*: one
transaction puts the follow-up into the inbox and marks the row as fired, so each completion fires
at most once. A completion never fires after its subscription was deleted. After a seek it belongs
to the new subscription (:func:`follow_seek`). Checkpoints store which messages belong to a group
(storage/state/checkpoint.py).

All functions run inside a transaction of the caller. The broker keeps everything but the follow-ups
in memory, and reads a follow-up when its completion fires.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from escapement.errors import Conflict, NotFound
from escapement.storage.engine.base import Connection, DuplicateKey, Engine
from escapement.storage.engine.paging import PAGE_ROWS, by_id, pages_of
from escapement.storage.inbox import inbox
from escapement.storage.inbox.entry import InboxEntry, decode_inbox_entry, encode_inbox_entry

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Completion:
    """A group completion, with a digest in place of its follow-up.

    ``target`` is the full name of the topic that gets the follow-up.
    """

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
    """Return a hash of a follow-up's target and content, 16 bytes."""
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
    """Create a group completion for one subscription, which closes the event group ``group``.

    Args:
      subscription: the name of the subscription.
      follow_up: the inbox entry to insert when the completion fires.

    Raises:
      NotFound: if the subscription was deleted.
      Conflict: if the group has a completion for this subscription already.
    """
    if not connection.execute("SELECT 1 FROM subscriptions WHERE id = ?", (subscription_id,)).rows:
        raise NotFound(f"the subscription {subscription} was deleted")
    digest = digest_of(follow_up)
    try:
        id = connection.execute(
            "INSERT INTO group_completions (topic_id, group_name, subscription_id, subscription,"
            " target, digest, closed_at_ms, fired_at_ms, follow_up)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?)",
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
    """Fire group completions: put their follow-ups into the inbox and mark them as fired.

    Completions are skipped if they have fired already, were deleted, or belong to another
    subscription after a seek.

    Returns:
      The ids of the completions that fired.
    """
    inbox_entries: list[InboxEntry] = []
    fired = set()
    for completion in completions:
        done = connection.execute(
            "UPDATE group_completions SET fired_at_ms = ? WHERE id = ? AND fired_at_ms IS NULL"
            " AND subscription_id = ? AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ?)",
            (now_ms, completion.id, completion.subscription_id, completion.subscription_id),
        ).affected
        if done:
            fired.add(completion.id)
            ((data,),) = connection.execute(
                "SELECT follow_up FROM group_completions WHERE id = ?", (completion.id,)
            ).rows
            batch, times, body, _ = decode_inbox_entry(data)
            source_id = f"group/{completion.id}"
            inbox_entries.append(InboxEntry(completion.target, source_id, body, len(batch), times))
    if inbox_entries:
        inbox.insert(engine, connection, inbox_entries, now_ms)
    return fired


def follow_seek(connection: Connection, topic_id: int, old_id: int, new_id: int) -> None:
    """Give the group completions of a subscription to its successor after a seek.

    Args:
      old_id: the id of the subscription before the seek.
      new_id: the id of the subscription that replaced it.
    """
    connection.execute(
        "UPDATE group_completions SET subscription_id = ?"
        " WHERE topic_id = ? AND subscription_id = ?",
        (new_id, topic_id, old_id),
    )


def delete_completions(connection: Connection, topic_id: int, group: str) -> None:
    """Delete all completions of one event group."""
    connection.execute(
        "DELETE FROM group_completions WHERE topic_id = ? AND group_name = ?", (topic_id, group)
    )


def read_completions(
    connection: Connection, topic_ids: Sequence[int] | None = None
) -> Iterator[Completion]:
    """Yield the group completions of some topics; None for all, in the order of their ids."""
    columns = (
        "id, topic_id, group_name, subscription_id, subscription, target, digest, closed_at_ms,"
        " fired_at_ms"
    )
    rows = by_id(connection, "group_completions", columns)
    if topic_ids is not None:
        key = ("topic_id", "group_name", "subscription_id")
        all_columns = f"{', '.join(key)}, {columns}"
        found = pages_of(connection, "group_completions", key, all_columns, PAGE_ROWS, topic_ids)
        rows = (row[len(key) :] for row in found)
    for id, topic_id, group, subscription_id, subscription, target, digest, *times in rows:
        content = bytes(target).decode(), bytes(digest)
        yield Completion(id, topic_id, group, subscription_id, subscription, *content, *times)
