"""A program that posts messages and requests into the inbox, as the relay of an outbox does.

It writes into the database of the log in transactions of its own. The owner of each topic's bundle
moves the entries to the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import ClassVar, Final

import trio

from escapement.broker.outbox.messages import Change, NewMessage, NewRequest, inbox_entries
from escapement.dedup import NO_DIGEST
from escapement.errors import OutcomeUnknown, StorageError
from escapement.message import DEFAULT_PRIORITY, NO_TIME
from escapement.names import TopicName
from escapement.storage.inbox.amend_request import AmendRequest
from escapement.storage.outbox.record import Record, read_record, source_id, write_batch
from histories.history import NEVER_MS, Amendment, Message, payload_of
from simulation.calls import Calls
from simulation.checks.posting import PostCheck
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.database import SimulatedEngine
from simulation.features.feature import STALE_S, Feature, Topics
from simulation.world import World

# Their names belong to different bundles, unless there is one only.
_TOPICS: Final = ("posted-a", "posted-b")
_KEYS: Final = 4
_BATCH: Final = 6
_MEAN_S: Final = 12 * HOUR_S
_RETRY_S: Final = HOUR_S
# How a transaction ends. One without an answer is committed or not.
_ENDS: Final = {"commit": 7, "rollback": 2, "no answer": 1}
_REQUEST_SHARE: Final = 0.5


class Posting(Feature):
    """Posts batches. Some transactions roll back, and some get no answer to their COMMIT."""

    topics: ClassVar[Topics] = {topic: {f"{topic}-s": "shared"} for topic in _TOPICS}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Requests wait in the inbox while their bundle has no owner.
        self.check = PostCheck(2 * STALE_S)
        self._engine = SimulatedEngine(world.server)
        self._calls = Calls(world.threads, self._rng, world.server.locks)
        self._identity = self._rng.randbytes(16)
        self._posted: dict[tuple[str, str], list[Message]] = {}  # by topic and key
        self._last = 0  # the number of the last batch that is committed

    async def run(self, end_ms: int) -> None:
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            if self._rng.random() < _REQUEST_SHARE:
                await self._request(end_ms)
            else:
                await self._post(end_ms)

    def _named(self) -> tuple[str, str]:
        """Draw a topic and a key."""
        return self._rng.choice(_TOPICS), f"p{self._rng.randrange(_KEYS)}"

    async def _post(self, end_ms: int) -> None:
        """Post messages, all or none."""
        batch: list[tuple[Message, int]] = []
        for _ in range(self._rng.randint(1, _BATCH)):
            topic, key = self._named()
            now_ms = self._history.now_ms()
            left_ms = max(end_ms - now_ms, 0)
            # Some wait for days, so that requests surely find them.
            delay_ms = self._rng.choice(
                [random_delay_ms(self._rng, left_ms), self._rng.randint(0, left_ms)]
            )
            due_ms = now_ms + delay_ms
            message = self._history.publish(topic, key, due_ms - MOST_SKEW_MS)
            batch.append((message, due_ms))
        changes = [
            NewMessage(
                TopicName.parse(message.topic).full,
                payload_of(message),
                message.key.encode(),
                b"",
                DEFAULT_PRIORITY,
                due_ms,
                NO_DIGEST,
            )
            for message, due_ms in batch
        ]
        stored = await self._transact(changes)
        for message, _ in batch:
            message.refused = not stored
            if stored:
                self._history.confirm(message, -1)
                self._posted.setdefault((message.topic, message.key), []).append(message)

    async def _request(self, end_ms: int) -> None:
        """Post a request to cancel or reschedule all earlier messages with a key."""
        topic, key = self._named()
        now_ms, due_ms = self._history.now_ms(), None
        if self._rng.random() < 0.5:
            due_ms = now_ms + random_delay_ms(self._rng, max(end_ms - now_ms, 0))
        amended = list(self._posted.get((topic, key), ()))
        confirmed_ms = [message.confirmed_ms for message in amended]
        amendment = Amendment(due_ms, now_ms)  # no answer names the changed messages
        for message in amended:
            message.amendments.append(amendment)
            if due_ms is None:
                message.confirmed_ms = NEVER_MS  # it need not come any more
        at_ms = NO_TIME if due_ms is None else due_ms
        request = AmendRequest(key.encode(), cancels=due_ms is None, at_ms=at_ms)
        if await self._transact([NewRequest(TopicName.parse(topic).full, request)]):
            if due_ms is None:
                self.check.cancelled(amended, self._history.now_s())
            self._history.counts["requests posted"] += 1
            return
        amendment.done = False
        for message, before_ms in zip(amended, confirmed_ms, strict=True):
            message.confirmed_ms = before_ms

    async def _transact(self, changes: Sequence[Change]) -> bool:
        """Post changes in a transaction. Return whether it is committed."""
        batch = self._last + 1
        (end,) = self._rng.choices(list(_ENDS), list(_ENDS.values()))
        try:
            stored = await self._calls(self._write, changes, batch, end)
        except OutcomeUnknown:
            self._history.counts["posts without an answer"] += 1
            stored = await self._recorded() == batch
        except StorageError:
            stored = False
        self._history.counts["posts committed" if stored else "posts rolled back"] += 1
        self._last += stored
        return stored

    def _write(self, changes: Sequence[Change], batch: int, end: str) -> bool:
        with closing(self._engine.connect()) as connection:
            connection.begin()
            write_batch(
                self._engine,
                connection,
                self._identity,
                Record(batch, ()),
                lambda: inbox_entries(changes, source_id(self._identity, batch)),
                self._history.now_ms(),
            )
            if end == "commit" or (end == "no answer" and self._rng.random() < 0.5):
                connection.commit()
        if end == "no answer":
            raise OutcomeUnknown("the program did not see the reply to COMMIT")
        return end == "commit"

    async def _recorded(self) -> int:
        """Return the number of the last batch that is committed, as soon as the database says."""
        while True:
            try:
                return await self._calls(self._read)
            except StorageError:
                await trio.sleep(self._rng.uniform(0, 2 * _RETRY_S))

    def _read(self) -> int:
        with closing(self._engine.connect()) as connection:
            connection.begin()
            number = read_record(self._engine, connection, self._identity).batch
            connection.rollback()
        return number
