"""Reads messages into memory before they are sent, for subscriptions with priorities or key order.

Such subscriptions do not deliver in the order of the index, so the messages of one frame are far
apart on disk. Messages that were read ahead are *staged*.
:mod:`~escapement.broker.subscription.priorities.staged` keeps them, and decides which messages a
subscription should have in memory and which of them fit. This module only reads.

A read has several pieces, but is a single call in a thread. If it returned to the event loop after
each piece, it would wait for its turn each time, behind all outgoing frames, and deliveries would
wait for the read.
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
from escapement.storage.index.columns import assemble
from escapement.storage.index.delivery_order import DeliveryOrder, KeyPlan
from escapement.storage.index.plan import Fetch

# A piece of a read has about this many bytes, by the recent mean size of a message, and at most
# this many messages. Pieces must not be small: a piece comes from some twenty tables and blocks of
# the index, and reading from each has a cost of its own.
_PIECE_BYTES: Final = 4 * 1024 * 1024
_PIECE_ROWS: Final = 65_536


class _Read(NamedTuple):
    """The result of a read, piece by piece."""

    left: Rows  # messages that were not read, because there was no more room
    found: list[Rows]  # the messages that were read, one entry for each piece
    batches: list[MessageBatch]  # the contents of these messages, one batch for each piece


class Stager:
    """The reader of messages ahead of their delivery, for all subscriptions."""

    def __init__(self, index: DeliveryOrder, limits: BrokerLimits, run: Run) -> None:
        self._index = index
        self._limits = limits
        self._run = run
        self._staged: WeakSet[Staged] = WeakSet()  # those that may have messages

    async def read(
        self,
        topic: Topic,
        subscription: SharedSubscription,
        found: Rows | None = None,
        plan: KeyPlan | None = None,
    ) -> None:
        """Read messages ahead that a subscription will deliver soon, as far as there is room.

        Args:
          found: the messages that become ready next. None for ready messages that the subscription
            expects to be read ahead.
          plan: the plan of the index by which ``found`` was found. It may know where the messages
            are stored.
        """
        # The index may have removed the messages of a subscription that was deleted, or that a seek
        # replaced.
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
            # Concatenate in the event loop, because the thread would allocate new memory each time.
            batch = MessageBatch.concat(read.batches)
            topic.sizes.saw(batch)
            subscription.staged.put(Rows.concat(read.found), batch)
            self._staged.add(subscription.staged)
        if read.left.height:
            subscription.staged.expect(read.left)

    async def _fetch(self, topic: Topic, subscription: SharedSubscription, rows: Rows) -> _Read:
        # Pin the sources of all messages now. Read them in pieces, because their sizes are known
        # only after the read, and there may be room for only some of them.
        step = topic.sizes.frame_messages(_PIECE_ROWS, _PIECE_BYTES)
        pieces = [rows.pick(slice(at, at + step)) for at in range(0, rows.height, step)]
        fetches = [self._index.fetch(topic.id, part.due_ms, part.offsets) for part in pieces]
        unfilled = subscription.unfilled
        return await self._run(_read_fetches, pieces, fetches, unfilled, self._room_bytes())

    def _room_bytes(self) -> int:
        """Return how many more bytes may be staged, for all subscriptions together."""
        return self._limits.staged_bytes - sum(staged.size_bytes for staged in self._staged)


def _read_located(plan: KeyPlan, rows: Rows, room_bytes: int) -> _Read:
    """Read messages that the plan locates, until ``room_bytes`` are used up. Blocking."""
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
    """Read the messages of pieces, in order, until ``room_bytes`` are used up. Blocking.

    Args:
      fetches: for each piece, the prepared read of its messages.
      unfilled: the range of offsets of messages that may be missing in the index, because they are
        still being read from the log.
    """
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
