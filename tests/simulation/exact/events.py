"""Steps of time, disk and database, and crashes."""

from __future__ import annotations

import trio

from escapement.pipeline.rebuild import rebuild
from escapement.storage.lease import Identity
from simulation.database import Faults, SimulatedEngine
from simulation.exact.workload import Workload, index_on

# Steps that a crash may interrupt at any moment. Their requests are repeated afterwards.
INTERRUPTIBLE = [
    "publish", "post", "consume", "reschedule", "cancel", "redrive", "seek", "settings",
    "limits", "checkpoint", "checkpoint",
]  # fmt: skip
# Steps that may run during a database outage.
DURING_OUTAGE = [
    "publish",
    "publish",
    "post",
    "consume",
    "consume",
    "reschedule",
    "cancel",
    "redrive",
]


class Events(Workload):
    """Steps of time, maintenance, crashes and outages."""

    async def advance(self) -> None:
        await self.world.clock.advance(
            seconds=self.rng.choice([0.013, 0.2, 0.5, 1, 7, 25, 61, 400, 5000])
        )

    async def set_clock(self) -> None:
        """Set the wall clock back or ahead."""
        seconds = self.rng.choice([1, 60, 4000, -60, -4000])
        for expectation in self.model.expectations.values():
            expectation.retries, expectation.deliveries_ms, expectation.ready = {}, [], {}
            # A message whose ack wait has ended may wait for credit; it is not in flight.
            expectation.in_flight = {
                o: h for o, h in expectation.in_flight.items() if h.until_ms > self.now_ms
            }
            expectation.ordered_from = self.model.end
        self.model.rated_from = self.model.steady_from = self.model.end
        self.calm = False  # less time has passed than the clock says
        self.world.clock.set_back(seconds * 1000)
        await self.world.clock.advance(seconds=1)

    async def forget(self) -> None:
        """Roll the log to new tables and delete old ones; a crash may interrupt that."""
        await self.broker.admin("namespaces.update", namespace="t/n", policy={"retention_ms": 0})
        await self.world.checkpoint()
        services = self.world.server.services
        await services.housekeeper.set_parallelism(5 - services.log.current.parallelism)
        steps = self.rng.choice([40, 40, 40, self.rng.randrange(40)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.forgetter.round)
            for _ in range(steps):
                await self.world.clock.advance(ms=50)
            nursery.cancel_scope.cancel()
        if steps < 40:
            await self.crash()

    async def checkpoint(self) -> None:
        await self.world.checkpoint()

    async def ticks(self) -> None:
        granularity_ms = self.rng.choice([10_000, 300_000, 86_400_000])
        await self.set_ticks(granularity_ms, self.rng.choice([10, 1000, 10_000]))

    async def set_ticks(self, granularity_ms: int, tick_ms: int) -> None:
        names = {"granularity_ms": granularity_ms, "tick_ms": tick_ms}
        await self.broker.admin("namespaces.enable_delayed_message", namespace="t/n", **names)

    async def crash(self) -> None:
        await self.kill()
        await self.recover()

    async def restart(self) -> None:
        await self.world.stop()
        await self.recover()

    async def other_disk(self) -> None:
        """Start another broker, with the index that it left on its own disk."""
        ending = self.rng.choice(["stop", "crash", "cut short"])
        if ending == "cut short":
            # The last checkpoint of this broker is incomplete.
            self.database.faults = Faults(no_reply=0.5)
            await self.patiently(self.world.checkpoint)
            self.heal()
        await (self.world.stop() if ending == "stop" else self.kill())
        self.disks.reverse()
        self.world.index_directory = index_on(self.disks[0])
        await self.recover()

    async def lose_index(self) -> None:
        await self.kill()
        self.disks[0].lose()
        if self.rng.random() < 0.5:
            directory, clock = self.world.index_directory, self.world.clock
            rebuild(SimulatedEngine(self.database), Identity("0" * 32, "rebuild"), directory, clock)
            # A disk does not follow the rename of a directory, with which a rebuild ends.
            self.disks[0].take_image(power_failure=False)
            self.disks[0].restart()
        await self.recover()

    async def crash_during_step(self) -> None:
        """Crash the broker at a random moment of a random step."""
        step = getattr(self, self.rng.choice(INTERRUPTIBLE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(step)
            for _ in range(self.rng.randrange(1, 40)):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await self.crash()

    async def trouble(self) -> None:
        """Run steps while a COMMIT loses its reply, or the database is read-only or unreachable."""
        kind = self.rng.choice(["no reply", "no reply", "read-only", "unreachable"])
        for _ in range(self.rng.choice([1, 2])):
            if kind == "no reply":
                self.database.faults = Faults(no_reply=self.rng.choice([0.2, 0.5]))
            elif kind == "read-only":
                self.database.read_only = True
            else:
                self.engine.cut()
            self.outage_end_ms = self.world.clock.lease_ms() + self.rng.choice([100, 3_000, 20_000])
            await self.patiently(getattr(self, self.rng.choice(DURING_OUTAGE)))
        self.heal()
        await self.world.clock.advance(seconds=3)
        self.calm = False
        for expectation in self.model.expectations.values():
            expectation.ordered_from, expectation.ready = self.model.end, {}
