"""Several brokers on one database: processes that are started again whenever they end.

Each *node* has a data directory and a proxy to the database of its own. The node that serves is
found by clients behind one more proxy. A broker that is refused, because another one has the lease,
ends and is started again.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import trio

from escapement.failpoints import POINTS
from stress.history import History, now_ms
from stress.stressed import LIMITS, StressedBroker
from support.database.servers import MysqlServer
from support.faults.tcp_proxy import LossyProxy, lossy_proxy
from support.processes.broker import until

LEASE_MS: Final = 2_500
# Pauses before a refused broker, and the longest before a killed one, is started again. Some come
# back before their lease has expired, and others after another broker has taken it.
_REFUSED_S: Final = 1.0
_KILLED_S: Final = 1.5 * LEASE_MS / 1000
# A node may be killed at a failpoint in this pass at the latest.
_LATEST_PASS: Final = {"before_commit": 80, "after_commit": 80, "ack_commit": 40, "reply": 150}
# Failpoints that a broker reaches only after minutes.
SELDOM: Final = ("relocation", "generation_drop")
# Once a run has shown all failpoints, this share of the starts draws one.
_FAILPOINT_SHARE: Final = 0.6
# The reasons for which a broker may end by itself: another one has the lease, or took it; the
# database does not answer at a start, or lost nothing and came back; a disk is full.
_MAY_END_BY: Final = ("lease_held", "lease_lost", "storage_unavailable", "outcome_unknown")


class Node:
    """One broker process of the cluster, and its way to the database."""

    def __init__(self, name: str, directory: Path, database: MysqlServer, way: LossyProxy) -> None:
        self.name = name
        self.way = way
        url = database.url("stress", port=way.port)
        self.broker = StressedBroker(directory / name, url, limits={**LIMITS, "lease_ms": LEASE_MS})
        self.serves = False  # it has been ready since its last start
        self.is_stopped = False  # by SIGSTOP
        self.ended = True  # its last end has been noted
        self.next_failpoint = ""  # of the next start; "" to draw one
        self._start_at_s = 0.0

    @property
    def why(self) -> str:
        """The error code with which the process ended; "" if it named none."""
        found = re.findall(r"^error: (\w+):", self.broker.complaints(), re.MULTILINE)
        return found[-1] if found and not self.broker.running else ""

    def start_when_due(self, draw_failpoint: Callable[[], str]) -> bool:
        """Start the process unless its pause lasts; return whether it was started."""
        if time.monotonic() < self._start_at_s:
            return False
        self.broker.failpoints = self.next_failpoint or draw_failpoint()
        self.next_failpoint = ""
        self.broker.launch()
        self.serves = self.is_stopped = self.ended = False
        return True

    def pause(self, seconds: float) -> None:
        """Do not start the process within this time."""
        self._start_at_s = time.monotonic() + seconds


class Cluster:
    """The nodes, and the task that starts them again."""

    def __init__(
        self, nodes: list[Node], front: LossyProxy, history: History, chance: random.Random
    ) -> None:
        self.nodes = nodes
        self.history = history
        self.chance = chance
        self.with_failpoints = True  # starts draw failpoints
        self.unshown = sorted(POINTS.keys() - set(SELDOM))  # no broker was killed there yet
        self._front = front
        self._killed: set[Node] = set()  # from outside, and not yet noted
        self._interrupted_ms = 0  # a serving broker ended then, and none has served since

    @property
    def url(self) -> str:
        return f"escapement://127.0.0.1:{self._front.port}"

    @property
    def owner(self) -> Node | None:
        """The node that began to serve last, unless it has ended or is stopped."""
        for node in self.nodes:
            if node.broker.port == self._front.target_port and node.serves and not node.is_stopped:
                return node
        return None

    @property
    def kills(self) -> int:
        """How many brokers were killed, by a signal from outside or at a failpoint."""
        return self.history.counts["SIGKILL"] + self.history.counts["killed at a failpoint"]

    async def run(self) -> None:
        """Start nodes whenever they have ended, and note why they did."""
        while True:
            for node in self.nodes:
                self._look_at(node)
            await trio.sleep(0.03)

    async def until_served(self) -> Node:
        """Wait until a node serves, and return it."""
        await until(lambda: self.owner is not None)
        assert self.owner is not None
        return self.owner

    def _look_at(self, node: Node) -> None:
        if not node.broker.running:
            if not node.ended:
                self._note_end(node)
            if node.start_when_due(self._draw_failpoint):
                self.history.counts["starts"] += 1
        elif not node.serves and node.broker.ready():
            node.serves = True
            self.history.counts["take-overs"] += self._front.target_port != node.broker.port
            self._front.target_port = node.broker.port
            if self._interrupted_ms:
                self.history.troubles.append((self._interrupted_ms, now_ms()))
                self._interrupted_ms = 0

    def _note_end(self, node: Node) -> None:
        node.ended, code, why = True, node.broker.process.returncode, node.why
        if node is self.owner and not self._interrupted_ms:
            self._interrupted_ms = now_ms() - 100  # it may have ended since the last look
        node.serves = False
        if code == -signal.SIGKILL:
            node.pause(self.chance.uniform(0, _KILLED_S))
            point = node.broker.failpoints.partition("=")[0]
            if node in self._killed:
                self._killed.remove(node)
            else:
                self.history.counts["killed at a failpoint"] += 1
                self.history.counts[f"killed at {point}"] += 1
                self.unshown = [one for one in self.unshown if one != point]
        elif code == 0:
            node.pause(0)
        else:
            node.pause(_REFUSED_S)
            self.history.counts[f"ended by {why}"] += 1
            if why not in _MAY_END_BY and "=error" not in node.broker.failpoints:
                said = node.broker.complaints()[-2_000:]
                self.history.faults.append(f"ended: {node.name} ended with code {code}: {said}")

    def stop(self) -> None:
        """Stop all brokers cleanly; note one that does not end so."""
        for node in self.nodes:
            if node.broker.running and (code := node.broker.stop()) and node.serves:
                self.history.faults.append(f"ended: SIGTERM ended {node.name} with code {code}")

    def kill(self, node: Node) -> None:
        """Send SIGKILL to a node."""
        if node.broker.running:
            self._killed.add(node)
            self.history.counts["SIGKILL"] += 1
            node.broker.kill()

    def _draw_failpoint(self) -> str:
        """Return the failpoint of a start. The first of all starts migrates the database."""
        if not self.with_failpoints:
            return ""
        if "migration" in self.unshown:
            return f"migration=kill@{self.chance.randint(1, 40)}"
        if not self.unshown and self.chance.random() >= _FAILPOINT_SHARE:
            return ""
        point = self.chance.choice(self.unshown or list(POINTS))
        return f"{point}=kill@{self.chance.randint(1, _LATEST_PASS.get(point, 3))}"


@contextmanager
def cluster_of(
    count: int,
    directory: Path,
    database: MysqlServer,
    history: History,
    chance: random.Random,
) -> Iterator[Cluster]:
    """Provide a cluster of stopped nodes on a new database, and end all of it afterwards."""
    database.admin("CREATE DATABASE stress CHARACTER SET utf8mb4")
    with ExitStack() as stack:
        front = stack.enter_context(lossy_proxy(0))
        nodes = []
        for number in range(count):
            way = stack.enter_context(lossy_proxy(database.port))
            nodes.append(Node(f"node-{number}", directory, database, way))
            stack.callback(nodes[-1].broker.remove)
        yield Cluster(nodes, front, history, chance)
        database.restore()
