"""The inbox: letters that wait to be moved into the logs of their targets.

Owns the tables ``mailboxes`` and ``inbox``. A *mailbox* is a target's name and an id that
is never used again; it comes into being with its first letter, whether the topic exists
or not, and ends with the topic. Everything here runs inside a transaction of the caller's:

- :func:`insert` in the group commit of what caused the letters, so both happen or neither;
- :func:`remove` in the group commit that appends them to the target's log, which the
  lease guards: a letter is moved exactly once, whoever dies when;
- :func:`close` in the transaction that deletes the target, or its namespace.

A source id is remembered as long as its letter is here: written again meanwhile, a letter
changes nothing; after it was moved it would be a new one. Whoever may repeat himself later
than that must see in his own transaction that he has done it already.

Letters of one mailbox are moved in the order of their ids, which is the order in which one
lane wrote them; of letters that are committed side by side either may go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from escapement.errors import StorageError
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.letter import MAX_SOURCE_ID_CHARS, Letter, encode_letter

# Ids in one statement: its text stays short.
_IDS_AT_ONCE: Final = 500
# Letters looked at in one step of a mailbox.
_STEP_LETTERS: Final = 1_000

_FIND_MAILBOX: Final = "SELECT id FROM mailboxes WHERE target = ?"


class Mailbox(NamedTuple):
    """A target that has letters to be moved."""

    id: int
    target: str


class Stored(NamedTuple):
    """One letter as it lies in its mailbox."""

    id: int
    data: bytes


class Waiting(NamedTuple):
    """What lies in one mailbox."""

    target: str
    letters: int
    messages: int
    size_bytes: int
    oldest_at_ms: int
    held: int  # of the letters
    reason: str  # of one that is held, or ""


# -- writing -------------------------------------------------------------------


def insert(engine: Engine, connection: Connection, letters: Sequence[Letter], now_ms: int) -> None:
    """Put letters into their mailboxes; one that is there already stays as it is."""
    mailboxes = {
        target: _mailbox(engine, connection, target) for target in sorted(_targets(letters))
    }
    connection.execute_many(
        f"{engine.dialect.insert_ignore} INTO inbox (mailbox_id, held, source_id, message_count,"
        " size_bytes, created_at_ms, reason, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                mailboxes[letter.target],
                0,
                letter.source_id,
                letter.count,
                letter.size_bytes,
                now_ms,
                "",
                encode_letter(letter),
            )
            for letter in letters
        ],
    )


def _targets(letters: Iterable[Letter]) -> set[str]:
    return {letter.target for letter in letters}


def _mailbox(engine: Engine, connection: Connection, target: str) -> int:
    """The id of a target's mailbox, which cannot be closed before the transaction ends."""
    find = _FIND_MAILBOX + engine.dialect.share_lock
    key = (target.encode(),)
    rows = connection.execute(find, key).rows
    if not rows:
        connection.execute(
            f"{engine.dialect.insert_ignore} INTO mailboxes (target) VALUES (?)", key
        )
        rows = connection.execute(find, key).rows
    return int(rows[0][0])


# -- moving --------------------------------------------------------------------


def occupied(connection: Connection, after_id: int, limit: int) -> list[Mailbox]:
    """Mailboxes with letters to be moved, in the order of their ids."""
    rows = connection.execute(
        # Of each mailbox the first letter alone is looked for, however many there are.
        "SELECT m.id, m.target FROM mailboxes m WHERE m.id > ? AND (SELECT i.id FROM inbox i"
        " WHERE i.mailbox_id = m.id AND i.held = 0 ORDER BY i.id LIMIT 1) IS NOT NULL"
        " ORDER BY m.id LIMIT ?",
        (after_id, limit),
    ).rows
    return [Mailbox(id, _text(target)) for id, target in rows]


def read_step(connection: Connection, mailbox_id: int, max_bytes: int) -> list[Stored]:
    """The first letters of a mailbox that is not closed: one, or as many as fit."""
    sizes = connection.execute(
        "SELECT i.id, i.size_bytes FROM inbox i JOIN mailboxes m ON m.id = i.mailbox_id"
        f" WHERE i.mailbox_id = ? AND i.held = 0 ORDER BY i.id LIMIT {_STEP_LETTERS}",
        (mailbox_id,),
    ).rows
    ids: list[int] = []
    for id, size_bytes in sizes:
        max_bytes -= size_bytes
        if ids and max_bytes < 0:
            break
        ids.append(id)
    found: list[Stored] = []
    for some in _portions(ids):
        rows = connection.execute(f"SELECT id, data FROM inbox WHERE id IN ({some}) ORDER BY id")
        found += [Stored(id, _bytes(data)) for id, data in rows.rows]
    return found


def read_steps(
    connection: Connection, mailbox_ids: Sequence[int], step_bytes: int, max_bytes: int
) -> list[list[Stored]]:
    """A step of each of the first mailboxes: of one, or of as many as fit."""
    steps: list[list[Stored]] = []
    for mailbox_id in mailbox_ids:
        steps.append(read_step(connection, mailbox_id, step_bytes))
        max_bytes -= sum(len(letter.data) for letter in steps[-1])
        if max_bytes <= 0:
            break
    return steps


def remove(connection: Connection, ids: Sequence[int]) -> None:
    """Take out letters that are moved in this transaction.

    Raises:
      StorageError: if one of them is not there: then it was moved or deleted by another.
    """
    removed = sum(
        connection.execute(f"DELETE FROM inbox WHERE id IN ({some})").affected
        for some in _portions(ids)
    )
    if removed != len(ids):
        raise StorageError(
            f"of {len(ids)} letters that are being moved {len(ids) - removed} are gone: rows of "
            "the inbox must not be deleted by hand (`escapement admin inbox discard` does it)"
        )


def hold(connection: Connection, id: int, reason: str) -> None:
    """Leave a letter out that can never be moved; it stays, for people to look at."""
    connection.execute(
        "UPDATE inbox SET held = 1, reason = ? WHERE id = ?", (reason[:MAX_SOURCE_ID_CHARS], id)
    )


def close(connection: Connection, target: str) -> int:
    """End a target's mailbox with all of its letters, which are freed later; how many."""
    rows = connection.execute(_FIND_MAILBOX, (target.encode(),)).rows
    if not rows:
        return 0
    ((id,),) = rows
    ((letters,),) = connection.execute(
        "SELECT COUNT(*) FROM inbox WHERE mailbox_id = ?", (id,)
    ).rows
    connection.execute("DELETE FROM mailboxes WHERE id = ?", (id,))
    if letters:
        removal.mark(connection, "mailbox", id)
    return int(letters)


def close_namespace(connection: Connection, namespace: str) -> None:
    """End all mailboxes of a namespace that has no topics; few, those that are blocked."""
    # Names are ASCII, and "0" follows "/".
    rows = connection.execute(
        "SELECT target FROM mailboxes WHERE target > ? AND target < ?",
        (f"{namespace}/".encode(), f"{namespace}0".encode()),
    ).rows
    for (target,) in rows:
        close(connection, _text(target))


def _portions(ids: Sequence[int]) -> list[str]:
    return [
        ",".join(map(str, ids[at : at + _IDS_AT_ONCE])) for at in range(0, len(ids), _IDS_AT_ONCE)
    ]


# -- looking -------------------------------------------------------------------


def waiting(connection: Connection, limit: int) -> list[Waiting]:
    """What waits, by target; those with the oldest mailboxes first."""
    rows = connection.execute(
        "SELECT m.target, COUNT(*), SUM(i.message_count), SUM(i.size_bytes),"
        " MIN(i.created_at_ms), SUM(i.held), MAX(i.reason)"
        " FROM inbox i JOIN mailboxes m ON m.id = i.mailbox_id"
        " GROUP BY m.id, m.target ORDER BY m.id LIMIT ?",
        (limit,),
    ).rows
    # Sums are decimals on MySQL.
    return [
        Waiting(_text(target), letters, int(messages), int(size_bytes), oldest, int(held), reason)
        for target, letters, messages, size_bytes, oldest, held, reason in rows
    ]


def _bytes(value: bytes | str) -> bytes:
    """What a column holds; where others write too, SQLite keeps text as text."""
    return value.encode() if isinstance(value, str) else bytes(value)


def _text(value: bytes | str) -> str:
    return _bytes(value).decode("utf-8", "replace")
