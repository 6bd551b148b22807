"""One broker process with its own data directory, identity and clock.

It runs a broker for each bundle of topics. A broker that another process keeps from its bundle
(``LeaseHeld``) waits as a standby and tries again. A broker that ends is started again, as by a
service manager.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from escapement.broker.broker import Broker, BrokerConfig
from escapement.broker.crash import one_error
from escapement.broker.front.front import Front
from escapement.broker.runners import Runners
from escapement.errors import EscapementError, LeaseHeld
from escapement.storage.data_directory import index_directory
from escapement.storage.lease import Identity
from simulation.calls import Calls, Threads
from simulation.clocks import LEASE_MS, WallClock
from simulation.database import Server, SimulatedEngine
from simulation.disk import Disk
from simulation.network import Cable, ClientStream, Network
from simulation.pausing import PROCESS, Process

# Pauses between two starts of a broker: after a failure, and while another process has the bundle.
_RESTART_S: Final = (60.0, 3600.0)
_STANDBY_S: Final = LEASE_MS / 1000 / 5

# How often to look, each half second, whether a process that was asked to stop has stopped.
_STOP_LOOKS: Final = 120


@dataclass
class _Running:
    """A broker that accepts connections."""

    broker: Broker
    front: Front
    nursery: trio.Nursery
    arrivals: trio.MemorySendChannel[Cable]


class Host:
    """One broker process, and what outlives it: its name, disk and clock."""

    def __init__(
        self,
        name: str,
        root: Path,
        server: Server,
        network: Network,
        threads: Threads,
        clock: WallClock,
        config: BrokerConfig,
        bundles: int,
        rng: random.Random,
        on_end: Callable[[Host, BaseException], None],
    ) -> None:
        self.name = name
        self.disk = Disk(root, rng)
        self.clock = clock
        self.incarnation = 0
        self.running: dict[int, _Running] = {}
        self.cables: list[Cable] = []
        self.is_up = False
        self.process = Process()
        self._server = server
        self._network = network
        self._threads = threads
        self._config = config
        self._bundles = bundles
        self._rng = rng
        self._on_end = on_end
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.calls = Calls(threads, rng, server.turn)
        self.engine = SimulatedEngine(server)

    # -- the life of the process -----------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        """Start the process."""
        assert not self.is_up
        self.incarnation += 1
        self.is_up = True
        self.process = Process()
        self.calls = Calls(self._threads, self._rng, self._server.turn)
        self.engine = SimulatedEngine(self._server)
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        nursery.start_soon(self._live)

    async def _live(self) -> None:
        PROCESS.set(self.process)
        with self._scope:
            async with trio.open_nursery() as nursery:
                for bundle_id in range(self._bundles):
                    nursery.start_soon(self._keep, bundle_id)
        self.is_up = False
        self._ended.set()

    async def _keep(self, bundle_id: int) -> None:
        """Run a broker of a bundle, one after the other."""
        while True:
            try:
                with one_error():
                    await self._serve(bundle_id)
                return  # it was stopped
            except LeaseHeld:
                await trio.sleep(_STANDBY_S * self._rng.uniform(0.5, 1.5))
            except (EscapementError, Exception) as error:
                if self.calls.dead:
                    await trio.lowlevel.checkpoint()
                self._on_end(self, error)
                await trio.sleep(self._rng.uniform(*_RESTART_S))

    async def _serve(self, bundle_id: int) -> None:
        broker = Broker(
            self.engine,
            index_directory(self.disk.root, bundle_id),
            Identity(f"{self.name}-{bundle_id}".rjust(32, "0"), self.name),
            self.clock,
            Runners.all_by(self.calls),
            self._config,
            bundle_id,
        )
        front = Front.of_broker(broker)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(front.run_broker, broker)
                send, receive = trio.open_memory_channel[Cable](100)
                self.running[bundle_id] = _Running(broker, front, nursery, send)
                nursery.start_soon(self._accept, front, nursery, receive)
                await broker.stopped.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.running.pop(bundle_id, None)

    async def _accept(
        self, front: Front, nursery: trio.Nursery, arrivals: trio.MemoryReceiveChannel[Cable]
    ) -> None:
        async for cable in arrivals:
            nursery.start_soon(front.serve_stream, cable.server)

    def connect(self, bundle_id: int) -> ClientStream | None:
        """Open a connection to the broker of a bundle; None if it does not listen here."""
        running = self.running.get(bundle_id)
        if running is None:
            return None
        cable = Cable(self._network, self.clock.now_ms)
        try:
            running.arrivals.send_nowait(cable)
        except (trio.WouldBlock, trio.BrokenResourceError):
            return None
        self.cables = [one for one in self.cables if one.ended_s is None]
        self.cables.append(cable)
        return ClientStream(cable, self.name, self.incarnation)

    # -- what can happen to it -------------------------------------------------------

    async def kill(self, *, power_failure: bool, noticed: bool) -> None:
        """End the process as kill -9 does, or its machine as a power failure does.

        Args:
          noticed: whether clients see at once that their connections are lost.
        """
        self.disk.take_image(power_failure=power_failure)
        self.calls.kill()
        self.engine.cut()
        for cable in self.cables:
            cable.cut(noticed=noticed)
        self.process.resume()
        self._scope.cancel()
        await self._ended.wait()
        self.disk.restart()

    async def stop(self) -> None:
        """Stop the process cleanly, as an operator does. It ends when its brokers have stopped."""
        for running in list(self.running.values()):
            running.broker.stop()
        for _ in range(_STOP_LOOKS):
            if not self.running:
                break
            await trio.sleep(0.5)
        await self.kill(power_failure=False, noticed=True)

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()
