"""Faults around the database of an application, beside those of ``troubles.py``."""

from __future__ import annotations

from typing import Final

import trio

from simulation.application import ApplicationServer
from simulation.calls import SLOW_SHARE
from simulation.clocks import HOUR_S, LEASE_MS
from simulation.database import Faults
from simulation.host import Host
from simulation.troubles import Troubles
from simulation.world import World

_LEASE_S: Final = LEASE_MS / 1000
# Steps of relays and of message tables in which a process stops. The first one follows when a relay
# has moved rows to the log. It comes three times, because the application seldom inserts rows.
_STEPS: Final = (
    *3 * ("UPDATE escapement_outbox_identity SET batch",),
    "SELECT batch FROM escapement_outbox_identity",
    "commit",
    "commit",
    "UPDATE escapement_acks",
    "UPDATE",
    "SELECT GET_LOCK",
)
# How often to look whether a process has come to such a step, and how many times: for longer than
# the usual time between two transactions of the application.
_LOOK_S: Final = 20.0
_LOOKS: Final = 2000


class ApplicationTroubles(Troubles):
    """The faults of the application's server, and processes that stop in the midst of its steps."""

    name = "application troubles"

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        super().__init__(world, nursery)
        assert world.application is not None
        self._server: ApplicationServer = world.application.server
        self._kinds = {
            self._flaky_application: 4,
            self._application_outage: 2,
            self._cut_off_from_application: 3,
            self._stop_in_a_step: 16,
        }

    def heal(self) -> None:
        """End all faults of the server."""
        self._server.heal()
        for host in self._world.hosts:
            host.calls.slow_share = SLOW_SHARE

    async def _sharing_host(self) -> Host:
        """Wait forever: ``Troubles`` causes the faults in shared transactions."""
        return await trio.sleep_forever()

    async def _flaky_application(self) -> None:
        most = self._rng.choice([0.01, 0.05, 0.2])
        draw = self._rng.uniform
        self._server.faults = Faults(draw(0, most), draw(0, most), draw(0, 2 * most), draw(0, 0.5))
        await trio.sleep(self._rng.uniform(0, 24 * HOUR_S))
        self._server.faults = Faults()

    async def _application_outage(self) -> None:
        ways = list(self._server.ways)
        for way in ways:
            way.is_reachable = False
        await trio.sleep(self._rng.uniform(0, self._rng.choice([60, 20 * HOUR_S])))
        for way in ways:
            way.is_reachable = way.is_alive

    async def _cut_off_from_application(self) -> None:
        if (host := self._host()) is not None and (way := host.way) is not None:
            way.is_reachable = False
            await trio.sleep(self._rng.uniform(0, 2) * _LEASE_S)
            way.is_reachable = way.is_alive

    async def _stop_in_a_step(self) -> None:
        """Let a process stop in a step: for good, or until others may have taken its bundles."""
        if (host := self._owner_of_outboxes()) is None or (way := host.way) is None:
            return
        way.held, way.is_holding = self._rng.choice(_STEPS), False
        host.calls.slow_share = 1.0
        for _ in range(_LOOKS):
            await trio.sleep(_LOOK_S)
            if way.is_holding or not way.is_alive:
                break
        host.calls.slow_share, way.held = SLOW_SHARE, ""
        if not way.is_holding or not host.is_up or host.process.paused:
            return
        self._world.history.faults["stopped in a step"] += 1
        stop = self._rng.choice(["kill", "kill", "pause", "pause", "cut off"])
        if stop == "kill":
            await host.kill(power_failure=self._rng.random() < 0.5, noticed=True)
            await self._restart_later(host)
        elif stop == "pause":
            await self._pause_host(host, self._rng.uniform(1.0, 1.8) * _LEASE_S, False)
        else:
            host.engine.cut()
            await trio.sleep(self._rng.uniform(1, 2) * _LEASE_S)
            host.engine.is_reachable = True

    def _owner_of_outboxes(self) -> Host | None:
        """Return a process that runs and owns a bundle, mostly bundle 0.

        The owner of bundle 0 serves outboxes and message tables. The others learn acknowledgements.
        """
        up = [
            host
            for host in self._world.hosts
            if host.is_up and not host.process.paused and host.brokers
        ]
        owners = [host for host in up if any(one.bundle_id == 0 for one in host.brokers)]
        some = owners if owners and self._rng.random() < 0.8 else up
        return self._rng.choice(some) if some else None
