"""Several brokers on one database: processes that are started again whenever they end.

Each *node* has a data directory of its own and reaches the database through a proxy of its own. The
bundles of topics move between nodes when those die, hang, or cannot reach the database.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import trio

from escapement.errors import EscapementError
from escapement.failpoints import POINTS
from escapement.storage.bundles import set_bundle_count
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.open import open_engine
from escapement.storage.ownership import LiveBroker, Ownership, look_at_all
from escapement.storage.schema import migrate
from histories.history import History
from stress.stressed import LIMITS, StressedBroker
from stress.troubles import CUT_OFF_S
from support.database.servers import MysqlServer
from support.faults.tcp_proxy import LossyProxy, lossy_proxy
from support.processes.broker import until

LEASE_MS: Final = 2_000
BUNDLES: Final = 2
DATABASE: Final = "stress"
# The longest pause before a killed broker is started again. Some come back before their bundles are
# free, and others after other nodes have taken them.
_KILLED_S: Final = 1.2 * LEASE_MS / 1000
# Before a broker is started again that could not start.
_REFUSED_S: Final = 0.5
_LOOK_S: Final = 0.1
# Failpoints that a broker reaches only after minutes, or only on a new database.
SELDOM: Final = ("relocation", "generation_drop", "migration")
# A node may be killed at a failpoint in this pass at the latest.
_LATEST_PASS: Final = {"before_commit": 80, "after_commit": 80, "ack_commit": 40, "reply": 150}
# Once a run has shown all failpoints, this share of the starts draws one.
_FAILPOINT_SHARE: Final = 0.6
# The reasons for which a broker may end by itself: at a start the database does not answer, or the
# killed process with its identity, or with its address, seems to be alive.
_MAY_END_BY: Final = ("address_taken", "lease_held", "storage_unavailable", "outcome_unknown")


class Node:
    """One broker process of the cluster, and its way to the database."""

    def __init__(
        self,
        name: str,
        directory: Path,
        database: MysqlServer,
        way: LossyProxy,
        lease_ms: int,
        shop: str,
    ) -> None:
        self.name = name
        self.way = way
        shops = [database.url(shop, port=way.port)] if shop else []
        self.broker = StressedBroker(
            directory / name,
            database.url(DATABASE, port=way.port),
            limits={**LIMITS, "lease_ms": lease_ms},
            tables=shops,
            outboxes=shops,
        )
        self.is_stopped = False  # by SIGSTOP
        self.ended = True  # its last end has been noted
        self.next_failpoint = ""  # of the next start; "" to draw one
        self._start_at_s = 0.0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.broker.port}"

    @property
    def serves(self) -> bool:
        """Whether the process runs and has accepted connections."""
        return self.broker.running and not self.is_stopped and self.broker.ready()

    @property
    def why(self) -> str:
        """The error code with which the process ended; "" if it named none."""
        found = re.findall(r"^error: (\w+):", self.broker.complaints(), re.MULTILINE)
        return found[-1] if found else ""

    def expired_ms(self) -> list[int]:
        """Return when the process renewed an expired lease that no other process had taken.

        It was too slow, on a busy machine, and has ended the connections of consumers.
        """
        lines = self.broker.lines("the expired lease is renewed")
        times = [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f") for line in lines]
        return [int(one.timestamp() * 1_000) for one in times]

    def start_when_due(self, draw_failpoint: Callable[[], str]) -> bool:
        """Start the process unless its pause lasts; return whether it was started."""
        if time.monotonic() < self._start_at_s:
            return False
        self.broker.failpoints = self.next_failpoint or draw_failpoint()
        self.next_failpoint = ""
        self.broker.launch()
        self.is_stopped = self.ended = False
        return True

    def pause(self, seconds: float) -> None:
        """Do not start the process within this time."""
        self._start_at_s = time.monotonic() + seconds


class Cluster:
    """The nodes, the owners of the bundles, and the tasks that start nodes and look at owners."""

    def __init__(
        self,
        nodes: list[Node],
        engine: Engine,
        history: History,
        chance: random.Random,
        lease_ms: int,
    ) -> None:
        self.nodes = nodes
        self.history = history
        self.chance = chance
        self.with_failpoints = True  # starts draw failpoints
        self.unshown = sorted(POINTS.keys() - set(SELDOM))  # no broker was killed there yet
        self._engine = engine
        self._lease_ms = lease_ms
        self._killed: set[Node] = set()  # from outside, and not yet noted
        self._bundles: dict[int, Ownership] = {}
        self._addresses: dict[tuple[str, str], str] = {}  # of processes, by owner and incarnation
        self._looked_s = 0.0  # the last look that succeeded began then

    @property
    def url(self) -> str:
        return "escapement://" + ",".join(node.address for node in self.nodes)

    @property
    def kills(self) -> int:
        """How many brokers were killed, by a signal from outside or at a failpoint."""
        return self.history.counts["SIGKILL"] + self.history.counts["killed at a failpoint"]

    def owner_of(self, bundle_id: int) -> Node | None:
        """Return the node that serves a bundle, as of the last look."""
        row = self._bundles.get(bundle_id)
        if row is None or row.free:
            return None
        address = self._addresses.get((row.owner_id, row.incarnation))
        return next((one for one in self.nodes if one.address == address and one.serves), None)

    async def until_served(self) -> Node:
        """Wait until each bundle has an owner that runs. Return one of the owners, at random."""
        began_s = self.history.now_s()
        bundles = range(BUNDLES)
        await until(
            lambda: self._looked_s > began_s and all(map(self.owner_of, bundles)), timeout_s=120
        )
        owner = self.owner_of(self.chance.choice(bundles))
        assert owner is not None
        return owner

    async def run(self) -> None:
        """Start nodes whenever they have ended, and look at the owners."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again)
            while True:
                for node in self.nodes:
                    if node.broker.running:
                        continue
                    if not node.ended:
                        self._note_end(node)
                    self.history.counts["starts"] += node.start_when_due(self._draw_failpoint)
                await trio.sleep(0.03)

    async def _look_again(self) -> None:
        while True:
            began_s = self.history.now_s()
            try:
                brokers, bundles = await trio.to_thread.run_sync(self._look)
            except (EscapementError, TransactionAborted):
                brokers, bundles = {}, self._bundles
            before_s = self._looked_s or began_s
            for one in brokers.values():
                self._addresses[one.owner_id, one.incarnation] = one.address
            for bundle_id, row in bundles.items():
                before = self._bundles.get(bundle_id, row)
                if taken := row.epoch - before.epoch:
                    self.history.counts["take-overs"] += row.owner_id != before.owner_id
                    self.history.trouble(before_s, self.history.now_s() + CUT_OFF_S, taken)
            if brokers:
                self._bundles, self._looked_s = bundles, began_s
            await trio.sleep(_LOOK_S)

    def _look(self) -> tuple[dict[str, LiveBroker], dict[int, Ownership]]:
        with closing(self._engine.connect()) as connection:
            return look_at_all(self._engine, connection)

    def _note_end(self, node: Node) -> None:
        node.ended, code, counts = True, node.broker.process.returncode, self.history.counts
        if code == -signal.SIGKILL:
            node.pause(self.chance.uniform(0, _KILLED_S))
            if node in self._killed:
                self._killed.remove(node)
                return
            point = node.broker.failpoints.partition("=")[0]
            counts["killed at a failpoint"] += 1
            counts[f"killed at {point}"] += 1
            self.unshown = [one for one in self.unshown if one != point]
        elif code:
            node.pause(_REFUSED_S)
            counts[f"ended by {node.why}"] += 1
            if node.why not in _MAY_END_BY and "=error" not in node.broker.failpoints:
                said = node.broker.complaints()[-2_000:]
                self.history.surprises.append(f"ended: {node.name} ended with code {code}: {said}")

    def stop(self) -> None:
        """Stop all brokers cleanly; note one that does not end so, and leases that expired."""
        for node in self.nodes:
            code = node.broker.stop() if node.serves else 0
            if code and not (code == -signal.SIGKILL and node.broker.failpoints):
                self.history.surprises.append(f"ended: SIGTERM ended {node.name} with code {code}")
            for at_s in map(self.history.seconds, node.expired_ms()):
                self.history.trouble(at_s - self._lease_ms / 500, at_s + CUT_OFF_S)

    def kill(self, node: Node) -> None:
        """Send SIGKILL to a node."""
        if node.broker.running:
            self._killed.add(node)
            self.history.counts["SIGKILL"] += 1
            node.broker.kill()

    def _draw_failpoint(self) -> str:
        """Return the failpoint of a start."""
        if not self.with_failpoints:
            return ""
        if not self.unshown and self.chance.random() >= _FAILPOINT_SHARE:
            return ""
        point = self.chance.choice(self.unshown or sorted(POINTS))
        return f"{point}=kill@{self.chance.randint(1, _LATEST_PASS.get(point, 3))}"


@contextmanager
def cluster_of(
    count: int,
    directory: Path,
    database: MysqlServer,
    history: History,
    chance: random.Random,
    lease_ms: int = LEASE_MS,
    shop: str = "",
) -> Iterator[Cluster]:
    """Provide a cluster of stopped nodes on a new database, and end all of it afterwards.

    Args:
      shop: the database of an application that the nodes serve; "": none.
    """
    database.admin(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
    with ExitStack() as stack:
        engine = open_engine(database.url(DATABASE), directory)
        stack.callback(engine.close)
        migrate(engine)
        set_bundle_count(engine, BUNDLES)
        nodes = []
        for number in range(count):
            way = stack.enter_context(lossy_proxy(database.port))
            nodes.append(Node(f"node-{number}", directory, database, way, lease_ms, shop))
            stack.callback(nodes[-1].broker.remove)
        yield Cluster(nodes, engine, history, chance, lease_ms)
        database.restore()
