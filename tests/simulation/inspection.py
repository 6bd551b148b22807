"""The end of a run: the owners of the bundles, and ``escapement check``.

When nothing fails any more, every bundle comes to its home. When all processes have stopped,
``escapement check`` has no finding in the database and on any disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final

import trio

from escapement.broker.node.balancer import home_of, wanting
from escapement.check.check import Check
from escapement.errors import Conflict
from escapement.storage.ownership import look_at_all
from simulation.clocks import HOUR_S
from simulation.database import SimulatedEngine
from simulation.world import World

# Healthy time until every bundle is at its home: a lease may expire first, then a bundle is taken,
# stays where it is for some time, and moves after others.
_BALANCE_HOURS: Final = 48


async def unbalanced(world: World) -> list[str]:
    """Wait until each bundle is at its home, drain its owner, and wait again.

    Returns:
      A line for each bundle that stays elsewhere.
    """
    found = await _settled(world)
    if not found:
        owner = max(world.hosts, key=lambda host: len(host.brokers))
        with suppress(Conflict):  # no other node wants bundles
            async with world.connect() as client:
                await client.admin("cluster.drain", node=owner.identity.owner_id)
        found = await _settled(world)
    return found


async def _settled(world: World) -> list[str]:
    found: list[str] = []
    for _ in range(_BALANCE_HOURS):
        found = list(_away(world))
        if not found:
            break
        await trio.sleep(HOUR_S)
    return found


def _away(world: World) -> Iterator[str]:
    engine = SimulatedEngine(world.server)
    with closing(engine.connect()) as connection:
        nodes, bundles = look_at_all(engine, connection)
    wanted = wanting({node_id: node.draining for node_id, node in nodes.items()})
    serving = {
        broker.bundle_id: host.identity.owner_id for host in world.hosts for broker in host.brokers
    }
    for bundle_id, row in bundles.items():
        home = home_of(bundle_id, wanted, row.pinned_to)
        if row.free or row.owner_id != home or serving.get(bundle_id) != home:
            yield f"balance: {row} is not at its home {home}, of {wanted}"


async def findings(world: World) -> list[str]:
    """Stop all processes, and return what ``escapement check`` finds."""
    for host in world.hosts:
        if host.is_up:
            await host.stop()
    engine = SimulatedEngine(world.server)
    return [
        f"check: {host.name}: {found.check}: {found.text}"
        for host in world.hosts
        for found in Check(engine, host.disk.root).run()
        if found.is_bad
    ]
