"""One broker process with its own data directory, identity and clock.

It runs a node, as ``escapement serve`` does. If the node fails, the process ends and is started
again, as by a service manager.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from escapement.broker.broker import Broker, BrokerConfig
from escapement.broker.crash import one_error
from escapement.broker.node.node import Node
from escapement.broker.runners import Runners
from escapement.errors import EscapementError
from escapement.protocol.limits import DEFAULT_PORT
from escapement.storage.lease import Identity
from simulation.application import WAY, ApplicationServer, Way
from simulation.calls import Calls, Threads
from simulation.clocks import WallClock
from simulation.database import Server, SimulatedEngine
from simulation.disk import Disk
from simulation.network import Cable, ClientStream, Network
from simulation.pausing import PROCESS, Process

# The pause after a failure, until the process is started again.
_RESTART_S: Final = (60.0, 3600.0)
# How often to look, each half second, whether a process that was asked to stop has stopped.
_STOP_LOOKS: Final = 120
# Connections that a node has not accepted yet.
_BACKLOG: Final = 100


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
        rng: random.Random,
        on_take: Callable[[Host, Broker], None],
        on_end: Callable[[Host, BaseException], None],
        application: ApplicationServer | None,
    ) -> None:
        self.name = name
        self.address = f"{name}:{DEFAULT_PORT}"
        self.disk = Disk(root, rng)
        self.clock = clock
        self.incarnation = 0
        self._machine = rng.getrandbits(64)
        self._describe()
        # If it accepts connections: its node, and the tasks of the process.
        self.node: Node | None = None
        self.tasks: trio.Nursery | None = None
        self.cables: list[Cable] = []
        self.is_up = False
        self.process = Process()
        self._server = server
        self._network = network
        self._threads = threads
        self._config = config
        self._rng = rng
        self._on_take = on_take
        self._on_end = on_end
        self._application = application
        self.way: Way | None = None  # to the database of the application, if there is one
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._arrivals, _ = trio.open_memory_channel[Cable](0)
        self.calls = Calls(threads, rng, server.locks)
        self.engine = SimulatedEngine(server)
        self._resumed_ms = 0

    @property
    def impaired_ms(self) -> int:
        """When the process last was paused, or its database failed."""
        if self.process.paused:
            return self._server.now_ms()
        return max(self._resumed_ms, self.engine.failed_ms)

    @property
    def process_name(self) -> tuple[str, int]:
        """The name of the present process: that of the host, and how often it was started."""
        return self.name, self.incarnation

    @property
    def brokers(self) -> list[Broker]:
        """The brokers that serve clients here."""
        return [] if self.node is None else self.node.brokers

    @property
    def has_lost_a_lease(self) -> bool:
        """Whether it serves clients with a broker whose lease has expired."""
        return not self.process.paused and any(not one.holds_lease() for one in self.brokers)

    # -- the life of the process -----------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        """Start the process."""
        assert not self.is_up
        self.is_up = True
        self.process = Process()
        self.calls = Calls(self._threads, self._rng, self._server.locks)
        self.engine = SimulatedEngine(self._server)
        self.way = None if self._application is None else Way(self._application)
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        nursery.start_soon(self._live)

    async def _live(self) -> None:
        PROCESS.set(self.process)
        if self.way is not None:
            WAY.set(self.way)
        with self._scope:
            await self._keep()
        self.is_up = False
        self._ended.set()

    async def _keep(self) -> None:
        """Run a node, and the next one after a failure, until it is stopped."""
        while True:
            self.incarnation += 1
            try:
                with one_error():
                    await self._serve()
                return
            except (EscapementError, Exception) as error:
                if self.calls.dead:
                    await trio.lowlevel.checkpoint()
                self._on_end(self, error)
                for cable in self.cables:
                    cable.cut(noticed=True)
                await trio.sleep(self._rng.uniform(*_RESTART_S))

    async def _serve(self) -> None:
        """Run a node until it is stopped, with the same steps as ``broker/server.py``."""
        node = Node(
            self.engine,
            self.disk.root,
            self.identity,
            self.address,
            self.clock,
            lambda: Runners.all_by(self.calls),
            self._config,
            on_ready=lambda broker: self._on_take(self, broker),
        )
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(node.run)
                self._arrivals, arriving = trio.open_memory_channel[Cable](_BACKLOG)
                self.node, self.tasks = node, nursery
                nursery.start_soon(self._accept, node, nursery, arriving)
                await node.stopped.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.node = self.tasks = None

    async def _accept(
        self, node: Node, nursery: trio.Nursery, arriving: trio.MemoryReceiveChannel[Cable]
    ) -> None:
        async for cable in arriving:
            nursery.start_soon(node.front.serve_stream, cable.server)

    def connect(self) -> ClientStream | None:
        """Open a connection; None if nothing listens."""
        if self.node is None:
            return None
        cable = Cable(self._network, self.clock.now_ms)
        try:
            self._arrivals.send_nowait(cable)
        except (trio.WouldBlock, trio.BrokenResourceError):
            return None
        self.cables = [one for one in self.cables if one.ended_s is None]
        self.cables.append(cable)
        return ClientStream(cable, self.process_name)

    # -- what can happen to it -------------------------------------------------------

    async def kill(self, *, power_failure: bool, noticed: bool) -> None:
        """End the process as kill -9 does, or its machine as a power failure does.

        Args:
          noticed: whether clients see at once that their connections are lost.
        """
        if self._scope.cancel_called:  # another trouble is killing it
            await self._ended.wait()
            return
        self.disk.take_image(power_failure=power_failure)
        self.calls.kill()
        self.engine.cut()
        if self.way is not None:
            self.way.end()
        for cable in self.cables:
            cable.cut(noticed=noticed)
        self.process.resume()
        self._scope.cancel()
        await self._ended.wait()
        self.disk.restart()

    async def stop(self) -> None:
        """Stop the process cleanly, as an operator does. It ends when its node has stopped."""
        process = self.process
        if self.node is not None:
            self.node.stop()
        for _ in range(_STOP_LOOKS):
            if self.node is None:
                break
            await trio.sleep(0.5)
        if self.process is process:  # otherwise another trouble has killed it
            await self.kill(power_failure=False, noticed=True)

    def lose(self) -> None:
        """Lose the machine while the process is down: the next start has an empty disk."""
        self.disk.lose()
        self._machine += 1
        self._describe()

    def _describe(self) -> None:
        """Give the data directory its identity, which a lost machine takes with it."""
        self.identity = Identity(f"{self._machine:032x}", self.name, self.name)
        (self.disk.root / "broker.id").write_text(self.identity.owner_id + "\n")

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        if self.process.paused:
            self._resumed_ms = self._server.now_ms()
        self.process.resume()
