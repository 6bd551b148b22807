"""The state at the last checkpoint, from which a broker starts.

Replaying the journal (storage/journal/journal.py) on this state gives the state at the end of the
last group commit. :mod:`~escapement.storage.state.checkpoint` writes it. An index on disk matches
it or does not (:func:`fits`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

from escapement.storage import removal
from escapement.storage.catalog import catalog
from escapement.storage.catalog.catalog import Namespace, SubscriptionRecord, TopicRecord
from escapement.storage.catalog.producers import ProducerRecord, read_producers
from escapement.storage.engine.base import Connection
from escapement.storage.inbox.event_group import Completion, read_completions
from escapement.storage.inbox.schedule import Schedule, read_schedules
from escapement.storage.index.segments.manifest import Manifest, Mark
from escapement.storage.journal import journal
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.schema import log_identity
from escapement.storage.state.checkpoint import MemberRow

# Below every id: the cancelled messages of a topic have its negative id.
_LEAST: Final = -(1 << 63)
# Chunks read at once. Each has up to 128 KiB, most have a few hundred bytes.
_CHUNKS_AT_ONCE: Final = 256
# Parts of attempts or dedup keys read at once. Each has up to 2 MiB.
_PARTS_AT_ONCE: Final = 16
# Tables with numbered rows for each owner: their key columns, and the rows read at once.
_TABLES: Final = {
    "cursor_chunks": ("subscription_id", "chunk", _CHUNKS_AT_ONCE),
    "moves": ("topic_id", "chunk", _CHUNKS_AT_ONCE),
    "attempts": ("subscription_id", "part", _PARTS_AT_ONCE),
    "dedup_keys": ("topic_id", "part", _PARTS_AT_ONCE),
}
Table = Literal["cursor_chunks", "moves", "attempts", "dedup_keys"]


@dataclass(frozen=True, slots=True)
class State:
    """The state of a bundle at its last checkpoint, without log and journal."""

    log_identity: bytes
    mark: Mark | None  # identifies the checkpoint; None before the first
    namespaces: list[Namespace]
    condemned: list[int]  # ids of namespaces that are being deleted
    topics: list[TopicRecord]
    subscriptions: list[SubscriptionRecord]
    producers: list[ProducerRecord]
    schedules: list[Schedule]
    chunks: dict[int, list[tuple[int, bytes]]]  # subscription: (chunk, data)
    moves: dict[int, list[tuple[int, bytes]]]  # topic: (chunk, data)
    attempts: dict[int, list[tuple[int, bytes]]]  # subscription: (part, data), ascending
    keys: dict[int, list[tuple[int, bytes]]]  # topic: (part, data) of its dedup keys
    members: dict[int, list[MemberRow]]  # by topic: members of its event groups
    completions: dict[int, list[Completion]]  # by topic
    trims: dict[int, JournalPosition]  # by lane: the last entry that the checkpoint covers
    journal_ends: dict[int, JournalPosition]  # by lane: the last entry


def load_state(connection: Connection, bundle_id: int = 0) -> State:
    """Return the state from which the bundle's owner starts. Reads in bounded steps."""
    return State(
        log_identity=log_identity(connection),
        mark=_read_mark(connection, bundle_id),
        namespaces=list(catalog.read_namespaces(connection)),
        condemned=removal.marked(connection, "namespace"),
        topics=list(catalog.read_topics(connection, bundle_id)),
        subscriptions=list(catalog.read_subscriptions(connection)),
        producers=list(read_producers(connection)),
        schedules=list(read_schedules(connection, bundle_id)),
        chunks=_read_rows(connection, "cursor_chunks"),
        moves=_read_rows(connection, "moves"),
        attempts=_read_rows(connection, "attempts"),
        keys=_read_rows(connection, "dedup_keys"),
        members=_read_members(connection),
        completions=_by_topic(read_completions(connection)),
        trims=journal.trims(connection, bundle_id),
        journal_ends=journal.ends(connection, bundle_id),
    )


def load_rows(connection: Connection, table: Table, owner_id: int) -> list[tuple[int, bytes]]:
    """Return one owner's rows ``(chunk or part, data)`` of a table, ascending."""
    owner, number, _ = _TABLES[table]
    rows = connection.execute(
        f"SELECT {number}, data FROM {table} WHERE {owner} = ? ORDER BY {number}", (owner_id,)
    ).rows
    return [(number, data) for number, data in rows]


def fits(connection: Connection, bundle_id: int, manifest: Manifest) -> bool:
    """Return whether this manifest's index and the journal after it are complete.

    They are not if the index belongs to another log, or to one that was restored from a backup.
    Nor if another broker has written a checkpoint since. Messages that this broker filled in are
    in its index only, and no group commit has them.
    """
    if manifest.log_identity != log_identity(connection).hex():
        return False
    if not manifest.lineage.goes_with(_read_mark(connection, bundle_id)):
        return False
    positions = {lane: JournalPosition(*at) for lane, at in manifest.positions.items()}
    for lane, trimmed in journal.trims(connection, bundle_id).items():
        if trimmed.seq and lane not in positions:
            return False
    return all(
        journal.knows(connection, bundle_id, lane, position)
        for lane, position in positions.items()
        if position.seq
    )


def _read_mark(connection: Connection, bundle_id: int) -> Mark | None:
    rows = connection.execute(
        "SELECT life, number FROM last_checkpoint WHERE bundle_id = ?", (bundle_id,)
    ).rows
    return Mark(*rows[0]) if rows else None


def _read_rows(connection: Connection, table: Table) -> dict[int, list[tuple[int, bytes]]]:
    """Return the rows ``(chunk or part, data)`` of each owner, ascending."""
    owner, number, at_once = _TABLES[table]
    found: dict[int, list[tuple[int, bytes]]] = {}
    id = last = _LEAST
    while True:
        # Both engines seek directly to this condition: one range of the key, less its begin.
        rows = connection.execute(
            f"SELECT {owner}, {number}, data FROM {table}"
            f" WHERE {owner} >= ? AND NOT ({owner} = ? AND {number} <= ?)"
            f" ORDER BY {owner}, {number} LIMIT {at_once}",
            (id, id, last),
        ).rows
        for id, last, data in rows:
            found.setdefault(id, []).append((last, data))
        if len(rows) < at_once:
            return found


def _read_members(connection: Connection) -> dict[int, list[MemberRow]]:
    found: list[MemberRow] = []
    key: tuple[int, str, int] = (0, "", _LEAST)
    while True:
        rows = connection.execute(
            "SELECT topic_id, name, chunk, data FROM group_members"
            " WHERE topic_id >= ?"
            " AND NOT (topic_id = ? AND (name < ? OR (name = ? AND chunk <= ?)))"
            f" ORDER BY topic_id, name, chunk LIMIT {_CHUNKS_AT_ONCE}",
            (key[0], key[0], key[1], key[1], key[2]),
        ).rows
        found += [MemberRow(*row) for row in rows]
        if len(rows) < _CHUNKS_AT_ONCE:
            return _by_topic(found)
        key = rows[-1][:3]


class _OfTopic(Protocol):
    @property
    def topic_id(self) -> int: ...


R = TypeVar("R", bound=_OfTopic)


def _by_topic(rows: Iterable[R]) -> dict[int, list[R]]:
    found: dict[int, list[R]] = {}
    for row in rows:
        found.setdefault(row.topic_id, []).append(row)
    return found
