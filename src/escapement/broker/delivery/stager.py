"""Reads messages ahead of their frames, for subscriptions that do not deliver in index order.

:mod:`~escapement.broker.subscription.priorities.staged` decides which messages a subscription
should have in memory, and which of them fit. This module only reads. Each read is a single call. A
read that returned to the event loop after each piece would wait for its turn each time, behind all
outgoing frames, and deliveries would then wait for the read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

import numpy as np

from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.priorities.staged import Staged
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.topic.topic import Topic
from escapement.message import MessageBatch
from escapement.storage.blocking import Run
from escapement.storage.index import DelayedIndex
from escapement.storage.index.columns import assemble
from escapement.storage.index.plan import Fetch, Plan

# A piece has about this many bytes, by the recent mean size, and at most this many rows. It is
# spread over some twenty tables and blocks, and reading each of them has a cost.
_PIECE_BYTES: Final = 4 * 1024 * 1024
_PIECE_ROWS: Final = 65_536


class _Read(NamedTuple):
    """The result of a read: rows and messages, piece by piece, and the rows that did not fit."""

    left: Rows
    found: list[Rows]
    batches: list[MessageBatch]


class Stager:
    """The reader of staged messages."""

    def __init__(self, index: DelayedIndex, limits: BrokerLimits, run: Run) -> None:
        self._index = index
        self._limits = limits
        self._run = run
        self._staged: WeakSet[Staged] = WeakSet()  # those that are not empty

    async def read(
        self,
        topic: Topic,
        subscription: SharedSubscription,
        found: Rows | None = None,
        plan: Plan | None = None,
    ) -> None:
        """Read the messages that are worth staging.

        Args:
          found: as for ``DueSubscription.to_stage``.
          plan: the plan that found them, which may know where they are.
        """
        # The index keeps nothing for a subscription that was deleted or sought.
        if topic.shared.get(subscription.record.name) is not subscription:
            return
        rows = subscription.to_stage(found, self._room_bytes, topic.sizes.mean_bytes)
        if not rows.height:
            return
        if plan is not None and plan.can_locate:
            read = await self._run(_read_located, plan, rows, self._room_bytes())
        else:
            read = await self._fetch(topic, subscription, rows)
        if read.batches:
            # Concatenate here: the thread would allocate fresh memory each time.
            batch = MessageBatch.concat(read.batches)
            topic.sizes.saw(batch)
            subscription.staged.put(Rows.concat(read.found), batch)
            self._staged.add(subscription.staged)
        if read.left.height:
            subscription.staged.expect(read.left)

    async def _fetch(self, topic: Topic, subscription: SharedSubscription, rows: Rows) -> _Read:
        # Pin everything now and read it in pieces, because sizes are known only after reading.
        step = topic.sizes.frame_messages(_PIECE_ROWS, _PIECE_BYTES)
        pieces = [rows.pick(slice(at, at + step)) for at in range(0, rows.height, step)]
        fetches = [self._index.fetch(topic.id, part.due_ms, part.offsets) for part in pieces]
        unfilled = (subscription.record.fill_from, subscription.record.fill_until)
        return await self._run(_read_fetches, pieces, fetches, unfilled, self._room_bytes())

    def _room_bytes(self) -> int:
        """Return how many more bytes may be staged, for all subscriptions together."""
        return self._limits.staged_bytes - sum(staged.size_bytes for staged in self._staged)


def _read_located(plan: Plan, rows: Rows, room_bytes: int) -> _Read:
    """Read the messages that the plan found, until the room is used up. Blocking."""
    found: list[Rows] = []
    batches: list[MessageBatch] = []
    left = np.ones(rows.height, bool)
    for which, picks in plan.locate((rows.due_ms, rows.offsets), _PIECE_BYTES):
        if room_bytes <= 0:
            break
        found.append(rows.pick(which))
        batches.append(assemble(len(which), picks))
        room_bytes -= batches[-1].size_bytes
        left[which] = False
    return _Read(rows.pick(left), found, batches)


def _read_fetches(
    pieces: Sequence[Rows], fetches: Sequence[Fetch], unfilled: tuple[int, int], room_bytes: int
) -> _Read:
    """Read pieces, each with its fetch, until the room is used up. Blocking."""
    found: list[Rows] = []
    batches: list[MessageBatch] = []
    read = 0
    for piece, fetch in zip(pieces, fetches, strict=True):
        if room_bytes <= 0:
            break
        there, batch = fetch.read_there(*unfilled)
        if len(batch):
            found.append(piece if there is None else piece.pick(there))
            batches.append(batch)
            room_bytes -= batch.size_bytes
        read += 1
    return _Read(Rows.concat(list(pieces[read:])), found, batches)
