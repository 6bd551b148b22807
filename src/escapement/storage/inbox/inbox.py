"""The inbox: a durable queue of entries to be moved into the logs of their targets.

Owns the tables ``mailboxes`` and ``inbox``. An *inbox target* (a row of ``mailboxes``) is
the name of a topic and an id that is never used again. It is created with its first entry, whether
the topic exists or not, and deleted with the topic. All functions run inside a transaction of the
caller:

- :func:`insert` runs in the group commit of the event that causes the entries, so both become
  durable or neither.
- :func:`remove`, or :func:`staged_batch.advancing` for entries of bulk jobs, runs in the group
  commit that appends the entries to the target's log. The lease guards that commit. So an entry
  is moved exactly once, even if a broker crashes at any point.
- :func:`close` runs in the transaction that deletes the target or its namespace.

A source id is remembered while its entry is in the inbox. Writing the entry again meanwhile
changes nothing. After the entry has been moved, the same source id makes a new entry. A writer
that may repeat itself later than that must record in its own transaction that it is done.

Entries of one target are moved in the order of their ids, which is the order in which one lane
wrote them. Entries that lanes commit concurrently may be moved in either order. The entries of
the target's staged batches (storage/inbox/staged_batch.py) follow after all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from escapement.errors import StorageError
from escapement.message import Buffer, cuts
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Engine, Row
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.inbox import staged_batch
from escapement.storage.inbox.entry import MAX_SOURCE_ID_CHARS, InboxEntry, encode_inbox_entry

# Inbox entries that one step of a target reads at most.
_STEP_ENTRIES: Final = 1_000

_FIND_TARGET: Final = "SELECT id FROM mailboxes WHERE target = ?"


class InboxTarget(NamedTuple):
    """An inbox target that has entries to be moved."""

    id: int
    target: str


class Stored(NamedTuple):
    """A stored inbox entry."""

    id: int
    size_bytes: int  # of its messages
    data: Buffer
    advance: staged_batch.Advance | None = None  # progress of its staged batch, if it is in one


class Step(NamedTuple):
    """Inbox entries of one target that are moved together."""

    inbox_entries: list[Stored]
    of_jobs: bool = False
    emptied: Sequence[int] = ()  # staged batches with no entries left to be moved
    last: staged_batch.Place = (
        staged_batch.FIRST
    )  # of entries of bulk jobs: where the next step begins

    def is_full(self, step_bytes: int) -> bool:
        """Return whether enough entries of bulk jobs may follow to make reading ahead pay."""
        size_bytes = sum(inbox_entry.size_bytes for inbox_entry in self.inbox_entries)
        return self.of_jobs and bool(self.inbox_entries) and 2 * size_bytes >= step_bytes


class Waiting(NamedTuple):
    """The backlog of one inbox target, including its staged batches."""

    target: str
    entries: int
    messages: int
    size_bytes: int
    oldest_at_ms: int
    held: int  # number of held entries
    reason: str  # of one held entry, or ""


# -- writing -------------------------------------------------------------------


def insert(
    engine: Engine, connection: Connection, inbox_entries: Sequence[InboxEntry], now_ms: int
) -> None:
    """Insert entries for their targets. An entry that exists already stays unchanged."""
    boxes = inbox_targets(engine, connection, {inbox_entry.target for inbox_entry in inbox_entries})
    insert_into(engine, connection, inbox_entries, boxes, now_ms)


def insert_into(
    engine: Engine,
    connection: Connection,
    inbox_entries: Sequence[InboxEntry],
    boxes: Mapping[str, int],
    now_ms: int,
) -> None:
    """Insert entries under the ids in ``boxes``, by target. Existing entries stay unchanged."""
    connection.execute_many(
        f"{engine.dialect.insert_ignore} INTO inbox (mailbox_id, held, source_id, message_count,"
        " size_bytes, created_at_ms, reason, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                boxes[inbox_entry.target],
                0,
                inbox_entry.source_id,
                inbox_entry.count,
                inbox_entry.size_bytes,
                now_ms,
                "",
                encode_inbox_entry(inbox_entry),
            )
            for inbox_entry in inbox_entries
        ],
    )


def inbox_targets(engine: Engine, connection: Connection, targets: Iterable[str]) -> dict[str, int]:
    """Return the ids of targets as ``inbox_target`` does, locking them in a fixed order."""
    wanted = sorted(targets)
    found: dict[str, int] = {}
    for some in padded([target.encode() for target in wanted]):
        rows = connection.execute(
            f"SELECT target, id FROM mailboxes WHERE target {in_list(some)}"
            f"{engine.dialect.share_lock}",
            some,
        ).rows
        found.update((_text(target), int(id)) for target, id in rows)
    for target in wanted:
        if target not in found:
            found[target] = inbox_target(engine, connection, target)
    return found


def inbox_target(engine: Engine, connection: Connection, target: str) -> int:
    """Return the id of a target, which cannot be closed before the transaction ends."""
    find = _FIND_TARGET + engine.dialect.share_lock
    key = (target.encode(),)
    rows = connection.execute(find, key).rows
    if not rows:
        connection.execute(
            f"{engine.dialect.insert_ignore} INTO mailboxes (target) VALUES (?)", key
        )
        rows = connection.execute(find, key).rows
    return int(rows[0][0])


# -- moving --------------------------------------------------------------------


def occupied(connection: Connection, after_id: int, limit: int) -> list[InboxTarget]:
    """Return the targets with entries to be moved, in the order of their ids."""
    rows = connection.execute(
        # The subqueries find the first entry and staged batch of each target, at equal cost
        # however many there are.
        "SELECT m.id, m.target FROM mailboxes m WHERE m.id > ? AND ((SELECT i.id FROM inbox i"
        " WHERE i.mailbox_id = m.id AND i.held = 0 ORDER BY i.id LIMIT 1) IS NOT NULL"
        " OR (SELECT p.id FROM parcels p WHERE p.mailbox_id = m.id AND p.held = 0"
        " ORDER BY p.id LIMIT 1) IS NOT NULL) ORDER BY m.id LIMIT ?",
        (after_id, limit),
    ).rows
    return [InboxTarget(id, _text(target)) for id, target in rows]


def read_step(connection: Connection, target_id: int, max_bytes: int) -> list[Stored]:
    """Return the first entries of a target that is not closed: one, or as many as fit."""
    sizes = connection.execute(
        "SELECT i.id, i.size_bytes FROM inbox i JOIN mailboxes m ON m.id = i.mailbox_id"
        f" WHERE i.mailbox_id = ? AND i.held = 0 ORDER BY i.id LIMIT {_STEP_ENTRIES}",
        (target_id,),
    ).rows
    return _fetch(connection, first_fitting(sizes, max_bytes))


def first_fitting(entries: Sequence[Row], max_bytes: int) -> list[int]:
    """Return the ids of the first entries, given as id and size: one, or as many as fit."""
    sizes = np.array([size_bytes for _, size_bytes in entries], np.int64)
    _, end = next(cuts(sizes, max_bytes, len(entries)), (0, 0))
    return [id for id, _ in entries[:end]]


def read_staged_batches(
    connection: Connection,
    target_id: int,
    max_bytes: int,
    after: staged_batch.Place = staged_batch.FIRST,
) -> Step:
    """Return entries of a target's staged batches after ``after``: one, or as many as fit."""
    advances, emptied, last = staged_batch.next_entries(connection, target_id, max_bytes, after)
    by_entry = {advance.last: advance for advance in advances}
    inbox_entries = [
        inbox_entry._replace(advance=by_entry[inbox_entry.id])
        for inbox_entry in _fetch(connection, list(by_entry))
    ]
    return Step(inbox_entries, True, emptied, last)


def read_ahead(
    connection: Connection, places: Sequence[tuple[int, staged_batch.Place]], step_bytes: int
) -> list[Step]:
    """Return one step of the staged batches of each target, after the given places."""
    return [read_staged_batches(connection, box, step_bytes, after) for box, after in places]


def read_steps(
    connection: Connection, boxes: Sequence[tuple[int, bool]], step_bytes: int, max_bytes: int
) -> list[Step]:
    """Return one step for each of the first targets: for one, or for as many as fit.

    Args:
      boxes: ids of targets, and whether their staged batches may be read. They are read if a
        target has no other entries.
    """
    steps: list[Step] = []
    for target_id, staged_batches_too in boxes:
        step = Step(read_step(connection, target_id, step_bytes))
        if staged_batches_too and not step.inbox_entries:
            step = read_staged_batches(connection, target_id, step_bytes)
        steps.append(step)
        max_bytes -= sum(inbox_entry.size_bytes for inbox_entry in step.inbox_entries)
        if max_bytes <= 0:
            break
    return steps


def _fetch(connection: Connection, ids: Sequence[int]) -> list[Stored]:
    """Return entries in the order of ``ids``, which ascend within each staged batch."""
    found: dict[int, Stored] = {}
    own = Landing(0)  # gives each long row memory of its own, which the index may keep
    for some in padded(ids):
        rows = connection.execute(
            f"SELECT id, size_bytes, data FROM inbox WHERE id {in_list(some)}", some, own
        ).rows
        found.update((id, Stored(id, size, _buffer(data))) for id, size, data in rows)
    return [found[id] for id in ids if id in found]


def remove(connection: Connection, ids: Sequence[int]) -> None:
    """Delete entries that are moved in this transaction.

    Raises:
      StorageError: if an entry does not exist, because it was moved or deleted elsewhere.
    """
    removed = sum(
        connection.execute(f"DELETE FROM inbox WHERE id {in_list(some)}", some).affected
        for some in padded(ids)
    )
    if removed != len(ids):
        raise StorageError(
            f"{len(ids) - removed} of {len(ids)} inbox entries that are being moved are gone. Do "
            "not delete rows of the inbox by hand. Use `escapement admin inbox discard`."
        )


def hold(connection: Connection, id: int, reason: str) -> None:
    """Hold an entry that can never be moved. It stays in the inbox for an operator to see."""
    connection.execute(
        "UPDATE inbox SET held = 1, reason = ? WHERE id = ?", (reason[:MAX_SOURCE_ID_CHARS], id)
    )


def close(connection: Connection, target: str) -> int:
    """Delete a target and return the number of its entries, which are deleted later."""
    rows = connection.execute(_FIND_TARGET, (target.encode(),)).rows
    if not rows:
        return 0
    ((id,),) = rows
    ((inbox_entries,),) = connection.execute(
        "SELECT COUNT(*) FROM inbox WHERE mailbox_id = ?", (id,)
    ).rows
    connection.execute("DELETE FROM mailboxes WHERE id = ?", (id,))
    if inbox_entries:
        removal.mark(connection, "mailbox", id)
    return int(inbox_entries) + staged_batch.close(connection, id)


def close_namespace(connection: Connection, namespace: str) -> None:
    """Delete the targets of a namespace without topics. Only held targets remain there: few."""
    rows = connection.execute(
        "SELECT target FROM mailboxes WHERE target > ? AND target < ?", names_in(namespace)
    ).rows
    for (target,) in rows:
        close(connection, _text(target))


def names_in(namespace: str) -> tuple[bytes, bytes]:
    """Return what lies before and after all names in a namespace."""
    # Names are ASCII, and "0" follows "/".
    return f"{namespace}/".encode(), f"{namespace}0".encode()


# -- looking -------------------------------------------------------------------


def waiting(connection: Connection, limit: int) -> list[Waiting]:
    """Return the backlog of each target, in the order of target ids."""
    columns = "i.id, i.message_count, i.size_bytes, i.created_at_ms, i.held, i.reason"
    rows = connection.execute(
        "SELECT m.target, COUNT(*), SUM(w.message_count), SUM(w.size_bytes),"
        " MIN(w.created_at_ms), SUM(w.held), MAX(w.reason) FROM"
        f" (SELECT i.mailbox_id AS box, {columns} FROM inbox i WHERE i.mailbox_id > 0"
        f" UNION ALL SELECT p.mailbox_id AS box, {columns}"
        " FROM parcels p JOIN inbox i ON i.mailbox_id = -p.id"
        f" AND {staged_batch.WAITS} WHERE p.mailbox_id > 0) AS w"
        " JOIN mailboxes m ON m.id = w.box GROUP BY m.id, m.target ORDER BY m.id LIMIT ?",
        (limit,),
    ).rows
    # Sums are decimals on MySQL.
    return [
        Waiting(
            _text(target), inbox_entries, int(messages), int(size_bytes), oldest, int(held), reason
        )
        for target, inbox_entries, messages, size_bytes, oldest, held, reason in rows
    ]


def _buffer(value: Buffer | str) -> Buffer:
    """Return a column's value as bytes. SQLite returns text that other programs wrote as str."""
    return value.encode() if isinstance(value, str) else value


def _text(value: bytes | str) -> str:
    return bytes(_buffer(value)).decode("utf-8", "replace")
