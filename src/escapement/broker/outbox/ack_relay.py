"""The ack relay: acknowledges messages that consumers have processed in their own transactions.

A consumer inserts a row into the table ``escapement_acks`` of its database, in the transaction of
its writes (``escapement.sql.ack``). So the message is acknowledged exactly if its effects are
committed. Each bundle has a relay for each database, which learns the rows of its topics. The rows
of a subscription are together in the order of their keys. So a relay passes many rows of a
subscription of another bundle with one more look. A step reads rows that the log has not learned,
acknowledges their messages, waits until that is durable, and then marks the rows as learned.

Each part of a step may be repeated, because an acknowledgement takes effect once. So no transaction
needs to cover both databases. These interleavings are closed:

- *The broker crashes before the mark.* The next relay acknowledges the messages again.
- *A consumer commits and dies.* Until the relay has read its row, the broker may deliver the
  message again. The second consumer inserts the same key and fails (``AlreadyProcessed``).
- *A row is committed after later rows were learned.* The relay looks for all rows without the mark.
- *The subscription is sought, or deleted and created again.* The row has the id of the earlier
  subscription. The relay marks it and acknowledges nothing, so the replay is complete. A relay
  marks such a row only if the database has no subscription with this id. Otherwise the row belongs
  to another bundle, perhaps to one that was added a moment ago.
- *An earlier owner wakes up*, or is cut off from the log only. It does not know the messages that
  its successor has stored, and acknowledges nothing for their rows. A relay marks such a row only
  after a transaction of the log, which fails without the lease. So it was the owner when it read
  the row, and the log does not have the message.
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
from escapement.broker.outbox.named_topics import NamedTopics
from escapement.broker.outbox.relay import LONGEST_S, Progress, Relay
from escapement.broker.registry.changes import Transact
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.engine.base import Engine
from escapement.storage.outbox.acks import MAX_ROWS, AckRow, AcksInApplication

# The longest pause between two looks. The more bundles, the longer are the pauses of each, so that
# the looks of all cost a database little.
_LONGEST_OF_ALL_S: Final = 2.0
# The pause between two looks for rows that are old enough to be deleted.
_PURGE_EVERY_S: Final = 60.0


class AckRelay(Relay):
    """The ack relay of one database.

    Args:
      application: the database of the application.
      log: the id of the log.
      topics: the topics and subscriptions that rows name.
      transact: runs a function in a transaction of the log, which fails without the lease.
      run: makes blocking calls to the database of the application.
    """

    def __init__(
        self,
        application: Engine,
        log: bytes,
        topics: NamedTopics,
        consuming: Consuming,
        transact: Transact,
        run: Run,
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
        self._topics = topics
        self._consuming = consuming
        self._transact = transact
        self._attached = False
        self._purge_at_s = 0.0
        self.learned = 0  # number of rows learned since the broker started

    async def _step(self) -> Progress:
        """Learn rows, if there are any. In bundle 0, delete old ones from time to time."""
        if not self._attached:
            await self._in_application(self._acks.attach)
            self._attached = True
        progress = await self._learn()
        if self._topics.registry.bundle.id:
            return progress
        if trio.current_time() >= self._purge_at_s:
            if await self._in_application(self._acks.purge):
                return Progress.MORE
            self._purge_at_s = trio.current_time() + _PURGE_EVERY_S
        return progress

    @property
    def _longest_s(self) -> float:
        return min(LONGEST_S * self._topics.registry.bundle.count, _LONGEST_OF_ALL_S)

    def _failed(self) -> None:
        self._attached = False

    async def _learn(self) -> Progress:
        """Learn the first rows of this bundle that no other session has locked."""
        after = b""
        while rows := await self._in_application(self._acks.unlearned, after):
            own = await self._own(rows)
            learned = 0
            if own:
                await self._acknowledge(own)
                learned = await self._in_application(self._acks.learned, own)
                self.learned += learned
            is_full = len(rows) == MAX_ROWS
            if learned:
                return Progress.MORE if is_full else Progress.SOME
            if not is_full:
                break
            last = rows[-1]
            is_own = bool(own) and own[-1] is last
            after = last.key.pack() if is_own else last.key.after_subscription()
        return Progress.NONE

    async def _own(self, rows: Sequence[AckRow]) -> Sequence[AckRow]:
        """Return the rows that this bundle is to learn.

        Those are the rows of its subscriptions. Bundle 0 also learns rows of subscriptions that do
        not exist.
        """
        named = {(row.topic, row.key.subscription_id) for row in rows}
        others = {one for one in named if self._topics.subscription(*one) is None}
        if others and not self._topics.registry.bundle.id:
            found = await self._topics.topics_of({id for _, id in others})
            others &= {(topic, id) for id, topic in found.items()}
        return [row for row in rows if (row.topic, row.key.subscription_id) not in others]

    async def _acknowledge(self, rows: Sequence[AckRow]) -> None:
        """Acknowledge the messages of rows, and wait until that is durable."""
        together: dict[tuple[str, int], list[int]] = {}
        for row in rows:
            whose = row.topic, row.key.subscription_id
            together.setdefault(whose, []).append(row.key.offset)
        durable: list[trio.Event] = []
        unknown = False  # True if the broker lacks messages of some rows
        for (topic_name, id), offsets in together.items():
            if (record := self._topics.subscription(topic_name, id)) is not None:
                topic = self._topics.registry.activate(record.topic_id)
                subscription = topic.find(record.name)
                unknown |= max(offsets) >= topic.next_offset
                durable.append(self._submit(topic, subscription, np.array(offsets, np.int64)))
            await trio.lowlevel.checkpoint()
        for event in durable:
            await event.wait()
        if unknown:
            await self._transact(lambda log: None)

    def _submit(self, topic: Topic, subscription: Subscription, offsets: Int64s) -> trio.Event:
        """Acknowledge messages; the returned event is set when that is durable."""
        durable = trio.Event()
        # The log may lack messages, because it was restored from a backup. Or a successor of this
        # broker has stored them.
        known = offsets[(offsets >= 0) & (offsets < topic.next_offset)]
        self._consuming.acknowledge_in(topic, subscription, known, lambda _: durable.set())
        return durable
