"""Faults of the database, crashes, restarts, stale owners, and two brokers at once."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World
from random_tables.changes import Changes
from random_tables.lives import Taker
from support.database.outages import Outage
from support.faults.hanging_calls import HangingCalls, nth
from support.faults.stale_owner import LEASE_S, Owner
from support.storage.commit_pipelines import FaultyEngine


class Troubles(Changes):
    """Steps in which something fails."""

    async def trouble(self) -> None:
        """Let the database of the table fail during some steps."""
        self.doubt()
        self.calm_ms = self.now_ms + 100_000
        self.rng.choice(
            [
                self.outage.read_only,
                self.outage.unreachable,
                lambda: self.outage.lose_reply(1),
                lambda: self.outage.lose_reply(2),
            ]
        )()
        steps = [self.consume, self.insert, self.reschedule, self.wait, self.acknowledge, self.join]
        for _ in range(self.rng.choice([1, 3])):
            await self.rng.choice(steps)()
        self.outage.over()
        for _ in range(12):  # waits of the broker end one after the other
            await self.world.clock.advance(ms=250)
        self.doubt()
        self.calm_ms = self.now_ms + 1

    async def crash(self) -> None:
        await self._end(clean=False)

    async def restart(self) -> None:
        await self._end(clean=True)

    async def _end(self, clean: bool) -> None:
        if clean:
            self._give_all_back()
            await self.patiently(self.world.stop)
        else:
            await self.world.crash()
        self.doubt()
        await self._next_incarnation()
        await self.world.restart()
        await self._begin_again()

    async def _next_incarnation(self) -> None:
        """Forget the consumers of a broker that has ended."""
        gone = self._consumers_of(self.incarnation)
        self.incarnation = self.next_incarnation()
        for taker in gone:
            await self.part(taker)

    def _consumers_of(self, incarnation: int) -> list[Taker]:
        """Forget the consumers of a broker, and return them."""
        found = [taker for taker in self.takers if taker.incarnation == incarnation]
        self.takers = [taker for taker in self.takers if taker.incarnation != incarnation]
        return found

    async def _begin_again(self) -> None:
        self.admit()
        await self.world.clock.advance(seconds=2)
        await self.join()
        self.calm_ms = self.now_ms + 1

    # -- a stale owner -------------------------------------------------------------------

    async def overtaken(self) -> None:
        """Let a successor take over from an owner that still runs, with its consumers.

        A call of the owner may hang meanwhile, with locked rows or before it takes its named lock.
        """
        successor, log = self.world, Outage(self.log.database)
        calls, commits = HangingCalls(), list[str]()
        await self._end_for_owner()
        with tempfile.TemporaryDirectory() as directory:
            limits = replace(successor.config.limits, lease_ms=LEASE_S * 1000)
            config = replace(successor.config, limits=limits)
            self.world = stale = Owner(
                self.nursery, successor.clock, log.engine, Path(directory), config, calls
            )
            await stale.restart()
            await self._begin_again()
            self.admit(stale, FaultyEngine(self.outage.engine, calls.before, commits.append))
            for step in (self.insert, self.join, self.consume):
                await step()
            await self._hang(calls)
            log.unreachable()
            await self.world.clock.advance(seconds=LEASE_S + 1)
            assert not stale.server.holds_lease()
            old = self._consumers_of(self.incarnation)
            self.incarnation = self.next_incarnation()
            self.doubt()
            self.world = successor
            await successor.restart()
            await self._begin_again()
            commits.clear()
            for taker in old:
                for id, message in list(taker.messages.items())[:3]:
                    await self._do(self.rng.choice(["ack", "nack", "release"]), taker, id, message)
            steps = [self.insert, self.advance, self.consume, self.reschedule]
            for step in self.rng.choices(steps, k=self.rng.randrange(4)):
                await step()
            before = self.read()
            calls.release()
            assert self.read() == before, "a stale owner has changed rows"
            for step in self.rng.choices(steps, k=2):
                await step()
            log.over()
            for _ in range(8):
                await self.world.clock.advance(seconds=LEASE_S / 2)
            assert stale.was_overtaken, "the stale owner did not lose its lease"
            assert not commits, "a stale owner has committed a transaction"
            self.world.clock.next_wake_ms = self.world.server.next_wake_ms
            for taker in old:
                await self.part(taker)
        self.doubt()
        self.calm_ms = self.now_ms + 1

    async def _hang(self, calls: HangingCalls) -> None:
        """Let a call hang before a random step. Nothing else writes into rows meanwhile."""
        self.doubt()
        self.calm_ms = self.now_ms + 100_000
        if self.rng.random() < 0.3:
            await self.break_connections()
        beginnings = self.rng.choice(
            [("",), ("begin",), ("commit",), ("UPDATE",), ("SELECT GET_LOCK",), ("connect",)]
        )
        calls.hang_at(nth(self.rng.choice([1, 1, 2, 3, 9]), *beginnings))
        for step in self.rng.choices([self.insert, self.consume, self.wait], k=4):
            await step()

    async def _end_for_owner(self) -> None:
        self._give_all_back()
        await self.patiently(self.world.stop)
        self.doubt()
        await self._next_incarnation()

    def _give_all_back(self) -> None:
        """Note that all rows of all consumers may be sent again."""
        for taker in self.takers:
            for id in taker.messages:
                self.give_back(id, self.now_ms)

    # -- a broker with another log -------------------------------------------------------

    async def served_twice(self) -> None:
        """Let a broker with another log serve the table too, and hang for a moment."""
        calls, engine, number = HangingCalls(), SqliteEngine.in_memory(), self.next_incarnation()
        with tempfile.TemporaryDirectory() as directory:
            config = self.world.config
            other = World(self.nursery, self.world.clock, engine, Path(directory), config, calls)
            await other.restart()
            self.beside[number] = other
            self.admit(other, FaultyEngine(self.outage.engine, calls.before))
            self._wake_both(other)
            await self.world.clock.advance(seconds=2)
            for _ in range(self.rng.choice([2, 6, 12])):
                step = self.rng.choice(self._beside_another())
                await step()
                self._wake_both(other)
            await self._hang(calls)
            calls.release()
            await self.wait()
            for _ in range(self.rng.choice([0, 2])):
                await self.rng.choice(self._beside_another())()
                self._wake_both(other)
            self._give_all_back()
            gone = self._consumers_of(number)
            if self.rng.random() < 0.5:
                await self.patiently(other.stop)
            else:
                await other.crash()
            del self.beside[number]
            self.world.clock.next_wake_ms = self.world.server.next_wake_ms
            for taker in gone:
                await self.part(taker)
        engine.close()
        self.doubt()
        self.calm_ms = self.now_ms + 1

    def _beside_another(self) -> list[Callable[[], Awaitable[None]]]:
        """Return steps that make sense while two brokers serve the table."""
        return [
            *(self.insert, self.reschedule, self.set_epoch, self.acknowledge, self.alter),
            *(self.join, self.join, self.consume, self.consume, self.consume, self.leave),
            *(self.advance, self.advance, self.calm, self.lock, self.break_connections),
            *(self.crash, self.restart),
        ]

    def _wake_both(self, other: World) -> None:
        """Let the clock stop whenever one of two brokers has work."""
        servers = [self.world.server, other.server]

        def next_wake_ms() -> int | None:
            times = [server.next_wake_ms() for server in servers]
            return min((time for time in times if time is not None), default=None)

        self.world.clock.next_wake_ms = next_wake_ms

    async def drain(self) -> None:
        """Check that every row that is due is delivered in the end, and acknowledged."""
        for taker in list(self.takers):
            await self.dismiss(taker)
        await self.join()
        (taker,) = self.takers
        left: list[int] = []
        for _ in range(60):
            for id, message in list(taker.messages.items()):
                del taker.messages[id]
                assert taker.inbox is not None
                await taker.inbox.ack([message])
            await self.world.clock.advance(seconds=5)
            due_ns = (self.now_ms + 3_600_000) * 1_000_000
            rows = self.shop.run(
                "SELECT id FROM mails WHERE time_acked IS NULL AND COALESCE(time_next, 0) < %s",
                due_ns,
            )
            left = [id for (id,) in rows]
            if not left:
                break
        assert not left, f"rows {left} were never delivered"
        rows = self.shop.run("SELECT id, time_next, time_acked FROM mails")
        assert {id for id, *_ in rows} == self.rows.keys()
        assert all((next is None) == (acked is not None) for _, next, acked in rows)
        for topic in self.world.server.services.tables.topics():
            subscription = topic.find("table")
            assert not len(subscription.in_flight)
