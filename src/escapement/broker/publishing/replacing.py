"""Messages that replace pending ones with the same replace key (B11).

The decision is made when the lane forms the group commit of a new message, and in the same step
the pending message is cancelled. The transaction that stores the new message also stores this
cancellation, and the entry of the key. If the transaction fails, the cancellation is undone and
the pending message is offered again. So at each moment one of the two messages can be delivered.

:class:`~escapement.broker.topic.replace_keys.ReplaceKeys` decides;
:mod:`~escapement.broker.settlement` applies durable decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from escapement.broker.delivery.pump import Pump
from escapement.broker.log.log_reader import LogReader
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.publication import Publication
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.dedup import DIGEST, NO_DIGEST
from escapement.durations import MAX_DURATION_MS
from escapement.errors import InvalidRequest
from escapement.replacement import FIRST
from escapement.sorting import bounds
from escapement.storage.commit import items
from escapement.storage.commit.items import KeyedMessages, Replaced
from escapement.storage.encoding.replace_keys import ReplaceTable
from escapement.traits import traits_of

_NO_DIGEST: Final = np.frombuffer(NO_DIGEST, DIGEST)[0]


class Replacing:
    """Decides about published messages with replace keys, and cancels those that they replace.

    Args:
      on_change: called with a topic whose replaced messages were restored.
    """

    def __init__(
        self,
        registry: Registry,
        pump: Pump,
        log: LogReader,
        clock: Clock,
        on_change: Callable[[Topic], None],
    ) -> None:
        self._registry = registry
        self._pump = pump
        self._log = log
        self._clock = clock
        self._on_change = on_change

    async def check(self, topic: Topic) -> None:
        """Forget replace keys whose messages an earlier broker has deleted from the log.

        Raises:
          StorageUnavailable: the database cannot be reached.
        """
        begin = await self._log.first_offset(topic.id, topic.next_offset)
        topic.replace_keys.check(begin)

    def of(self, topic: Topic, publication: Publication) -> items.Replacing | None:
        """Return the replace keys of the messages that must be stored; None if they have none.

        Raises:
          InvalidRequest: a mode or a maximum wait is not valid.
          Busy, LimitExceeded: the broker cannot remember more replace keys.
        """
        replace = publication.replace
        if replace is None or not len(publication.batch):
            return None
        count = int((replace.digests != _NO_DIGEST).sum())
        if not count:
            return None
        lowest, highest = bounds(replace.modes)
        if lowest < FIRST or highest > MAX_DURATION_MS:
            raise InvalidRequest("the mode or the maximum wait of a replace key is not valid")
        topic.replace_keys.check_room(count, self._clock.now_ms())
        traits = traits_of(publication.batch)
        column = np.zeros(len(publication.batch), np.int64) if traits is None else traits
        return items.Replacing(
            replace.digests, replace.modes, column.astype(np.int64), partial(self._decide, topic)
        )

    def _decide(self, topic: Topic, new: KeyedMessages, now_ms: int) -> Replaced:
        """Decide about the new messages of a group, and cancel those that they replace."""
        decision = topic.replace_keys.decide(new, now_ms)
        order = np.argsort(decision.replaced.offsets)
        replaced = decision.replaced.take(order)
        if len(order):
            for subscription in topic.subscriptions():
                subscription.withdraw(replaced.offsets)
                if subscription.consumers:
                    self._pump.wake_subscription(topic, subscription)
            topic.amendments.replace(replaced.offsets)
        return Replaced(
            decision.due_ms,
            decision.previous,
            np.concatenate([replaced.offsets, decision.cancelled, decision.dropped]),
            decision.keys,
            partial(self._undo, topic, replaced),
        )

    def _undo(self, topic: Topic, replaced: ReplaceTable) -> None:
        """Offer replaced messages again: the messages that replace them are not stored."""
        if len(replaced.offsets) and self._registry.active.get(topic.id) is topic:
            topic.restore(replaced, self._clock.now_ms())
            self._on_change(topic)
