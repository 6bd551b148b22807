"""An application that sends, acknowledges and consumes messages in its own transactions.

It has a database of its own (``application.py``): an outbox, a table of acknowledgements, a table
of their effects, and a message table.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Final

import trio

import escapement
from escapement import sql
from escapement.errors import AlreadyProcessed
from histories.history import Message, payload_of
from histories.recording import RecordedInbox
from simulation.application import SimulatedApplication
from simulation.calls import Calls
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import PERMITS, Subscriber
from simulation.features.feature import Feature, Topics
from simulation.world import World
from stress.application import Cursor

# Their names belong to different bundles, unless there is one only.
_TOPICS: Final = ("transacted-a", "transacted-b")
_KEYS: Final = 4
_BATCH: Final = 6
_MEAN_S: Final = 8 * HOUR_S
# How a transaction ends. One without an answer is committed or not.
_ENDS: Final = {"commit": 7, "rollback": 2, "no answer": 1}
# The share of the committed messages that are also acknowledged in the usual way, as applications
# should. The others wait for a relay.
_ACKED_SHARE: Final = 0.5
# What consumers do with rows. Some forget them.
_ROW_ACTIONS: Final = {"ack": 14, "nack": 3, "forget": 3}


class Transacting(Feature):
    """The clients of the application."""

    topics: ClassVar[Topics] = {topic: {f"{topic}-s": "shared"} for topic in _TOPICS}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        assert world.application is not None
        self._application = world.application
        self.check = world.application.transactions
        self._calls = _calls_of(world, self._rng)

    def subscribers(self) -> list[Subscriber]:
        """Return two consumers for each subscription, and two for the table."""
        application = self._application
        processing: list[Subscriber] = [
            _ProcessingSubscriber(self._world, application, topic, f"{topic}-s", number)
            for topic in _TOPICS
            for number in range(2)
        ]
        rows = [_RowSubscriber(self._world, application, number) for number in range(2)]
        return processing + rows

    async def run(self, end_ms: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_some, end_ms)
            nursery.start_soon(self._insert_some, end_ms)
            nursery.start_soon(self._look_often, end_ms)

    async def look(self) -> None:
        self._application.look(self._history)

    async def _look_often(self, end_ms: int) -> None:
        """Look at acknowledgements before they are deleted."""
        while self._history.now_ms() < end_ms:
            await trio.sleep(6 * HOUR_S)
            self._application.look(self._history)

    def _end(self) -> str:
        (end,) = self._rng.choices(list(_ENDS), list(_ENDS.values()))
        return end

    # -- the outbox --------------------------------------------------------------------

    async def _send_some(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            await self._send_batch(end_ms)

    async def _send_batch(self, end_ms: int) -> None:
        """Insert messages into the outbox, all or none."""
        batch: list[tuple[Message, int]] = []
        topic = self._rng.choice(_TOPICS)
        for _ in range(self._rng.randint(1, _BATCH)):
            (message,), (delay_ms,) = self._draw(topic, 1, end_ms)
            message.key = f"o{self._rng.randrange(_KEYS)}"
            batch.append((message, self._history.now_ms() + delay_ms))
        end = self._end()
        stored = await self._application.transact(self._calls, partial(_insert, batch), end)
        for message, _ in batch:
            message.refused = stored is False
            if stored:
                self._history.confirm(message, -1)
        self._history.counts[f"sent in transactions: {stored}"] += len(batch)

    # -- the message table -------------------------------------------------------------

    async def _insert_some(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            await self._insert_batch(end_ms)

    async def _insert_batch(self, end_ms: int) -> None:
        """Insert rows into the message table, all or none."""
        rows, now_ms = self._application.rows, self._history.now_ms()
        batch = []
        for _ in range(self._rng.randint(1, _BATCH)):
            due_ms = now_ms + self._rng.choice([0, self._rng.randint(0, max(end_ms - now_ms, 0))])
            batch.append((rows.insert(due_ms - MOST_SKEW_MS), due_ms))
        end = self._end()
        stored = await self._application.transact(self._calls, partial(_insert_rows, batch), end)
        for number, _ in batch:
            rows.rows[number].stored = stored
        self._history.counts[f"rows inserted: {stored}"] += len(batch)


def _calls_of(world: World, rng: random.Random) -> Calls:
    """Return a runner for the calls of an application, all of which can wait."""
    calls = Calls(world.threads, rng, world.server.locks)
    calls.slow_share = 1.0
    return calls


def _insert(batch: Sequence[tuple[Message, int]], cursor: Cursor) -> None:
    for message, due_ms in batch:
        at = datetime.fromtimestamp(due_ms / 1000, UTC)
        sql.schedule(cursor, message.topic, payload_of(message), key=message.key, at=at)


def _insert_rows(batch: Sequence[tuple[int, int]], cursor: Cursor) -> None:
    values = [(number, due_ms * 1_000_000) for number, due_ms in batch]
    cursor.executemany("INSERT INTO mails (tenant_id, time_next) VALUES (%s, %s)", values)


class _ProcessingSubscriber(Subscriber):
    """Consumers that write an effect of each message, and acknowledge it in this transaction."""

    def __init__(
        self,
        world: World,
        application: SimulatedApplication,
        topic: str,
        subscription: str,
        number: int,
    ) -> None:
        super().__init__(world, topic, subscription, number)
        self._application = application
        self._calls = _calls_of(world, self._rng)

    async def _handle(
        self, recorded: RecordedInbox, inbox: escapement.Inbox, message: escapement.Message
    ) -> None:
        end = "commit"
        if not self.careful:
            (end,) = self._rng.choices(list(_ENDS), list(_ENDS.values()))
        counts, offset = self._history.counts, message.offset
        work = partial(_take_effect, self._subscription, message)
        try:
            stored = await self._application.transact(self._calls, work, end)
        except AlreadyProcessed:
            counts["processed before"] += 1
            await recorded.ack([offset])
            return
        counts[f"processed in transactions: {stored}"] += 1
        if stored:
            if self._rng.random() < _ACKED_SHARE:
                await recorded.ack([offset])
        elif self._rng.random() < 0.5:
            await recorded.nack([offset])


def _take_effect(subscription: str, message: escapement.Message, cursor: Cursor) -> None:
    sql.ack(cursor, [message])
    effect = subscription, message.offset
    cursor.execute("INSERT INTO effects VALUES (%s, %s)", effect)


class _RowSubscriber(Subscriber):
    """Consumers of the message table, which acknowledge rows, give them back and forget them."""

    def __init__(self, world: World, application: SimulatedApplication, number: int) -> None:
        super().__init__(world, application.table, "table", number)
        self._application = application

    async def _stay(self, client: escapement.Broker) -> None:
        stay_s = self._rng.uniform(0.5 * HOUR_S, 60 * HOUR_S)
        permits = self._rng.randint(1, PERMITS)
        async with client.consumer(self._topic, "table", permits=permits) as inbox:
            end_s = trio.current_time() + stay_s
            careful = self.careful
            while careful or (trio.current_time() < end_s and not self.careful):
                message = await inbox.receive(timeout_s=min(stay_s, 8 * HOUR_S))
                if message is not None:
                    await self._handle_row(inbox, message)

    async def _handle_row(self, inbox: escapement.Inbox, message: escapement.Message) -> None:
        number = self._application.rows.came(message.row, self._history.now_ms())
        (action,) = self._rng.choices(list(_ROW_ACTIONS), list(_ROW_ACTIONS.values()))
        if self.careful or action == "ack":
            if await inbox.ack([message], durable=True):
                self._history.counts["rows acknowledged"] += 1
                self._application.note_epoch(number)
        elif action == "nack":
            await inbox.nack([message])
