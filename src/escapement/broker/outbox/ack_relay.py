"""The ack relay: acknowledges messages that consumers have processed in their own transactions.

A consumer inserts a row into the table ``escapement_acks`` of its database, in the transaction of
its writes (``escapement.sql.ack``). So the message is acknowledged exactly if its effects are
committed. One relay serves one database. A step reads rows that the log has not learned,
acknowledges their messages, waits until that is durable, and then marks the rows as learned.

Each part of a step may be repeated, because an acknowledgement takes effect once. So no transaction
needs to cover both databases. These interleavings are closed:

- *The broker crashes before the mark.* The next relay acknowledges the messages again.
- *A consumer commits and dies.* Until the relay has read its row, the broker may deliver the
  message again. The second consumer inserts the same key and fails (``AlreadyProcessed``).
- *A row is committed after later rows were learned.* The relay looks for all rows without the mark.
- *The subscription is sought, or deleted and created again.* The row has the id of the earlier
  subscription. The relay marks it and acknowledges nothing, so the replay is complete.
- *A row is deleted while a second consumer has the message.* Rows are kept for 7 days after the log
  has learned them, so after the last delivery. A consumer refuses an older delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import trio

from escapement.broker.delivery.consuming import Consuming
from escapement.broker.outage import Outage
from escapement.broker.outbox.relay import Progress, Relay
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Engine
from escapement.storage.outbox.acks import MAX_ROWS, AckRow, AcksInApplication

# The pause between two looks for rows that are old enough to be deleted.
_PURGE_EVERY_S: Final = 60.0


class AckRelay(Relay):
    """The ack relay of one database.

    Args:
      application: the database of the application.
      log: the id of the log.
      run: makes blocking calls to the database of the application.
    """

    def __init__(
        self, application: Engine, log: bytes, registry: Registry, consuming: Consuming, run: Run
    ) -> None:
        self._acks = AcksInApplication(application, log)
        database = application.location
        outage = Outage(
            "acks.waiting",
            "acknowledgements in a database wait",
            "acks.working",
            f"acknowledgements are read again from {database}",
            database=database,
        )
        super().__init__(self._acks, database, run, outage)
        self._registry = registry
        self._consuming = consuming
        self._attached = False
        self._purge_at_s = 0.0
        self.learned = 0  # number of rows learned since the broker started

    async def _step(self) -> Progress:
        """Learn rows, if there are any, and delete old ones from time to time."""
        if not self._attached:
            await self._in_application(self._acks.attach)
            self._attached = True
        progress = await self._learn()
        if trio.current_time() >= self._purge_at_s:
            if await self._in_application(self._acks.purge):
                return Progress.MORE
            self._purge_at_s = trio.current_time() + _PURGE_EVERY_S
        return progress

    def _failed(self) -> None:
        self._attached = False

    async def _learn(self) -> Progress:
        rows = await self._in_application(self._acks.unlearned)
        if not rows:
            return Progress.NONE
        await self._acknowledge(rows)
        learned = await self._in_application(self._acks.learned, rows)
        self.learned += learned
        if not learned:
            return Progress.NONE  # other sessions have locked them all
        return Progress.MORE if len(rows) == MAX_ROWS else Progress.SOME

    async def _acknowledge(self, rows: Sequence[AckRow]) -> None:
        """Acknowledge the messages of rows, and wait until that is durable."""
        together: dict[tuple[str, int], list[int]] = {}
        for row in rows:
            whose = row.topic, row.key.subscription_id
            together.setdefault(whose, []).append(row.key.offset)
        durable: list[trio.Event] = []
        for whose, offsets in together.items():
            if (found := self._find(*whose)) is not None:
                durable.append(self._submit(*found, np.array(offsets, np.int64)))
            await trio.lowlevel.checkpoint()
        for event in durable:
            await event.wait()

    def _find(self, topic_name: str, subscription_id: int) -> tuple[Topic, Subscription] | None:
        """Return the topic and the subscription with this id, or None if it does not exist."""
        record = self._registry.topics.get(topic_name)
        if record is not None:
            for subscription in self._registry.subscriptions_of(record.id):
                if subscription.id == subscription_id:
                    topic = self._registry.activate(record.id)
                    return topic, topic.find(subscription.name)
        return None

    def _submit(self, topic: Topic, subscription: Subscription, offsets: Int64s) -> trio.Event:
        """Acknowledge messages; the returned event is set when that is durable."""
        durable = trio.Event()
        # The log may lack messages, because it was restored from a backup.
        known = offsets[(offsets >= 0) & (offsets < topic.next_offset)]
        self._consuming.acknowledge_in(topic, subscription, known, lambda _: durable.set())
        return durable
