"""The inbox: a durable queue of messages that are to be moved into the logs of their topics.

An *inbox entry* (storage/inbox/entry.py) is a batch of messages, such as dead letters or the
occurrences of a schedule. Its *target* is the name of a topic. An *inbox target* is this name with
an id that is never used again. It is created with its first entry, whether the topic exists or not,
and deleted with the topic. *Moving* an entry means to append its messages to the topic's log. This
module owns the tables ``inbox_targets``, which has the inbox targets, and ``inbox``, which has the
entries. All functions run inside a transaction of the caller:

- :func:`insert` runs in the group commit of the event that causes the entries, so both become
  durable or neither.
- :func:`remove` runs in the group commit that appends the entries to the topic's log. For entries
  of bulk jobs that is :func:`staged_batch.advancing`. The lease guards that commit. So an entry is
  moved exactly once, even if a broker crashes at any point.
- :func:`close` runs in the transaction that deletes the topic or its namespace.

The *source id* of an entry names its cause, and is unique among the entries of a target. It is
remembered while the entry is in the inbox. Writing the entry again meanwhile changes nothing. After
the entry has been moved, the same source id makes a new entry. A writer that may repeat itself
later than that must record in its own transaction that it is done.

An entry that can never be moved is *stuck*: it stays in the inbox for an operator to see.

Entries of one target are moved in the order of their ids, which is the order in which one lane
wrote them. Entries that lanes commit concurrently may be moved in either order. The entries of the
target's staged batches (storage/inbox/staged_batch.py) follow after all others.
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

# How the source ids of dead letters begin.
DEAD_LETTERS: Final = "dead/"
# Limit of the inbox entries of one target that are moved together.
_STEP_ENTRIES: Final = 1_000

_FIND_TARGET: Final = "SELECT id FROM inbox_targets WHERE target = ?"


class InboxTarget(NamedTuple):
    """An inbox target: its id, and the full name of its topic."""

    id: int
    target: str


class Stored(NamedTuple):
    """An inbox entry as the database stores it."""

    id: int
    size_bytes: int  # size of the entry with its body decompressed
    data: Buffer
    advance: staged_batch.Advance | None = None  # for an entry of a bulk job: the batch's progress


class Step(NamedTuple):
    """Inbox entries of one target that are moved together."""

    inbox_entries: list[Stored]
    of_jobs: bool = False  # whether the entries are those of bulk jobs
    emptied: Sequence[int] = ()  # ids of staged batches with no entries left to move
    # For entries of bulk jobs, the position of the last one. The next step begins after it.
    last: staged_batch.EntryPosition = staged_batch.FIRST

    def is_full(self, step_bytes: int) -> bool:
        """Return whether the step has entries of bulk jobs, of at least half of ``step_bytes``.

        Then further entries probably follow, and it pays to read them ahead.
        """
        size_bytes = sum(inbox_entry.size_bytes for inbox_entry in self.inbox_entries)
        return self.of_jobs and bool(self.inbox_entries) and 2 * size_bytes >= step_bytes


class Waiting(NamedTuple):
    """Figures about the entries of one inbox target that wait, including those of bulk jobs."""

    target: str
    entries: int
    messages: int
    size_bytes: int
    oldest_at_ms: int
    stuck: int  # number of stuck entries
    reason: str  # why one of the stuck entries cannot be moved, or ""


# -- writing -------------------------------------------------------------------


def insert(
    engine: Engine, connection: Connection, inbox_entries: Sequence[InboxEntry], now_ms: int
) -> None:
    """Insert entries into the inbox, and create the inbox targets that do not exist.

    If an entry with the same target and source id is there already, it stays unchanged.
    """
    target_ids = inbox_targets(engine, connection, {one.target for one in inbox_entries})
    insert_into(engine, connection, inbox_entries, target_ids, now_ms)


def insert_into(
    engine: Engine,
    connection: Connection,
    inbox_entries: Sequence[InboxEntry],
    target_ids: Mapping[str, int],
    now_ms: int,
) -> None:
    """Insert entries into the inbox. Entries that are there already stay unchanged.

    Args:
      target_ids: by target, the id under which to store its entries: the id of the inbox target,
        or the negative id of a staged batch.
    """
    connection.execute_many(
        f"{engine.dialect.insert_ignore} INTO inbox (target_id, stuck, source_id, message_count,"
        " size_bytes, created_at_ms, reason, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                target_ids[inbox_entry.target],
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
    """Return the ids of inbox targets by name. Create those that do not exist.

    None of them can be deleted before the open transaction ends. The rows are locked in the order
    of their names, so that transactions do not deadlock.
    """
    wanted = sorted(targets)
    found: dict[str, int] = {}
    for some in padded([target.encode() for target in wanted]):
        rows = connection.execute(
            f"SELECT target, id FROM inbox_targets WHERE target {in_list(some)}"
            f"{engine.dialect.share_lock}",
            some,
        ).rows
        found.update((_text(target), int(id)) for target, id in rows)
    for target in wanted:
        if target not in found:
            found[target] = inbox_target(engine, connection, target)
    return found


def inbox_target(engine: Engine, connection: Connection, target: str) -> int:
    """Return the id of an inbox target, given by name. Create it if it does not exist.

    It cannot be deleted before the open transaction ends.
    """
    find = _FIND_TARGET + engine.dialect.share_lock
    key = (target.encode(),)
    rows = connection.execute(find, key).rows
    if not rows:
        connection.execute(
            f"{engine.dialect.insert_ignore} INTO inbox_targets (target) VALUES (?)", key
        )
        rows = connection.execute(find, key).rows
    return int(rows[0][0])


# -- moving --------------------------------------------------------------------


def occupied(connection: Connection, after_id: int, limit: int) -> list[InboxTarget]:
    """Return inbox targets that have entries to move, in the order of their ids.

    Args:
      after_id: leave out targets with this id or a lower one.
      limit: the most targets to return.
    """
    rows = connection.execute(
        # Each subquery reads one row of an index, however many entries or batches a target has.
        "SELECT t.id, t.target FROM inbox_targets t WHERE t.id > ? AND ((SELECT i.id FROM inbox i"
        " WHERE i.target_id = t.id AND i.stuck = 0 ORDER BY i.id LIMIT 1) IS NOT NULL"
        " OR (SELECT b.id FROM staged_batches b WHERE b.target_id = t.id AND b.stuck = 0"
        " ORDER BY b.id LIMIT 1) IS NOT NULL) ORDER BY t.id LIMIT ?",
        (after_id, limit),
    ).rows
    return [InboxTarget(id, _text(target)) for id, target in rows]


def with_dead_letters(connection: Connection, target_ids: Sequence[int]) -> set[int]:
    """Return those of some inbox targets that have dead letters among their entries."""
    after, before = DEAD_LETTERS, DEAD_LETTERS[:-1] + chr(ord(DEAD_LETTERS[-1]) + 1)
    return {
        id
        for id in target_ids
        if connection.execute(
            "SELECT 1 FROM inbox WHERE target_id = ? AND source_id > ? AND source_id < ? LIMIT 1",
            (id, after, before),
        ).rows
    }


def read_step(connection: Connection, target_id: int, max_bytes: int) -> list[Stored]:
    """Return the first entries of an inbox target, without those of bulk jobs.

    Returns nothing if the target was deleted.

    Args:
      max_bytes: limit for the size of the entries together. One entry may exceed it.
    """
    sizes = connection.execute(
        "SELECT i.id, i.size_bytes FROM inbox i JOIN inbox_targets t ON t.id = i.target_id"
        f" WHERE i.target_id = ? AND i.stuck = 0 ORDER BY i.id LIMIT {_STEP_ENTRIES}",
        (target_id,),
    ).rows
    return _fetch(connection, first_fitting(sizes, max_bytes))


def first_fitting(entries: Sequence[Row], max_bytes: int) -> list[int]:
    """Return the ids of the first entries whose size together is at most ``max_bytes``.

    It returns at least one id, unless ``entries`` is empty.

    Args:
      entries: the id and the size of each entry.
    """
    sizes = np.array([size_bytes for _, size_bytes in entries], np.int64)
    _, end = next(cuts(sizes, max_bytes, len(entries)), (0, 0))
    return [id for id, _ in entries[:end]]


def read_staged_batches(
    connection: Connection,
    target_id: int,
    max_bytes: int,
    after: staged_batch.EntryPosition = staged_batch.FIRST,
) -> Step:
    """Return the next entries to move from the staged batches of an inbox target.

    Args:
      max_bytes: limit for the size of the entries together. One entry may exceed it.
      after: the position after which to begin.
    """
    advances, emptied, last = staged_batch.next_entries(connection, target_id, max_bytes, after)
    by_entry = {advance.last: advance for advance in advances}
    inbox_entries = [
        inbox_entry._replace(advance=by_entry[inbox_entry.id])
        for inbox_entry in _fetch(connection, list(by_entry))
    ]
    return Step(inbox_entries, True, emptied, last)


def read_ahead(
    connection: Connection,
    positions: Sequence[tuple[int, staged_batch.EntryPosition]],
    step_bytes: int,
) -> list[Step]:
    """Return the next step of the staged batches of several inbox targets.

    Args:
      positions: the id of each target, and the position after which to begin.
      step_bytes: limit for the size of the entries of one step. One entry may exceed it.
    """
    return [read_staged_batches(connection, id, step_bytes, after) for id, after in positions]


def read_steps(
    connection: Connection, targets: Sequence[tuple[int, bool]], step_bytes: int, max_bytes: int
) -> list[Step]:
    """Return the entries to move next for the first of some inbox targets, one step for each.

    It stops after the target with which the steps together reach ``max_bytes``.

    Args:
      targets: ids of targets, and whether their staged batches may be read. The batches are read if
        the target has no other entries.
      step_bytes: limit for the size of the entries of one step. One entry may exceed it.
    """
    steps: list[Step] = []
    for target_id, staged_batches_too in targets:
        step = Step(read_step(connection, target_id, step_bytes))
        if staged_batches_too and not step.inbox_entries:
            step = read_staged_batches(connection, target_id, step_bytes)
        steps.append(step)
        max_bytes -= sum(inbox_entry.size_bytes for inbox_entry in step.inbox_entries)
        if max_bytes <= 0:
            break
    return steps


def _fetch(connection: Connection, ids: Sequence[int]) -> list[Stored]:
    """Return the inbox entries with these ids, in the same order. Skips ids that do not exist."""
    found: dict[int, Stored] = {}
    # An empty buffer: each large entry gets memory of its own, which the index may keep.
    own = Landing(0)
    for some in padded(ids):
        rows = connection.execute(
            f"SELECT id, size_bytes, data FROM inbox WHERE id {in_list(some)}", some, own
        ).rows
        found.update((id, Stored(id, size, _buffer(data))) for id, size, data in rows)
    return [found[id] for id in ids if id in found]


def remove(connection: Connection, ids: Sequence[int]) -> None:
    """Delete entries whose messages are appended to the log in the same transaction.

    Raises:
      StorageError: if an entry does not exist, because another transaction has moved or deleted it.
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


def rewrite(connection: Connection, entries: Mapping[int, bytes]) -> None:
    """Overwrite the encoded content of entries, if they still exist."""
    connection.execute_many(
        "UPDATE inbox SET data = ? WHERE id = ?", [(data, id) for id, data in entries.items()]
    )


def delete(connection: Connection, ids: Sequence[int]) -> None:
    """Delete entries, if they still exist."""
    for some in padded(ids):
        connection.execute(f"DELETE FROM inbox WHERE id {in_list(some)}", some)


def mark_stuck(connection: Connection, id: int, reason: str) -> None:
    """Mark an entry as stuck, because it can never be moved. It stays in the inbox.

    Args:
      reason: why it cannot be moved, for operators.
    """
    connection.execute(
        "UPDATE inbox SET stuck = 1, reason = ? WHERE id = ?", (reason[:MAX_SOURCE_ID_CHARS], id)
    )


def close(connection: Connection, target: str, bundle_id: int = 0) -> int:
    """Delete an inbox target, given by name, and its staged batches. Their entries follow later.

    Args:
      bundle_id: the bundle of the topic or its name, whose owner deletes the entries.

    Returns:
      The number of its entries that were not moved; 0 if the target does not exist.
    """
    rows = connection.execute(_FIND_TARGET, (target.encode(),)).rows
    if not rows:
        return 0
    ((id,),) = rows
    ((inbox_entries,),) = connection.execute(
        "SELECT COUNT(*) FROM inbox WHERE target_id = ?", (id,)
    ).rows
    connection.execute("DELETE FROM inbox_targets WHERE id = ?", (id,))
    if inbox_entries:
        removal.mark(connection, "inbox_target", id, bundle_id)
    return int(inbox_entries) + staged_batch.close(connection, id, bundle_id)


def close_namespace(connection: Connection, namespace: str) -> None:
    """Delete the inbox targets of a namespace whose topics are all deleted.

    There are few: a target is deleted with its topic, so only those of topics that do not exist
    remain.
    """
    rows = connection.execute(
        "SELECT target FROM inbox_targets WHERE target > ? AND target < ?", names_in(namespace)
    ).rows
    for (target,) in rows:
        close(connection, _text(target))


def names_in(namespace: str) -> tuple[bytes, bytes]:
    """Return a lower and an upper bound, both exclusive, for the full names in a namespace."""
    # Names are ASCII, where "0" is the character after "/".
    return f"{namespace}/".encode(), f"{namespace}0".encode()


# -- looking -------------------------------------------------------------------


def waiting(connection: Connection, limit: int) -> list[Waiting]:
    """Return figures about the waiting entries of each inbox target, in the order of their ids.

    Args:
      limit: the most targets to return.
    """
    columns = "i.id, i.message_count, i.size_bytes, i.created_at_ms, i.stuck, i.reason"
    rows = connection.execute(
        "SELECT t.target, COUNT(*), SUM(w.message_count), SUM(w.size_bytes),"
        " MIN(w.created_at_ms), SUM(w.stuck), MAX(w.reason) FROM"
        f" (SELECT i.target_id, {columns} FROM inbox i WHERE i.target_id > 0"
        f" UNION ALL SELECT b.target_id, {columns}"
        " FROM staged_batches b JOIN inbox i ON i.target_id = -b.id"
        f" AND {staged_batch.WAITS} WHERE b.target_id > 0) AS w"
        " JOIN inbox_targets t ON t.id = w.target_id GROUP BY t.id, t.target ORDER BY t.id LIMIT ?",
        (limit,),
    ).rows
    # MySQL returns sums as decimals.
    return [
        Waiting(
            _text(target), inbox_entries, int(messages), int(size_bytes), oldest, int(stuck), reason
        )
        for target, inbox_entries, messages, size_bytes, oldest, stuck, reason in rows
    ]


def _buffer(value: Buffer | str) -> Buffer:
    """Return the value of a column as bytes. SQLite returns str if another program stored text."""
    return value.encode() if isinstance(value, str) else value


def _text(value: bytes | str) -> str:
    return bytes(_buffer(value)).decode("utf-8", "replace")
