"""The state at the last checkpoint, from which a broker starts.

The *state* is the catalog, and what checkpoints write (storage/state/checkpoint.py). Replaying the
journal (storage/journal/journal.py) on it gives the state at the end of the last group commit. The
delayed index on the local disk may be used only if it fits the database (:func:`fits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeVar

from escapement.access.grant import Grant
from escapement.storage import bulk_change, bundles, removal
from escapement.storage.bulk_change import BulkChange
from escapement.storage.catalog import catalog
from escapement.storage.catalog.catalog import Namespace, SubscriptionRecord, TopicRecord
from escapement.storage.catalog.grants import read_grants
from escapement.storage.catalog.producers import ProducerRecord, read_producers
from escapement.storage.catalog.tokens import TokenRecord, read_tokens
from escapement.storage.data_table import (
    ATTEMPTS,
    CURSOR_CHUNKS,
    DEDUP_KEYS,
    GROUP_MEMBERS,
    MOVES,
    REPLACE_KEYS,
    DataTable,
)
from escapement.storage.engine.base import Connection
from escapement.storage.inbox.event_group import Completion, read_completions
from escapement.storage.inbox.schedule import Schedule, read_schedules
from escapement.storage.index.segments.manifest import Manifest, Mark
from escapement.storage.journal import journal
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.schema import log_identity
from escapement.storage.state.checkpoint import MemberRow

T = TypeVar("T")

_ID: Final = attrgetter("id")


@dataclass(frozen=True, slots=True)
class State:
    """The state of a *bundle* at its last checkpoint, without log and journal.

    A bundle is the topics that one broker owns. All bundles share namespaces, tokens and grants.

    Chunks and parts are rows of encoded data (storage/state/checkpoint.py). A field "by topic", for
    example, maps the id of each topic to its rows.
    """

    log_identity: bytes
    mark: Mark | None  # identifies the checkpoint; None before the first
    namespaces: list[Namespace]
    deleting_namespaces: list[int]  # ids of namespaces that are being deleted
    topics: list[TopicRecord]
    subscriptions: list[SubscriptionRecord]
    producers: list[ProducerRecord]
    schedules: list[Schedule]
    bulk_changes: list[BulkChange]
    tokens: list[TokenRecord]
    grants: list[Grant]
    # By subscription, (chunk, data) of its acknowledged offsets. Cancelled and lapsed offsets are
    # here too, under the ids that ``cancellations_id`` and ``lapses_id`` return.
    chunks: dict[int, list[tuple[int, bytes]]]
    moves: dict[int, list[tuple[int, bytes]]]  # by topic, (chunk, data) of rescheduled due times
    attempts: dict[int, list[tuple[int, bytes]]]  # by subscription, (part, data), ascending
    keys: dict[int, list[tuple[int, bytes]]]  # by topic, (part, data) of its dedup keys
    replace_keys: dict[int, list[tuple[int, bytes]]]  # the same of its replace keys
    members: dict[int, list[MemberRow]]  # by topic, chunks of the members of its event groups
    completions: dict[int, list[Completion]]  # by topic, its group completions
    trims: dict[int, JournalPosition]  # by lane, the last journal entry that was deleted
    journal_ends: dict[int, JournalPosition]  # by lane, the last journal entry
    bundle_id: int = 0
    bundle_count: int = 1  # the number of bundles in the database


def load_state(connection: Connection, bundle_id: int = 0) -> State:
    """Read the state of a bundle, from which its owner starts. Reads a bounded page at a time.

    If the database has other bundles, only the rows of this bundle's topics are read.
    """
    bundle_count = bundles.bundle_count(connection)
    topics = list(catalog.read_topics(connection, bundle_id))
    of_topics = None if bundle_count == 1 else [one.id for one in topics]
    subscriptions = sorted(catalog.read_subscriptions(connection, of_topics), key=_ID)
    of_sets = of_subscriptions = None
    if of_topics is not None:
        of_subscriptions = [one.id for one in subscriptions]
        of_sets = [
            *of_subscriptions,
            *map(lapses_id, of_subscriptions),
            *map(cancellations_id, of_topics),
        ]
    return State(
        log_identity=log_identity(connection),
        mark=_read_mark(connection, bundle_id),
        namespaces=list(catalog.read_namespaces(connection)),
        deleting_namespaces=removal.marked(connection, "namespace"),
        topics=topics,
        subscriptions=subscriptions,
        producers=sorted(read_producers(connection, of_topics), key=_ID),
        schedules=list(read_schedules(connection, bundle_id)),
        bulk_changes=list(bulk_change.read_all(connection, bundle_id)),
        tokens=read_tokens(connection),
        grants=read_grants(connection),
        chunks=_by_owner(connection, CURSOR_CHUNKS, of_sets),
        moves=_by_owner(connection, MOVES, of_topics),
        attempts=_by_owner(connection, ATTEMPTS, of_subscriptions),
        keys=_by_owner(connection, DEDUP_KEYS, of_topics),
        replace_keys=_by_owner(connection, REPLACE_KEYS, of_topics),
        members=_by_id(
            (row[0], MemberRow(*row)) for row in GROUP_MEMBERS.rows(connection, of_topics)
        ),
        completions=_by_id((one.topic_id, one) for one in read_completions(connection, of_topics)),
        trims=journal.trims(connection, bundle_id),
        journal_ends=journal.ends(connection, bundle_id),
        bundle_id=bundle_id,
        bundle_count=bundle_count,
    )


def fits(connection: Connection, bundle_id: int, manifest: Manifest) -> bool:
    """Return whether the index with this manifest may be used with this database.

    If so, the index and the journal entries after it have all messages together. It may not be used
    if it belongs to another log, if the database was restored from a backup, or if another broker
    has written a checkpoint since. That broker may have filled in messages from the log, which then
    are only in its own index and in no journal entry. A restored database may have all messages of
    the index, and yet lack acknowledgements because of which the index left out messages.
    """
    if manifest.log_identity != log_identity(connection).hex():
        return False
    if not manifest.lineage.goes_with(_read_mark(connection, bundle_id)):
        return False
    for lane, trimmed in journal.trims(connection, bundle_id).items():
        if trimmed.seq and lane not in manifest.positions:
            return False
    return all(
        journal.knows(connection, bundle_id, lane, JournalPosition(*at))
        for positions in (manifest.positions, manifest.relied_on)
        for lane, at in positions.items()
        if at[0]
    )


def _read_mark(connection: Connection, bundle_id: int) -> Mark | None:
    rows = connection.execute(
        "SELECT incarnation, number FROM last_checkpoint WHERE bundle_id = ?", (bundle_id,)
    ).rows
    return Mark(*rows[0]) if rows else None


def _by_owner(
    connection: Connection, table: DataTable, owners: Sequence[int] | None
) -> dict[int, list[tuple[int, bytes]]]:
    return _by_id((id, (number, data)) for id, number, data in table.rows(connection, owners))


def _by_id(pairs: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for id, one in pairs:
        found.setdefault(id, []).append(one)
    return found
