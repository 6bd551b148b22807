"""State that has changed since the last checkpoint and is not in the database yet.

``take`` collects all of it in one synchronous step, as a ``Checkpoint``. The checkpointer writes
it, and ``stored`` then reports that it is in the database. If the write fails, the next ``take``
returns the same state again, with later changes. State of topics and subscriptions that were
deleted meanwhile is left out, so that it does not reappear.

Only committed changes may be written. Most of this state changes after the commit, in
:mod:`~escapement.broker.settlement`. Acknowledged, lapsed and cancelled messages are sets of
offsets, which change before the commit. Their rows leave out offsets that are not committed, and
:class:`~escapement.broker.log.cursor.Cursor` asserts that. A message *lapses* if it expires or is
dropped before a consumer gets it.

Attempts, dedup keys and replace keys are stored in numbered *parts*: each checkpoint adds one with
the new attempts or keys. When there are many parts, or much of them is obsolete, everything is
*rewritten* in new parts and the old ones are deleted.

No I/O: :mod:`~escapement.broker.upkeep.checkpointer` writes the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.key_store import KeyStore, T
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.progress import Progress
from escapement.clock import Clock
from escapement.storage.encoding.attempts import AttemptTable, Parts
from escapement.storage.index import Mark
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.log.log import Log
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.checkpoint import (
    AttemptPart,
    Checkpoint,
    ChunkRow,
    KeyPart,
    MemberRow,
    ReplaceKeyPart,
    SubscriptionRow,
)
from escapement.storage.state.lag_table import LagRow


class Rewrite(NamedTuple):
    """The attempts of one subscription, when its stored parts are to be rewritten."""

    subscription: Subscription
    parts: Parts  # numbers the new parts
    table: AttemptTable  # all attempts, also of messages that have finished


class Unwritten:
    """The unwritten state of a broker."""

    def __init__(
        self,
        log: Log,
        registry: Registry,
        progress: Progress,
        clock: Clock,
        parts: dict[int, Parts],
        key_parts: dict[int, Parts],
        replace_key_parts: dict[int, Parts],
    ) -> None:
        """Begin with nothing unwritten.

        Args:
          parts: counts the stored parts of attempts, by subscription id.
          key_parts: counts the stored parts of dedup keys, by topic id.
          replace_key_parts: the same of replace keys.
        """
        self._log = log
        self._registry = registry
        self._progress = progress
        self._clock = clock
        self.parts = parts
        self._key_parts = key_parts
        self._replace_key_parts = replace_key_parts
        self._left = Checkpoint()  # collected by ``take``, but not in the database yet
        self._covered = dict(progress.positions)  # lane positions of the last written checkpoint

    @property
    def is_there(self) -> bool:
        """Whether there is unwritten state.

        There is if a group was committed since the last checkpoint, or its write failed.
        """
        return self._progress.positions != self._covered or bool(self._left.trims)

    @property
    def has_stale_keys(self) -> bool:
        """Whether a topic has dedup keys whose window has passed, so that they can be removed."""
        now_ms = self._clock.now_ms()
        topics = map(self._registry.active.get, self._progress.keyed)
        return any(
            topic.dedup.is_stale(now_ms, topic.policy.dedup_window_ms)
            for topic in topics
            if topic is not None
        )

    def keep(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint that is being written. If the write fails, ``take`` includes it."""
        self._left = checkpoint

    def stored(self) -> None:
        """Discard the kept checkpoint: it is in the database."""
        self._covered = dict(self._left.trims)
        self._left = Checkpoint()

    # -- collecting changes --------------------------------------------------------

    def fills(self) -> list[SubscriptionRow]:
        """Return the progress of fills: the range of the log that each still has to read.

        Covers the shared subscriptions of all topics that have changed. A *fill* adds past messages
        to the index again (broker/upkeep/filler.py).
        """
        return [
            SubscriptionRow(shared.record.id, shared.record.fill_from, shared.record.fill_until)
            for topic in self._active(self._progress.touched)
            for shared in topic.shared.values()
        ]

    def take(
        self, mark: Mark, positions: dict[int, JournalPosition], fills: list[SubscriptionRow]
    ) -> tuple[Checkpoint, list[Rewrite]]:
        """Collect all changes since the last checkpoint, in one synchronous step.

        Args:
          mark: identifies this checkpoint.
          positions: the position of each lane when the index was frozen.
          fills: the result of ``fills`` at that moment.

        Returns:
          The checkpoint, and the subscriptions whose attempts must be rewritten with it.
        """
        touched, self._progress.touched = self._progress.touched, set()
        marks, self._progress.producers = self._progress.producers, {}
        rewrites: list[Rewrite] = []
        chunks = {(row.owner_id, row.chunk): row for row in self._left.chunks}
        moves = {(row.owner_id, row.chunk): row for row in self._left.moves}
        attempts = list(self._left.attempts)
        next_offsets = dict(self._left.next_offsets)
        finished = dict(self._left.finished)
        producers = {row.producer_id: row for row in self._left.producers} | marks
        for topic in self._active(touched):
            next_offsets[topic.id] = topic.next_offset
            _take_cursors(topic, chunks)
            for subscription in topic.subscriptions():
                attempts += self._take_attempts(subscription, rewrites)
                finished[subscription.record.id] = topic.finished(subscription)
            for chunk, data in topic.amendments.moves.dirty_chunks().items():
                moves[topic.id, chunk] = ChunkRow(topic.id, chunk, data)
        keys, keys_from = self._take_keys()
        replace_keys, replace_keys_from = self._take_replace_keys(touched)
        forgotten, members = self._take_groups(touched)
        lags = self._take_lags()
        subscriptions = {row.subscription_id: row for row in (*self._left.subscriptions, *fills)}
        alive = {record.id for record in self._registry.all_subscriptions()}
        alive.update(cancellations_id(record.id) for record in self._registry.topics.values())
        self.parts = {id: parts for id, parts in self.parts.items() if id in alive}
        checkpoint = Checkpoint(
            mark,
            [row for row in chunks.values() if _whose(row) in alive],
            [part for part in attempts if part.subscription_id in alive],
            {id: part for id, part in self._left.attempts_from.items() if id in alive},
            keys,
            keys_from,
            next_offsets,
            list(producers.values()),
            list(subscriptions.values()),
            {id: count for id, count in finished.items() if id in alive},
            self._log.current,
            positions,
            [row for row in moves.values() if self._registry.exists(row.owner_id)],
            forgotten,
            members,
            lags,
            replace_keys,
            replace_keys_from,
        )
        return checkpoint, rewrites

    def _active(self, topic_ids: Iterable[int]) -> list[Topic]:
        """Return those of these topics that have a runtime.

        Deleted topics have none. Passive topics have none either, and the database has their state.
        """
        found = map(self._registry.active.get, topic_ids)
        return [topic for topic in found if topic is not None]

    def _take_lags(self) -> list[LagRow]:
        """Return the unwritten lag statistics of existing subscriptions."""
        origins = {record.origin_id for record in self._registry.all_subscriptions()}
        lags = {row[:4]: row for row in self._left.lags if row.origin_id in origins}
        changed = self._progress.lags.take_changed(self._clock.now_ms(), origins)
        return list((lags | {row[:4]: row for row in changed}).values())

    def _take_groups(self, touched: set[int]) -> tuple[list[tuple[int, str]], list[MemberRow]]:
        """Return the message groups to delete, and the changed rows of members of other groups."""
        forgotten = dict.fromkeys(self._left.forgotten)
        members = {row[:3]: row for row in self._left.members}
        for topic in self._active(touched):
            gone = [(topic.id, group) for group in topic.groups.take_forgotten()]
            if gone:
                forgotten.update(dict.fromkeys(gone))
                members = {key: row for key, row in members.items() if key[:2] not in gone}
            members.update({row[:3]: row for row in topic.groups.dirty_rows(topic.id)})
        exists = self._registry.exists
        return (
            [one for one in forgotten if exists(one[0])],
            [row for row in members.values() if exists(row.topic_id)],
        )

    def _take_keys(self) -> tuple[list[KeyPart], dict[int, int]]:
        """Return the unwritten parts of dedup keys, and which older parts they replace.

        The latter is a dictionary with the topics whose keys are written anew: by topic id, the
        number of the first new part. The checkpoint deletes the parts before it.
        """
        now_ms = self._clock.now_ms()
        exists = self._registry.exists
        keys = [part for part in self._left.keys if exists(part.topic_id)]
        keys_from = {id: part for id, part in self._left.keys_from.items() if exists(id)}
        self._key_parts = {id: parts for id, parts in self._key_parts.items() if exists(id)}
        for topic_id in list(self._progress.keyed):
            topic = self._registry.active.get(topic_id)
            if topic is None:
                self._progress.keyed.discard(topic_id)
                continue
            remembered = topic.dedup
            remembered.forget(now_ms, topic.policy.dedup_window_ms)
            parts = self._key_parts.setdefault(topic_id, Parts())
            first, numbered = _take_parts(remembered, parts)
            if first is not None:
                keys_from[topic_id] = first
            keys += [KeyPart(topic_id, part, table) for part, table in numbered]
            if not len(remembered):
                self._progress.keyed.discard(topic_id)
        return keys, keys_from

    def _take_replace_keys(self, touched: set[int]) -> tuple[list[ReplaceKeyPart], dict[int, int]]:
        """Return the unwritten parts of replace keys, and which older parts they replace.

        Like ``_take_keys``. Entries of messages that are not pending any more are removed first.

        Args:
          touched: the topics that have changed since the last checkpoint.
        """
        now_ms, left = self._clock.now_ms(), self._left
        exists = self._registry.exists
        keys = [part for part in left.replace_keys if exists(part.topic_id)]
        keys_from = {id: part for id, part in left.replace_keys_from.items() if exists(id)}
        all_parts = {id: parts for id, parts in self._replace_key_parts.items() if exists(id)}
        self._replace_key_parts = all_parts
        for topic_id in list(self._progress.replacing):
            topic = self._registry.active.get(topic_id)
            if topic is None:
                self._progress.replacing.discard(topic_id)
                continue
            store = topic.replace_keys
            if topic_id in touched or store.unchecked:
                store.purge(now_ms)
            first, numbered = _take_parts(store, all_parts.setdefault(topic_id, Parts()))
            if first is not None:
                keys_from[topic_id] = first
            keys += [ReplaceKeyPart(topic_id, part, table) for part, table in numbered]
            if not len(store):
                self._progress.replacing.discard(topic_id)
        return keys, keys_from

    def _take_attempts(
        self, subscription: Subscription, rewrites: list[Rewrite]
    ) -> list[AttemptPart]:
        """Return parts with the attempts that are new since the last checkpoint.

        If the stored parts are to be rewritten, return none and add all attempts to ``rewrites``.
        """
        id = subscription.record.id
        parts = self.parts.get(id)
        if parts is None:
            if not subscription.attempts.has_new:
                return []
            parts = self.parts[id] = Parts()
        if parts.wants_rewrite(subscription.most_attempts):
            table = subscription.all_attempts(self._clock.now_ms())
            rewrites.append(Rewrite(subscription, parts, table))
            return []
        if not subscription.attempts.has_new:
            return []
        return [
            AttemptPart(id, parts.add(len(piece.offsets)), piece)
            for piece in subscription.attempts.take_new().pieces()
        ]


def _take_parts(store: KeyStore[T], parts: Parts) -> tuple[int | None, list[tuple[int, T]]]:
    """Return the parts of a topic's keys to write, each with its number.

    Args:
      parts: counts the stored parts.

    Returns:
      The number of the first part to keep if all keys are written again, else None; and the parts.
    """
    first = None
    if parts.wants_rewrite(len(store)):
        first, tables = parts.rewrite(), store.all_keys()
    else:
        tables = store.take_unstated()
        if not len(store):
            tables = []  # all of them are forgotten again
    return first, [(parts.add(len(table.offsets)), table) for table in tables]


def _whose(row: ChunkRow) -> int:
    """Return the id of the subscription or topic whose set of offsets a row belongs to.

    It is negative for a topic. A row of lapsed offsets belongs to their subscription.
    """
    return min(row.owner_id, lapses_id(row.owner_id), key=abs)


def _take_cursors(topic: Topic, chunks: dict[tuple[int, int], ChunkRow]) -> None:
    """Add the changed rows of a topic's sets of offsets to ``chunks``.

    They do not contain offsets whose group commit is still to come.
    """
    cancelled = topic.amendments.cancelled
    _take_set(cancellations_id(topic.id), cancelled, cancelled.undurable, chunks)
    for subscription in topic.subscriptions():
        id, acked, lapsed = subscription.record.id, subscription.acked, subscription.lapsed
        _take_set(id, acked, acked.undurable, chunks)
        if lapsed is not None:
            # A lapse becomes durable with the message's acknowledgement, in one group commit.
            _take_set(lapses_id(id), lapsed, acked.undurable, chunks)


def _take_set(
    id: int, offsets: OffsetSet, undurable: OffsetSet, chunks: dict[tuple[int, int], ChunkRow]
) -> None:
    for chunk, data in offsets.dirty_chunks(undurable).items():
        chunks[id, chunk] = ChunkRow(id, chunk, data)
    offsets.mark_clean()
