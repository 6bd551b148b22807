"""Steps with other owners: a broker with its own disk, and a stale owner (B8, invariants 7 and 8).

Two brokers take turns. Each returns to the index that it left on its own disk.

A stale owner is a broker on a lease of ten seconds. It cannot renew the lease, or cannot reach the
database at all. When the lease has ended it must not deliver anything. When a successor has taken
over, the stale owner must not make anything durable: no publish, acknowledgement, cancel or
checkpoint. It stops when it learns that it lost the lease. Its deliveries are repeated with the
redelivery mark, as after a crash.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import trio

import escapement
from escapement.errors import LeaseLost
from escapement.storage.blocking import inline
from escapement.testing import World
from random_workloads.model import Sent
from random_workloads.traffic import Traffic
from random_workloads.workload import TOPIC
from support.database.outages import Outage

LEASE_S = 10


class Owner(World):
    """A broker that may lose its lease."""

    was_overtaken = False

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            await super()._live(task_status)
        except* LeaseLost:
            self.was_overtaken = True


class Owners(Traffic):
    """Steps in which another broker takes over."""

    disks: Sequence[Path]  # of two brokers; the first one runs

    async def other_disk(self) -> None:
        """Start another broker, with the index that it left on its own disk."""
        ending = self.rng.choice(["stop", "crash", "cut short"])
        if ending == "cut short":
            # The last checkpoint of this broker is incomplete.
            self.outage.lose_reply(self.rng.choice([1, 2]))
            await self.world.checkpoint()
            self.outage.over()
        await (self.world.stop() if ending == "stop" else self.kill())
        self.disks = self.disks[::-1]
        self.world.index_directory = self.disks[0]
        await self.recover()

    async def overtaken(self) -> None:
        successor, outage = self.world, Outage(self.outage.database)
        await successor.stop()
        with tempfile.TemporaryDirectory() as directory:
            limits = replace(successor.config.limits, lease_ms=LEASE_S * 1000)
            config = replace(successor.config, limits=limits)
            self.world = stale = Owner(
                self.nursery, successor.clock, outage.engine, Path(directory), config, inline
            )
            await self.recover()
            for name in ["subscribe", self.rng.choice(["publish", "consume", "cancel"])]:
                await self.patiently(getattr(self, name))
                await self.settle()
            # These messages fall due after the takeover.
            await self.patiently(lambda: self.publish([LEASE_S + 5]))
            await self.settle()
            self.rng.choice([outage.unreachable, outage.unrenewed])()
            await self.world.clock.advance(seconds=LEASE_S + 1)
            self.check()
            assert not stale.server.holds_lease()
            await self._take_over(successor, stale, outage)
        await self.settle()
        if self.rng.random() < 0.5:
            await self.crash()  # the next broker has only durable messages

    async def _take_over(self, successor: World, stale: Owner, outage: Outage) -> None:
        """Start a successor while the stale owner keeps its clients."""
        stack, broker, (producer, _) = self._stack, self.broker, self.producers
        inboxes, self.inboxes = [inbox for _, inbox, _ in self.inboxes], []
        self.stale, self._stack, self.world = inboxes, AsyncExitStack(), successor
        self.model.crash(self.now_ms)
        self.model.end_deliveries()
        await self.serve()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish, producer)
            nursery.start_soon(self._cancel, broker)
            nursery.start_soon(self._checkpoint, stale)
            for inbox in inboxes:
                nursery.start_soon(self._acknowledge, inbox)
            if self.rng.random() < 0.5:
                outage.over()
            for name in self.rng.choices(["publish", "consume", "subscribe"], k=2):
                await self.patiently(getattr(self, name))
            await self.world.clock.advance(seconds=LEASE_S)
            outage.over()
            await self.world.clock.advance(seconds=LEASE_S)
            assert stale.was_overtaken, "the stale owner did not lose its lease"
            nursery.cancel_scope.cancel()
        self.world.clock.next_wake_ms = self.world.server.next_wake_ms
        await self.patiently(stack.aclose)

    # -- requests to the stale owner ---------------------------------------------------

    async def _publish(self, producer: escapement.Producer) -> None:
        (value,) = self.values(1)
        self.model.sent[value] = Sent(most=0)
        with suppress(escapement.EscapementError):
            await producer.send_many([value])
            raise AssertionError("a stale owner has confirmed a message")

    async def _acknowledge(self, inbox: escapement.Inbox) -> None:
        with suppress(escapement.EscapementError):
            offsets = []
            while (message := await inbox.receive(0)) is not None:
                offsets.append(message.offset)
            count = await inbox.ack(offsets, durable=True) if offsets else 0
            assert not count, "a stale owner has confirmed an acknowledgement"

    async def _cancel(self, broker: escapement.Broker) -> None:
        if not self.model.end:
            return
        with suppress(escapement.EscapementError):
            for outcome in await broker.cancel(range(self.model.end), topic=TOPIC):
                known = outcome.id.offset in self.model.cancelled
                assert known or not outcome.done, "a stale owner has cancelled a message"

    async def _checkpoint(self, stale: Owner) -> None:
        with suppress(escapement.EscapementError):
            await stale.server.checkpoint()
