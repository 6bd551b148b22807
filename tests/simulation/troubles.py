"""Faults that occur now and then: what happens, how often, and when it is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from escapement.broker.broker import Broker
from escapement.errors import EscapementError
from simulation import disk
from simulation.calls import SLOW_SHARE
from simulation.clocks import HOUR_S, LEASE_MS, MOST_SKEW_MS
from simulation.database import Faults
from simulation.disk import Kind
from simulation.host import Host
from simulation.network import Weather
from simulation.world import World

_MEAN_S: Final = 12 * HOUR_S
# Limits of the time from the begin of a shared transaction with several groups to a fault.
_SHARING_S: Final = (0.0, 0.05, 0.5)
_LEASE_S: Final = LEASE_MS / 1000
# A checkpoint creates, writes and syncs a segment and the manifest, renames the manifest, and syncs
# the directory after each: four syncs.
_CHANGES: Final = 9
_SYNCS: Final = 4
# The share of checkpoints in which a process is to die at a sync, not at any change.
_SYNC_SHARE: Final = 0.7
# The share of requested checkpoints that find a disk that fails at one of their changes.
_BROKEN_SHARE: Final = 0.3
# The share of phases in which only calls of one kind fail.
_ONE_KIND_SHARE: Final = 0.7
# The most checkpoints that are requested while a disk fails.
_TRIES: Final = 12
# How often to look whether a checkpoint has come to a change.
_LOOKS: Final = 60


class Troubles:
    """The faults of a run, one after the other."""

    name = "troubles"

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self._world = world
        self._nursery = nursery
        self._rng = world.chance(self.name)
        self._victim: Host | None = None  # the process to hit
        self._kinds: dict[Callable[[], Awaitable[None]], int] = {
            self._kill: 5,
            self._power_failure: 5,
            self._stop: 3,
            self._lose_machine: 2,
            self._pause: 3,
            self._pause_past_lease: 4,
            self._cut_off_from_database: 5,
            self._database_outage: 2,
            self._read_only: 2,
            self._flaky_database: 4,
            self._bad_network: 4,
            self._failing_disk: 5,
            self._set_clock: 3,
            self._checkpoint: 18,
        }
        # Faults in the middle of a shared transaction with several groups.
        self._in_sharing: dict[Callable[[], Awaitable[None]], int] = {
            self._kill: 3,
            self._power_failure: 2,
            self._pause: 1,
            self._pause_past_lease: 3,
            self._cut_off_from_database: 3,
            self._failing_steps: 8,
        }

    async def run(self) -> None:
        """Cause faults until cancelled."""
        while True:
            pause_s = self._rng.uniform(0, 2 * _MEAN_S)
            await trio.sleep(pause_s / 2)
            kinds, self._victim = self._kinds, None
            with trio.move_on_after(pause_s / 2):
                self._victim = await self._sharing_host()
                kinds = self._in_sharing
                await trio.sleep(self._rng.uniform(0, self._rng.choice(_SHARING_S)))
            (kind,) = self._rng.choices(list(kinds), list(kinds.values()))
            self._world.history.faults[kind.__name__.strip("_")] += 1  # type: ignore[attr-defined]
            await kind()

    async def _sharing_host(self) -> Host:
        """Wait for the next shared transaction with several groups, and return its process."""
        engine = await self._world.sharing.begun()
        return next(host for host in self._world.hosts if host.engine is engine)

    def heal(self) -> None:
        """End all faults, and let all processes run."""
        self._world.server.heal()
        self._world.network.weather = Weather()
        for host in self._world.hosts:
            host.engine.is_reachable = True
            host.disk.heal()
            host.resume()
            if not host.is_up:
                host.start(self._nursery)

    def _host(self) -> Host | None:
        """Return a process that runs: the one to hit, or more often one that owns a bundle."""
        up = [host for host in self._world.hosts if host.is_up and not host.process.paused]
        owners = [host for host in up if host.brokers]
        if self._victim in up:
            return self._victim
        some = owners if owners and self._rng.random() < 0.8 else up
        return self._rng.choice(some) if some else None

    async def _end(self, *, power_failure: bool, lost: bool = False) -> None:
        if (host := self._host()) is None:
            return
        await host.kill(power_failure=power_failure, noticed=self._rng.random() < 0.6)
        if lost or self._rng.random() < 0.15:
            host.lose()
        await self._restart_later(host)

    async def _restart_later(self, host: Host) -> None:
        """Start a process again: at once, or when another one may have taken its bundles."""
        longest_s = self._rng.choice([1, 60, _LEASE_S, 1.5 * _LEASE_S])
        await trio.sleep(self._rng.uniform(0, longest_s))
        if not host.is_up:
            host.start(self._nursery)

    async def _kill(self) -> None:
        await self._end(power_failure=False)

    async def _power_failure(self) -> None:
        await self._end(power_failure=True)

    async def _lose_machine(self) -> None:
        await self._end(power_failure=True, lost=True)

    async def _stop(self) -> None:
        if (host := self._host()) is not None:
            await host.stop()
            await self._restart_later(host)

    async def _pause(self) -> None:
        await self._pause_for(self._rng.uniform(0, 0.5 * _LEASE_S))

    async def _pause_past_lease(self) -> None:
        """Pause a process; often it cannot reach the database at first when it goes on."""
        await self._pause_for(self._rng.uniform(1.0, 1.8) * _LEASE_S, self._rng.random() < 0.7)

    async def _pause_for(self, seconds: float, cut_off: bool = False) -> None:
        if (host := self._host()) is not None:
            await self._pause_host(host, seconds, cut_off)

    async def _pause_host(self, host: Host, seconds: float, cut_off: bool) -> None:
        host.pause()
        await trio.sleep(seconds)
        if cut_off:
            host.engine.cut()
        host.resume()
        if cut_off:
            await trio.sleep(self._rng.uniform(0, 0.2) * _LEASE_S)
            host.engine.is_reachable = True

    async def _cut_off_from_database(self) -> None:
        if (host := self._host()) is not None:
            host.engine.cut()
            short_s, long_s = self._rng.uniform(0, 300), self._rng.uniform(1, 3) * _LEASE_S
            await trio.sleep(self._rng.choice([short_s, long_s, long_s]))
            host.engine.is_reachable = True

    async def _database_outage(self) -> None:
        for host in self._world.hosts:
            host.engine.cut()
        await trio.sleep(self._rng.uniform(0, self._rng.choice([5, 600])))
        for host in self._world.hosts:
            host.engine.is_reachable = True

    async def _read_only(self) -> None:
        self._world.server.read_only = True
        await trio.sleep(self._rng.uniform(0, 600))
        self._world.server.read_only = False

    async def _flaky_database(self) -> None:
        most = self._rng.choice([0.001, 0.01, 0.05])
        draw = self._rng.uniform
        self._world.server.faults = Faults(
            draw(0, most), draw(0, most), draw(0, 4 * most), draw(0, 0.5)
        )
        await trio.sleep(self._rng.uniform(0, 24 * HOUR_S))
        self._world.server.faults = Faults()

    async def _failing_steps(self) -> None:
        """Let many steps fail for some seconds."""
        draw = self._rng.uniform
        self._world.server.faults = Faults(draw(0, 0.1), draw(0, 0.1), draw(0.2, 1), 0.5)
        await trio.sleep(draw(0, 10))
        self._world.server.faults = Faults()

    async def _bad_network(self) -> None:
        draw = self._rng.uniform
        self._world.network.weather = Weather(draw(0, 0.05), draw(0, 0.02), draw(0, 0.5))
        await trio.sleep(self._rng.uniform(0, 24 * HOUR_S))
        self._world.network.weather = Weather()

    async def _failing_disk(self) -> None:
        if (host := self._host()) is not None:
            failing = self._rng.uniform(0, self._rng.choice([0.02, 0.2, 1.0]))
            longest_s = self._rng.choice([0.1, 0.1, 5.0, 60.0])
            if self._rng.random() < _ONE_KIND_SHARE:
                kind = self._rng.choice(list(Kind))
                faults = disk.Faults(failing, self._rng.choice(kind.codes), [kind], longest_s)
            else:
                faults = disk.Faults(failing, self._rng.choice(disk.CODES), longest_s=longest_s)
            host.disk.faults = faults
            for _ in range(self._rng.randint(1, _TRIES)):
                await trio.sleep(self._rng.uniform(0, 2 * HOUR_S))
                self._want_checkpoint(host)
            host.disk.heal()

    def _want_checkpoint(self, host: Host) -> None:
        """Request a checkpoint of one of the brokers of a process, if there is one."""
        if host.brokers:
            self._rng.choice(host.brokers).services.checkpointer.want()

    async def _set_clock(self) -> None:
        host = self._rng.choice(self._world.hosts)
        host.clock.skew_ms = self._rng.randint(-MOST_SKEW_MS, MOST_SKEW_MS)
        self._world.history.skew_steps_s.append(trio.current_time())

    async def _checkpoint(self) -> None:
        """Request a checkpoint; let the disk fail in it, or often end the process in it."""
        host = self._host()
        if host is None or host.tasks is None or not host.brokers:
            return
        breaks = self._rng.random() < _BROKEN_SHARE
        if breaks:
            host.disk.faults = disk.Faults(code=self._rng.choice(disk.CODES))
            host.disk.break_at(self._rng.randint(1, _CHANGES))
            self._want_checkpoint(host)
        else:
            if self._rng.random() < _SYNC_SHARE:
                host.disk.hold(self._rng.randint(1, _SYNCS), [Kind.SYNC])
            else:
                host.disk.hold(self._rng.randint(1, _CHANGES), disk.CHANGES)
            host.tasks.start_soon(_write_checkpoint, host, self._rng.choice(host.brokers))
        host.calls.slow_share = 1.0
        for _ in range(_LOOKS):
            await trio.sleep(0.05)
            if host.disk.is_holding or not host.is_up:
                break
        host.calls.slow_share = SLOW_SHARE
        if breaks:
            host.disk.heal()
        elif host.is_up and self._rng.random() < 0.8:
            await host.kill(power_failure=self._rng.random() < 0.8, noticed=True)
            await self._restart_later(host)


async def _write_checkpoint(host: Host, broker: Broker) -> None:
    """Write a checkpoint now, also if the broker has nothing to write."""
    try:
        await broker.checkpoint()
    except EscapementError as error:
        if not host.calls.dead and not error.retryable:
            raise
