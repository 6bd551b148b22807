"""A broker that serves one message table, its consumers, and a model of each row.

The table itself is the truth about epochs and times. The model checks each message when it arrives:
the row is not acknowledged, its time has come, and its new epoch and time follow from the old ones.
Since a row in flight has its ack deadline as its time, no two consumers have a row at once, even if
they belong to two brokers. An acknowledged row never changes.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import trio

import escapement
from escapement.storage.engine.base import Engine
from escapement.testing import World
from support.database.outages import Outage
from support.tables.shops import Shop, comment

NS: Final = 1_000_000
LAST_NS: Final = (1 << 63) - 1
MOST_BACKOFF_S: Final = 60
JITTER: Final = 1.33
# Late by a poll, a pause after an error, and the retries of locked rows.
LATE_MS: Final = 3_500


@dataclass
class RowModel:
    """The state of one row in the model."""

    allowed_ms: int  # it may be sent from then on
    epoch: int
    is_sure: bool = True  # whether ``epoch`` is exact
    acked_by: int | None = None  # the incarnation of the broker that has the acknowledgement
    changed_ms: int = 0  # when the application changed it last


@dataclass
class Taker:
    """A consumer, and the messages that it has."""

    world: World  # its broker
    incarnation: int
    inbox: escapement.Inbox | None = None  # None until it is connected
    messages: dict[int, escapement.Message] = field(default_factory=dict)
    leaving: trio.Event = field(default_factory=trio.Event)
    gone: trio.Event = field(default_factory=trio.Event)


class Lives:
    """The state of one life."""

    def __init__(
        self, world: World, shop: Shop, log: Outage, nursery: trio.Nursery, rng: random.Random
    ) -> None:
        self.world, self.shop, self.log = world, shop, log
        self.nursery, self.rng = nursery, rng
        self.rows: dict[int, RowModel] = {}
        self.acked: dict[int, tuple[Any, ...]] = {}  # the acknowledged rows, by id
        self.takers: list[Taker] = []
        self.incarnation = self.incarnations = 0  # the current one, and the last one
        self.beside: dict[int, World] = {}  # brokers with other logs, by incarnation
        self.ack_waits_s = {20}
        self.outage = Outage(shop.engine)  # of the database of the table
        self.calm_ms = 0  # no trouble since then
        self.topic = ""
        self.failure: AssertionError | None = None
        self.next_id = 1

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    async def begin(self) -> None:
        self.topic = self.shop.create(comment=self.directives())
        self.admit()
        await self.world.clock.advance(seconds=2)
        await self.join()

    def directives(self) -> str:
        ack_wait = self.rng.choice([20, 20, 7])
        self.ack_waits_s.add(ack_wait)
        return comment(
            ack_wait=ack_wait,
            min_backoff=ack_wait,
            max_backoff=MOST_BACKOFF_S,
            batch_size=self.rng.choice([1, 3, 50]),
            cache_size=self.rng.choice([3, 7, 1000]),
            poller_interval=1,
        )

    def admit(self, world: World | None = None, engine: Engine | None = None) -> None:
        """Let a broker reach the database through ``engine``, or through ``outage``."""
        server = (world or self.world).server
        for database in server.services.tables.databases.values():
            for kept in (
                database._connections.polls,
                database._connections.claims,
                database._connections.writes,
            ):
                kept.close()
                kept._engine = engine or self.outage.engine

    @property
    def serving(self) -> dict[int, World]:
        """The brokers that may send rows, by incarnation."""
        return {self.incarnation: self.world} | self.beside

    def next_incarnation(self) -> int:
        self.incarnations += 1
        return self.incarnations

    # -- consumers ---------------------------------------------------------------------

    async def join(self) -> None:
        """Add a consumer."""
        if len(self.takers) < 3:
            incarnation, world = self.rng.choice(list(self.serving.items()))
            taker = Taker(world, incarnation)
            self.takers.append(taker)
            self.nursery.start_soon(self._live, taker, self.rng.choice([1, 2, 20]))
            await self.world.clock.settle()

    async def _live(self, taker: Taker, permits: int) -> None:
        settings = escapement.Settings(heartbeat_s=None, close_timeout_s=0)
        with suppress(escapement.EscapementError):  # for example if the broker has crashed
            async with (
                taker.world.connect(settings=settings) as broker,
                broker.consumer(self.topic, "table", permits=permits) as inbox,
                trio.open_nursery() as nursery,
            ):
                taker.inbox = inbox
                nursery.start_soon(self._receive, taker, inbox)
                await taker.leaving.wait()
                nursery.cancel_scope.cancel()
        taker.gone.set()

    async def _receive(self, taker: Taker, inbox: escapement.Inbox) -> None:
        with suppress(escapement.EscapementError):
            async for message in inbox:
                if self.failure is None:
                    try:
                        self.arrived(taker, message)
                    except AssertionError as error:
                        self.failure = error  # others follow from it
                        raise

    async def leave(self) -> None:
        """Remove a consumer; its rows are sent again at once."""
        if self.takers:
            await self.dismiss(self.rng.choice(self.takers))

    async def dismiss(self, taker: Taker) -> None:
        self.takers.remove(taker)
        for id in taker.messages:
            self.give_back(id, self.now_ms)
        self.doubt()
        await self.part(taker)

    async def part(self, taker: Taker) -> None:
        taker.leaving.set()
        await self.patiently(taker.gone.wait)
        await self.world.clock.settle()  # the broker has noticed it

    def give_back(self, id: int, next_ms: int) -> None:
        """Note that a row in flight may be sent again from ``next_ms`` on."""
        row = self.rows.get(id)
        if row is not None:
            row.allowed_ms = min(next_ms, row.allowed_ms)

    def doubt(self) -> None:
        """Note that rows may have been sent or given back unseen."""
        for row in self.rows.values():
            row.is_sure = False

    def arrived(self, taker: Taker, message: escapement.Message) -> None:
        """Check a message."""
        assert taker.incarnation in self.serving, "a stale owner has sent a message"
        now_ms, id = self.now_ms, message.row["id"]
        found = self.shop.run("SELECT epoch, time_next, time_acked FROM mails WHERE id = %s", id)
        assert found, f"row {id} was deleted before it was sent"
        ((epoch, time_next, time_acked),) = found
        # After trouble, a client repeats acknowledgements that were refused. One may arrive while
        # the row is being sent again.
        crosses = now_ms <= self.calm_ms and time_acked == now_ms * NS
        assert time_acked is None or crosses, f"row {id} was acknowledged before it was sent"
        row = self.rows[id]
        assert row.acked_by != taker.incarnation, f"row {id} is sent after its acknowledgement"
        assert now_ms >= row.allowed_ms, f"row {id} is sent {row.allowed_ms - now_ms} ms too early"
        if row.is_sure:
            assert epoch == row.epoch + 1, f"row {id} has epoch {epoch} after {row.epoch}"
        waits_ms = [1000 * self._wait_s(epoch, wait_s) for wait_s in self.ack_waits_s]
        wait_ms = time_next // NS - now_ms
        most_ms = min(max(waits_ms) * JITTER, 1000 * MOST_BACKOFF_S) + 20
        # While the database fails, a row that is in flight already waits to be sent.
        least_ms = min(waits_ms) - (1 if now_ms > self.calm_ms + LATE_MS else 2 * LATE_MS)
        assert least_ms <= wait_ms <= most_ms, f"row {id} waits {wait_ms} ms"
        row.allowed_ms, row.epoch, row.is_sure = time_next // NS, epoch, True
        taker.messages[id] = message

    def _wait_s(self, epoch: int, ack_wait_s: int) -> float:
        most_s = max(MOST_BACKOFF_S / JITTER, ack_wait_s)
        return min(ack_wait_s * 2.0 ** (epoch - 1), most_s)

    # -- their requests ------------------------------------------------------------------

    async def consume(self) -> None:
        """Let each consumer acknowledge or give back some of its messages."""
        for taker in list(self.takers):
            for id, message in list(taker.messages.items()):
                choice = self.rng.choice(
                    ["keep", "keep", "ack", "ack", "nack", "release", "extend"]
                )
                if choice != "keep" and taker.messages.get(id) is message:
                    await self._do(choice, taker, id, message)
                    # Messages that were sent before must not arrive after the next request.
                    await self.world.clock.settle()

    async def _do(self, what: str, taker: Taker, id: int, message: escapement.Message) -> None:
        row, now_ms, inbox = self.rows.get(id), self.now_ms, taker.inbox
        if row is None or inbox is None:
            del taker.messages[id]
            return
        holds = taker.incarnation in self.serving and self.holds(taker.world, message)
        if what == "extend":
            if holds:
                wait_ms = self.rng.choice([100, 30_000, 90_000])
                wait = timedelta(milliseconds=wait_ms)
                await self.patiently(lambda: inbox.extend([message], wait))
            return
        del taker.messages[id]
        if what == "ack":
            if holds and now_ms > self.calm_ms:  # otherwise the broker may refuse it for now
                row.acked_by = taker.incarnation
            await inbox.ack([message])
            await self.world.clock.advance(ms=20)  # the client sends acknowledgements together
            return
        delay_s = self.rng.choice([None, 0, 5, 40])
        delay = None if delay_s is None else timedelta(seconds=delay_s)
        row.is_sure = False
        self.give_back(id, now_ms)
        if what == "nack":
            await inbox.nack([message], delay)
        else:
            await inbox.release([message], delay)

    def holds(self, world: World, message: escapement.Message) -> bool:
        """Return whether a broker still counts this message as in flight."""
        topics = list(world.server.services.tables.topics())
        return any(message.offset in topic.find("table").in_flight.offsets for topic in topics)

    async def ack_rows(self) -> None:
        """Acknowledge some rows by their ids, in memory or not."""
        ids = [id for id in self.rows if self.rng.random() < 0.2] + [1 << 40]
        tables = self.world.server.services.tables

        async def ask() -> None:
            try:
                count = await tables.acknowledge(self.topic, ids)
            except escapement.EscapementError:
                return
            assert count <= len(ids)
            open_ = self.shop.run("SELECT id FROM mails WHERE time_acked IS NULL")
            assert not set(ids) & {id for (id,) in open_}, "an acknowledged row is open"

        await self.patiently(ask)

    def read(self, where: str = "TRUE") -> dict[int, tuple[Any, ...]]:
        """Return the columns that brokers write, by the ids of the rows."""
        found = self.shop.run(
            f"SELECT id, epoch, time_next, time_acked, priority FROM mails WHERE {where}"
        )
        return {id: tuple(values) for id, *values in found}

    async def check(self) -> None:
        """Check that no acknowledged row has changed."""
        now = self.read("time_acked IS NOT NULL")
        for id, values in self.acked.items():
            assert id not in self.rows or now.get(id) == values, f"acknowledged row {id} changed"
        self.acked = now

    # -- time ------------------------------------------------------------------------------

    async def advance(self) -> None:
        seconds = self.rng.choice([0.013, 0.2, 1, 7, 31, 61])
        await self.world.clock.advance(seconds=seconds)

    async def calm(self) -> None:
        """Check that no due row waits while all is well."""
        began_ms = self.now_ms
        for _ in range(LATE_MS // 250):
            await self.world.clock.advance(ms=250)
        if self.calm_ms > began_ms or not self.takers:
            return
        late = self.shop.run(
            "SELECT id, time_next, epoch FROM mails WHERE time_acked IS NULL"
            " AND COALESCE(time_next, 0) <= %s",
            (began_ms - 50) * NS,
        )
        waiting = [id for id, *_ in late if self.rows[id].changed_ms <= began_ms]
        assert not waiting, f"rows {waiting} wait although they are due: {late}"

    async def patiently(self, step: Callable[[], Awaitable[Any]]) -> None:
        """Run a step, and let time pass while it waits; leave it after a while."""
        ended = trio.CancelScope()

        async def run() -> None:
            with ended:
                await step()
            passing.cancel()

        passing = trio.CancelScope()
        self.nursery.start_soon(run)
        with passing:
            await self.world.clock.settle()
            for _ in range(40):
                await self.world.clock.advance(ms=250)
            ended.cancel()
            await self.world.clock.settle()
