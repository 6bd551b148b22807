"""Whole nodes on one database in one test, on a virtual clock, with connections in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
from trio.testing import memory_stream_pair

from escapement.broker.config import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.node.node import Node
from escapement.broker.runners import Runners
from escapement.errors import Disconnected
from escapement.storage.blocking import inline
from escapement.storage.engine.base import Engine
from escapement.testing.clock import VirtualClock
from escapement.testing.world import MemoryStream
from support.storage.virtual_node import virtual_node

# The steps in which the time advances while a test waits for something, and how many there are.
_STEP_MS = 100
_MOST_STEPS = 600


def made(
    engine: Engine,
    data: Path,
    name: str,
    clock: VirtualClock,
    bundles: int,
    runners: Runners | None = None,
    lease_ms: int = BrokerLimits().lease_ms,
) -> Node:
    """Return a node with the address ``NAME:7650``."""
    limits = replace(BrokerLimits(), commit_lanes=1, lease_ms=lease_ms)
    config = BrokerConfig(seed=0, limits=limits)
    used = runners or Runners.all_by(inline)
    data.mkdir()
    return virtual_node(engine, data, clock, name, runners=used, config=config, bundles=bundles)


class Running:
    """Nodes that accept connections in memory.

    Attributes:
      dialled: the addresses to which clients opened connections.
    """

    def __init__(self, nursery: trio.Nursery, clock: VirtualClock) -> None:
        self.clock = clock
        self.dialled: list[str] = []
        self._nursery = nursery
        self._nodes: dict[str, Node] = {}
        self._processes: dict[str, trio.CancelScope] = {}

    async def start(self, address: str, node: Node) -> None:
        """Run a node, and return when it has started."""
        await self._nursery.start(self._live, address, node)
        self._nodes[address] = node

    async def _live(self, address: str, node: Node, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._processes[address]:
            await node.run(task_status)

    async def kill(self, address: str) -> None:
        """End a node at once. It releases nothing."""
        self._processes[address].cancel()
        await self._nodes[address].stopped.wait()

    async def stop(self, *addresses: str) -> None:
        """Stop nodes, and let the time pass until they have ended."""
        nodes = [self._nodes[address] for address in addresses]
        for node in nodes:
            node.stop()
        await self.until(lambda: all(node.stopped.is_set() for node in nodes))

    async def dial(self, address: str) -> MemoryStream:
        """Open a connection to a node. Raises ``Disconnected`` if it has ended."""
        self.dialled.append(address)
        if self._nodes[address].stopped.is_set():
            raise Disconnected(f"nothing listens on {address}")
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._nodes[address].front.serve_stream, theirs)
        return MemoryStream(ours)

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Let the time pass in small steps until a condition holds."""
        for _ in range(_MOST_STEPS):
            await self.clock.advance(ms=_STEP_MS)
            if is_done():
                return
        raise AssertionError("the condition never held")

    async def result(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return what a call returns, while the time passes."""
        results: list[Any] = []

        async def run() -> None:
            results.append(await call())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await self.until(lambda: bool(results))
        return results[0]
