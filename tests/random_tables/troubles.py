"""Faults of the database, crashes, restarts, and an owner whose lease has expired."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from escapement.storage.blocking import inline
from random_tables.changes import Changes
from random_workloads.owners import LEASE_S, Owner
from support.database.outages import Outage


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
            for taker in self.takers:
                for id in taker.messages:
                    self.give_back(id, self.now_ms)
            await self.patiently(self.world.stop)
        else:
            await self.world.crash()
        self.doubt()
        await self._next_incarnation()
        await self.world.restart()
        await self._begin_again()

    async def _next_incarnation(self) -> None:
        """Forget the consumers of a broker that has ended."""
        takers, self.takers = self.takers, []
        self.incarnation += 1
        for taker in takers:
            await self.part(taker)

    async def _begin_again(self) -> None:
        self.admit()
        await self.world.clock.advance(seconds=2)
        await self.join()
        self.calm_ms = self.now_ms + 1

    async def overtaken(self) -> None:
        """Let a successor take over from an owner that still runs, with its consumers."""
        successor, log = self.world, Outage(self.log.database)
        await self._end_for_owner()
        with tempfile.TemporaryDirectory() as directory:
            limits = replace(successor.config.limits, lease_ms=LEASE_S * 1000)
            config = replace(successor.config, limits=limits)
            self.world = stale = Owner(
                self.nursery, successor.clock, log.engine, Path(directory), config, inline
            )
            await stale.restart()
            await self._begin_again()
            for step in (self.insert, self.join, self.consume):
                await step()
            log.unreachable()
            await self.world.clock.advance(seconds=LEASE_S + 1)
            assert not stale.server.holds_lease()
            old, self.takers = self.takers, []
            self.incarnation += 1
            self.doubt()
            self.world = successor
            await successor.restart()
            await self._begin_again()
            for taker in old:
                for id, message in list(taker.messages.items())[:3]:
                    await self._do(self.rng.choice(["ack", "nack", "release"]), taker, id, message)
            for _ in range(3):
                await self.rng.choice([self.insert, self.advance, self.consume, self.reschedule])()
            log.over()
            for _ in range(8):
                await self.world.clock.advance(seconds=LEASE_S / 2)
            assert stale.was_overtaken, "the stale owner did not lose its lease"
            self.world.clock.next_wake_ms = self.world.server.next_wake_ms
            for taker in old:
                await self.part(taker)
        self.doubt()
        self.calm_ms = self.now_ms + 1

    async def _end_for_owner(self) -> None:
        for taker in self.takers:
            for id in taker.messages:
                self.give_back(id, self.now_ms)
        await self.patiently(self.world.stop)
        self.doubt()
        await self._next_incarnation()

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
