"""A long run without faults: ``make soak HOURS=1``. It watches the brokers and prints a table.

The load is that of the stress test, on brokers that share a MariaDB. Each ten seconds it reads the
memory, descriptors and disk of each broker, the disk of the database, how late messages come, and
how much of the processors other programs used (``other_work.py``). A line of the table has the
highest figures of a minute. At the end the promises are checked too.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import trio

import escapement
from escapement.broker.limits import DEFAULT_LIMITS
from stress.cluster import BUNDLES, Cluster, cluster_of
from stress.other_work import CROWDED, OtherWork
from stress.run import judge, traffic
from stress.stressed import SLOW_SHARE
from stress.watched import Sample, exceeded, growing
from stress.world import World, new_history
from support.database.servers import MysqlServer, private_server
from support.processes.broker import PATIENT

# Longer than in the stress test: consumers in the order of keys fall behind if the machine is busy,
# and then the brokers grow with the backlog.
PAUSE_S: Final = 1.0
TIMED: Final = 20  # messages in a second whose lateness is measured
DELAYS_MS: Final = 5_000, 20_000
SAMPLE_S: Final = 10.0
SAMPLES_OF_A_LINE: Final = 6
MIB: Final = 1 << 20
_COLUMNS: Final = ("memory_mib", "descriptors", "disk_mib")


def size_mib(directory: Path) -> float:
    """Return the size of all files below a directory, some of which may vanish meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total / MIB


def percentile(values: list[int], share: float) -> int:
    """Return the smallest value that is not exceeded by this share of the values."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


async def measure(url: str, late_ms: list[int]) -> None:
    """Note how late messages come that nothing delays but their time.

    The clients of the stress test would not do: they wait for commits while messages arrive. The
    delays are longer than a commit takes, also on a busy disk.
    """
    async with escapement.connect(url, settings=PATIENT) as client, trio.open_nursery() as nursery:
        producer = await client.producer("timed")

        async def publish() -> None:
            while True:
                delays = np.random.default_rng().integers(*DELAYS_MS, TIMED)
                await producer.send_many([b"t"] * TIMED, delay=delays)
                await trio.sleep(1)

        async with client.consumer("timed", "t", permits=1_000) as inbox:
            nursery.start_soon(publish)
            async for batch in inbox.batches():
                late_ms += (time.time_ns() // 1_000_000 - batch.due_ms[~batch.redelivered]).tolist()
                await inbox.ack(batch.offsets)


async def divide(cluster: Cluster) -> None:
    """Give each node a share: with so few bundles, the hash may give all of them to one node."""
    async with escapement.connect(cluster.url, settings=PATIENT) as client:
        while len((await client.admin("cluster.status"))["nodes"]) < len(cluster.nodes):  # noqa: ASYNC110 (in the brokers)
            await trio.sleep(0.1)
        for bundle_id in range(BUNDLES):
            node = cluster.nodes[bundle_id % len(cluster.nodes)].address
            await client.admin("cluster.move", bundle=bundle_id, node=node)


class Watch:
    """The samples of a run, and the table."""

    def __init__(self, cluster: Cluster, database: MysqlServer) -> None:
        self.samples: list[Sample] = []
        self.broken: list[str] = []
        self.late_ms: list[int] = []  # since the last sample
        self.crowded = 0  # samples whose lateness is not judged
        self._other_work = OtherWork()
        self._cluster = cluster
        self._database = database

    async def run(self, seconds: float) -> None:
        """Take samples until the time is over."""
        names = " ".join(f"| {node.name}: MiB, fds, disk MiB " for node in self._cluster.nodes)
        print(
            f"minute {names}| database MiB | late p50, p99, max ms | other work % | delivered",
            flush=True,
        )
        minute_ms: list[int] = []
        shares: list[float] = []
        for number in range(1, math.ceil(seconds / SAMPLE_S) + 1):
            await trio.sleep(SAMPLE_S)
            gc.freeze()  # the history grows, and a collection of it would stop all clients
            late_ms = self.late_ms.copy()
            self.late_ms.clear()
            minute_ms += late_ms
            sample = await trio.to_thread.run_sync(self._sample)
            shares.append(self._other_work.share())
            if shares[-1] > CROWDED:
                self._crowd()
            elif late_ms:
                sample["", "late_p99_ms"] = percentile(late_ms, 0.99)
            self.samples.append(sample)
            self.broken += exceeded(sample)
            if number % SAMPLES_OF_A_LINE == 0:
                self._print(number // SAMPLES_OF_A_LINE, minute_ms, max(shares))
                minute_ms, shares = [], []
        self.broken += growing(self.samples)
        if self.crowded > len(self.samples) / 2:
            self.broken.append("crowded: lateness was not judged in most of the time")

    def _crowd(self) -> None:
        """Note that other work may have delayed messages and acknowledgements."""
        self.crowded += 1
        now_s = self._cluster.history.now_s()
        self._cluster.history.trouble(now_s - SAMPLE_S, now_s)

    def _sample(self) -> Sample:
        sample: Sample = {("", "database_mib"): size_mib(self._database.home / "data")}
        for node in self._cluster.nodes:
            name, pid = node.name, node.broker.process.pid
            sample[name, "memory_mib"] = node.broker.rss_bytes() / MIB
            sample[name, "descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
            sample[name, "disk_mib"] = size_mib(node.broker.data)
        return sample

    def _print(self, minute: int, late_ms: list[int], other_work: float) -> None:
        latest = self.samples[-SAMPLES_OF_A_LINE:]

        def most(whose: str, kind: str) -> int:
            return round(max(one.get((whose, kind), 0) for one in latest))

        parts = [f"{minute:6}"]
        for node in self._cluster.nodes:
            parts.append(", ".join(str(most(node.name, kind)) for kind in _COLUMNS))
        parts.append(str(most("", "database_mib")))
        late = [percentile(late_ms, share) for share in (0.5, 0.99, 1)] if late_ms else []
        parts.append(", ".join(map(str, late)))
        parts.append(f"{other_work:.0%}")
        parts.append(str(self._cluster.history.counts["delivered"]))
        print(" | ".join(parts), flush=True)


def soak(hours: float, brokers: int, seed: int) -> int:
    """Run the load; return the number of broken limits and promises."""
    directory = Path(tempfile.mkdtemp(prefix="escapement-soak-"))
    print(f"{brokers} brokers, seed {seed}, {hours:g} hours, in {directory}", flush=True)
    chance, history = random.Random(seed), new_history()
    with (
        private_server() as database,
        cluster_of(
            brokers, directory, database, history, chance, DEFAULT_LIMITS.lease_ms
        ) as cluster,
    ):
        cluster.with_failpoints = False
        os.environ[SLOW_SHARE] = "0"  # of the brokers, which have no faults at all
        world = World(cluster.url, chance, history, publish_pause_s=PAUSE_S)
        watch = Watch(cluster, database)

        async def all_of_it() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.run)
                await cluster.until_served()
                await divide(cluster)
                nursery.start_soon(measure, cluster.url, watch.late_ms)
                await traffic(world, partial(watch.run, hours * 3_600), reports=False)
                nursery.cancel_scope.cancel()

        trio.run(all_of_it)
        if history.counts["starts"] != brokers:
            watch.broken.append(f"ended: {history.counts['starts']} starts of {brokers} brokers")
        cluster.stop()
    print(f"{watch.crowded} of {len(watch.samples)} samples had much other work beside them")
    for line in watch.broken[:20]:
        print(f"FAILED: {line}")
    return len(watch.broken) + judge(world, (), directory, shows_all=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the options of the command line; return 1 if something was broken."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="of traffic (default: 1)")
    parser.add_argument("--brokers", type=int, default=2, help="that share the database")
    parser.add_argument("--seed", type=int, help="of the clients (default: random)")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    return int(soak(options.hours, options.brokers, seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
