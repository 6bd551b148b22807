"""Kills, pauses, cuts and outages of a cluster, one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from typing import Final

import trio

from escapement.failpoints import POINTS
from stress.cluster import LEASE_MS, SELDOM, Cluster, Node
from stress.troubles import CUT_OFF_S, in_rounds
from support.database.servers import MysqlServer
from support.faults.damaged_bytes import flip_a_bit
from support.processes.broker import STOP_TIMEOUT_S

LEASE_S: Final = LEASE_MS / 1000
# How long a broker that is to be killed may work until it reaches its failpoint.
_DIES_S: Final = 2.0
# So many of the kills are followed by another one while bundles move or brokers start.
_AGAIN_SHARE: Final = 0.3
KILL: Final = "kill of the owner"
# The others, which a run may leave out.
OTHERS: Final = (
    "SIGSTOP for three leases",
    "database killed",
    "database frozen",
    "way to the database cut",
    "flipped bits",
    "data directory deleted",
    "full disk",
    "rolling restart",
    "all killed",
)


class ClusterTroubles:
    """A trouble after the other, each with the node that serves."""

    def __init__(
        self, cluster: Cluster, database: MysqlServer, once: Sequence[str], others: Sequence[str]
    ) -> None:
        """Choose the kinds of troubles that come once, and those that come between kills then."""
        self._cluster = cluster
        self._database = database
        self._once = once
        self._others = others
        self._do: dict[str, Callable[[Node], Awaitable[None]]] = {
            KILL: self._kill,
            "SIGSTOP for three leases": self._pause,
            "database killed": self._kill_database,
            "database frozen": self._freeze_database,
            "way to the database cut": self._cut,
            "flipped bits": self._flip,
            "data directory deleted": self._delete,
            "full disk": self._fill_disk,
            "rolling restart": self._roll,
            "all killed": self._kill_all,
        }
        assert {KILL, *OTHERS} == self._do.keys()

    @property
    def kinds(self) -> list[str]:
        """The kinds of troubles of this run, by the names under which the history counts them."""
        killed = [f"killed at {point}" for point in POINTS if point not in SELDOM]
        return [KILL, *{**dict.fromkeys(self._once), **dict.fromkeys(self._others)}, *killed]

    async def run(self, kills: int) -> None:
        """Cause some troubles once, then any, until this many brokers were killed.

        Before the end, a broker was also killed at each failpoint.
        """
        cluster = self._cluster
        for kind in self._once:
            await self._cause(kind)
        coming = in_rounds(KILL, self._others, cluster.chance) if self._others else repeat(KILL)
        while cluster.kills < kills or cluster.unshown:
            await self._cause(next(coming))
        cluster.with_failpoints = False

    async def _cause(self, kind: str) -> None:
        """Let a broker serve for a while, cause a trouble, and wait until a broker serves."""
        cluster, history = self._cluster, self._cluster.history
        node = await cluster.until_served()
        await trio.sleep(cluster.chance.uniform(0, 1))
        history.counts[kind] += 1
        began_s = history.now_s()
        await self._do[kind](node)
        await cluster.until_served()
        if kind != KILL:  # the cluster notes the end of a broker
            history.trouble(began_s, history.now_s() + CUT_OFF_S)

    async def _kill(self, node: Node) -> None:
        """Kill the owner, unless it soon dies at its failpoint. A clean stop reaches one of them.

        Sometimes kill another broker before all is well again.
        """
        # It may have died meanwhile. SIGTERM stops its successor cleanly only once that serves.
        if node.serves and node.broker.failpoints.startswith("hand_over"):
            node.broker.process.terminate()
        if not await _ends(node, _DIES_S):
            self._cluster.kill(node)
        if self._cluster.chance.random() < _AGAIN_SHARE:
            await trio.sleep(self._cluster.chance.uniform(0, 1.5) * LEASE_S)
            self._cluster.kill(self._cluster.chance.choice(self._cluster.nodes))

    async def _kill_all(self, node: Node) -> None:
        for one in self._cluster.nodes:
            self._cluster.kill(one)

    async def _pause(self, node: Node) -> None:
        """Stop the owner for three leases. Another one takes over, and the owner comes back."""
        node.broker.pause()
        node.is_stopped = True
        await trio.sleep(3 * LEASE_S)
        if node.broker.running:
            node.broker.resume()
        node.is_stopped = False

    async def _cut(self, node: Node) -> None:
        """Cut the owner's way to the database, for longer than a lease or not."""
        node.way.cut()
        await trio.sleep(self._cluster.chance.uniform(0.2, 3) * LEASE_S)
        node.way.mend()

    async def _kill_database(self, node: Node) -> None:
        await trio.to_thread.run_sync(self._database.kill)
        await trio.sleep(self._cluster.chance.uniform(0, 1.5) * LEASE_S)
        await trio.to_thread.run_sync(self._database.restore)

    async def _freeze_database(self, node: Node) -> None:
        await trio.to_thread.run_sync(self._database.pause)
        await trio.sleep(self._cluster.chance.uniform(0, 1.5) * LEASE_S)
        await trio.to_thread.run_sync(self._database.restore)

    async def _flip(self, node: Node) -> None:
        for index in node.broker.data.glob("index*"):
            flip_a_bit(index, self._cluster.chance)

    async def _delete(self, node: Node) -> None:
        """Kill the owner and delete its directory, with its identity."""
        self._cluster.kill(node)
        shutil.rmtree(node.broker.data)
        node.broker.data.mkdir()

    async def _fill_disk(self, node: Node) -> None:
        """Restart the owner. Its second checkpoint or so meets a full disk."""
        self._cluster.kill(node)
        node.next_failpoint = f"before_fsync=error@{self._cluster.chance.randint(1, 3)}"

    async def _roll(self, node: Node) -> None:
        """Stop each broker cleanly; it starts again, and the next follows."""
        for one in self._cluster.nodes:
            if one.serves:
                one.broker.process.terminate()
                if not await _ends(one, STOP_TIMEOUT_S):
                    self._cluster.history.surprises.append(f"ended: {one.name} ignored SIGTERM")
                await self._cluster.until_served()


async def _ends(node: Node, within_s: float) -> bool:
    """Return whether the process of a node ends so soon. The cluster then starts another one."""
    process = node.broker.process
    with trio.move_on_after(within_s):
        while process.poll() is None:  # noqa: ASYNC110 (a process)
            await trio.sleep(0.02)
    return process.poll() is not None
