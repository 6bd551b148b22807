"""Random sends, cancels and reschedules in transactions, compared with a naive model.

In each turn, several sessions of an application insert rows, and commit or roll back. Some sessions
stay open for several turns. Then the relays take their turn, in which the broker may crash at any
step. A consumer gets the messages that are due at once. At the end, all others become due.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql
import pytest
import trio

from escapement.clock import moment
from escapement.message import MessageId
from escapement.sql import cancel, reschedule, schedule
from escapement.testing import START_MS, World
from support.outbox.outboxes import Application, serving
from support.seeds import named, seeds

MockClock = trio.testing.MockClock
HOUR_MS: Final = 3_600_000
TURNS: Final = 12
SESSIONS: Final = 3
ROWS: Final = 6
KEYS: Final = ("a", "b", "c", None)
TOPICS: Final = ("t", "u")
# More scheduler steps than the relays need for a turn.
STEPS: Final = 150
NOW: Final = -1


@dataclass
class Expected:
    """What the model knows about a message."""

    topic: str
    key: str | None
    due_ms: int  # NOW: due when it reaches its topic
    cancelled: bool = False


@dataclass(frozen=True)
class Request:
    """A row about earlier messages: named by key, or one by its payload, which is its dedup key."""

    topic: str
    key: str | None
    one: str
    due_ms: int | None  # None: cancel


Row = tuple[str, Expected] | Request


@dataclass
class Model:
    """The committed rows take effect in the order of their ids, those of each turn together."""

    messages: dict[str, Expected] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)  # hours until each was due; NOW at once

    def turn(self, rows: list[Row]) -> None:
        for row in rows:
            if isinstance(row, Request):
                self._amend(row)
            else:
                self.messages[row[0]] = row[1]
        for payload, one in self.messages.items():
            if one.due_ms == NOW and not one.cancelled:
                self.delivered[payload] = NOW

    def end(self) -> None:
        for payload, one in self.messages.items():
            if not one.cancelled and payload not in self.delivered:
                self.delivered[payload] = one.due_ms

    def _amend(self, request: Request) -> None:
        for payload, one in self.messages.items():
            named = one.key == request.key if request.key is not None else payload == request.one
            if not named or one.topic != request.topic or payload in self.delivered:
                continue
            if request.due_ms is None:
                one.cancelled = True
            else:
                one.due_ms = request.due_ms


class Writer:
    """The application: sessions with rows that are not committed yet."""

    def __init__(self, application: Application, rng: random.Random, stack: ExitStack) -> None:
        self._rng = rng
        self._sessions = [stack.enter_context(application.session()) for _ in range(SESSIONS)]
        self._open: list[list[tuple[int, Row]]] = [[] for _ in range(SESSIONS)]
        self._committed: list[tuple[int, Row]] = []
        self._sent: list[tuple[str, str]] = []
        self._ids: dict[str, MessageId] = {}
        self._rows = 0

    def write(self) -> list[Row]:
        """Insert rows, end some transactions, and return the committed rows in order."""
        for _ in range(self._rng.randint(1, SESSIONS * ROWS)):
            self._insert(self._rng.randrange(SESSIONS))
        for session in range(SESSIONS):
            if self._rng.random() < 0.7:
                self._end(session, self._rng.random() < 0.75)
        committed, self._committed = sorted(self._committed, key=lambda one: one[0]), []
        return [row for _, row in committed]

    def close(self) -> list[Row]:
        """Commit all open transactions, and return their rows in order."""
        for session in range(SESSIONS):
            self._end(session, True)
        return [row for _, row in sorted(self._committed, key=lambda one: one[0])]

    async def find_ids(self, world: World) -> None:
        """Find the ids of the messages that have reached their topics."""
        async with world.connect() as broker:
            for topic in TOPICS:
                sent = [one for of, one in self._sent if of == topic]
                for one, id in zip(sent, await broker.find(topic, sent), strict=True):
                    if id is not None:
                        self._ids[one] = id

    def _end(self, session: int, commits: bool) -> None:
        connection = self._sessions[session].connection
        if commits:
            connection.commit()
            self._committed += self._open[session]
        else:
            connection.rollback()
        self._open[session] = []

    def _insert(self, session: int) -> None:
        rng, cursor = self._rng, self._sessions[session]
        self._rows += 1
        topic = rng.choice(TOPICS)
        due_ms = START_MS + HOUR_MS * rng.randint(100, 200)
        row: Row
        if rng.random() < 0.5 or not self._sent:
            payload, key = f"{self._rows}", rng.choice(KEYS)
            if rng.random() < 0.3:
                due_ms = NOW
            at = None if due_ms == NOW else moment(due_ms)
            schedule(cursor, topic, payload.encode(), key=key, at=at, dedup=payload)
            self._sent.append((topic, payload))
            row = payload, Expected(topic, key, due_ms)
        else:
            row = self._request(cursor, topic, due_ms)
        self._open[session].append((self._rows, row))

    def _request(self, cursor: pymysql.cursors.Cursor, topic: str, due_ms: int) -> Request:
        rng = self._rng
        key, one = rng.choice(KEYS), ""
        names: dict[str, Any] = {"key": key}
        if key is None:
            topic, one = rng.choice(self._sent[-12:])
            names = {"dedup": one}
            if one in self._ids and rng.random() < 0.5:
                names = {"id": self._ids[one]}
        if rng.random() < 0.5:
            cancel(cursor, topic, **names)
            return Request(topic, key, one, None)
        reschedule(cursor, topic, at=moment(due_ms), **names)
        return Request(topic, key, one, due_ms)


@asynccontextmanager
async def consuming(world: World, found: dict[str, int]) -> AsyncIterator[None]:
    """Note when each message is delivered, in hours; NOW for those that are due at once."""

    async def consume(topic: str) -> None:
        async with world.connect() as broker, broker.consumer(topic, "s") as consumer:
            async for message in consumer:
                at_once = message.due_ms < START_MS + 50 * HOUR_MS
                assert message.due_ms <= world.clock.now_ms()
                found[message.payload.decode()] = NOW if at_once else message.due_ms
                await message.ack()

    async with trio.open_nursery() as nursery:
        for topic in TOPICS:
            nursery.start_soon(consume, topic)
        await world.clock.advance(seconds=1)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", seeds(range(6)))
async def test_deliveries_are_those_of_the_model(
    seed: int, application: Application, mock_clock: MockClock
) -> None:
    """V7."""
    rng, done = random.Random(seed), list[str]()
    model, found = Model(), dict[str, int]()
    with named(seed, done), ExitStack() as stack:
        writer = Writer(application, rng, stack)
        async with serving(application) as world, consuming(world, found):
            for _ in range(TURNS):
                crashes = rng.random() < 0.4
                if crashes:
                    await world.crash()
                rows = writer.write()
                done += [str(row) for row in rows]
                model.turn(rows)
                if crashes:
                    await world.restart()
                    for _ in range(rng.randrange(STEPS)):
                        await trio.lowlevel.checkpoint()
                    await world.crash()
                    await world.restart()
                await world.clock.advance(seconds=20)  # less than the dedup window together
                assert application.left == 0
                await writer.find_ids(world)
            rows = writer.close()
            done += [str(row) for row in rows]
            model.turn(rows)
            model.end()
            await world.clock.advance(seconds=20)
            await world.clock.advance(hours=300)
        assert found == model.delivered
