"""Measure several brokers on one database: their throughput together, and a failover.

    python benchmarks/nodes.py [--nodes 1 2 3] [--bundles 12] [--seconds 10]
    python benchmarks/nodes.py --failover [--pending 1000000]

All processes run on this machine, with a private MariaDB. Throughput: two processes have a producer
for each of twelve topics, one in each bundle. They send batches of 1000 messages of 100 bytes, with
at most 64 batches of each process unconfirmed. The rate counts confirmed messages. Failover: the
owner of a topic with overdue and later messages is killed (kill -9). The time is from the kill
until a consumer has the first overdue message from the other node, which has no index of the topic.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import escapement
from escapement.storage.bundles import set_bundle_count
from escapement.storage.engine.open import open_engine
from escapement.storage.schema import migrate
from support.bundle_topics import topic_of_each_bundle
from support.database.servers import private_server
from support.processes.broker import PATIENT, BrokerProcess

BATCH = 1000
IN_FLIGHT_BATCHES = 64
PAYLOAD = b"x" * 100
LEASE_MS = 10_000  # the default
SETTLE_S = 5.0  # until a new node has its share


def main() -> None:
    """Measure, and print a row for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--bundles", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--failover", action="store_true")
    parser.add_argument("--pending", type=int, default=1_000_000)
    options = parser.parse_args()
    if options.failover:
        failover(options)
        return
    rates: dict[int, list[float]] = {count: [] for count in options.nodes}
    for number in range(1, options.rounds + 1):
        for count in options.nodes:
            rates[count].append(throughput(count, options))
            print(f"round {number}: {count} nodes, {rates[count][-1]:,.0f} messages/s", flush=True)
    for count, found in rates.items():
        middle = statistics.median(found)
        print(f"{count} nodes: {middle:,.0f} messages/s ({min(found):,.0f} to {max(found):,.0f})")


@contextmanager
def cluster(nodes: int, bundles: int) -> Iterator[list[BrokerProcess]]:
    """Run nodes on a new database. They start together, so each takes its own share at once."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="escapement-nodes-")))
        server = stack.enter_context(private_server("--max-connections=1000"))
        server.admin("CREATE DATABASE escapement CHARACTER SET utf8mb4")
        url = server.url("escapement")
        engine = open_engine(url, home)
        migrate(engine)
        if bundles > 1:
            set_bundle_count(engine, bundles)
        engine.close()
        found = [BrokerProcess(home / f"node{n}", url) for n in range(nodes)]
        for one in found:
            stack.callback(one.remove)
            one.launch()
        while not all(one.ready() for one in found):
            time.sleep(0.05)
        yield found


def url_of(nodes: list[BrokerProcess]) -> str:
    """Return a URL with the addresses of all nodes."""
    return "escapement://" + ",".join(f"127.0.0.1:{one.port}" for one in nodes)


def throughput(count: int, options: argparse.Namespace) -> float:
    """Return the rate of confirmed messages of all producers together."""
    with cluster(count, options.bundles) as nodes, multiprocessing.Pool(2) as pool:
        time.sleep(SETTLE_S)
        names = topic_of_each_bundle(options.bundles)
        work = [(url_of(nodes), names[part::2], options.seconds) for part in range(2)]
        return sum(pool.starmap(publish, work))


def publish(url: str, names: list[str], seconds: float) -> float:
    """Publish to topics for some seconds; return the confirmed messages a second."""
    return asyncio.run(_publish(url, names, seconds))


async def _publish(url: str, names: list[str], seconds: float) -> float:
    payloads = [PAYLOAD] * BATCH
    confirmed = 0
    async with escapement.connect(url, settings=PATIENT) as client:
        producers = [await client.producer(name) for name in names]
        until_s = time.monotonic() + seconds

        async def send(producer: escapement.Producer) -> None:
            nonlocal confirmed
            while time.monotonic() < until_s:
                await producer.send_many(payloads, delay=timedelta(hours=1))
                confirmed += BATCH

        began_s = time.monotonic()
        in_flight = max(IN_FLIGHT_BATCHES // len(producers), 1)
        await asyncio.gather(*(send(one) for one in producers for _ in range(in_flight)))
        return confirmed / (time.monotonic() - began_s)


def failover(options: argparse.Namespace) -> None:
    """Kill the owner of a topic with many pending messages, and print the time until a delivery."""
    with cluster(1, 1) as (first,):
        trio.run(_fill, first.url, options.pending)
        second = BrokerProcess(first.data.parent / "standby", first._log_url)
        try:
            second.start()
            began_s = time.monotonic()
            first.kill()
            trio.run(_first_delivery, second.url)
            took_s = time.monotonic() - began_s
            bound_s = 1.5 * LEASE_MS / 1000 + 2
            print(
                f"{options.pending:,} pending: the first overdue message after {took_s:.1f} s"
                f" (1.5 leases + 2 s are {bound_s:.0f} s)"
            )
        finally:
            second.remove()


async def _fill(url: str, pending: int) -> None:
    async with escapement.connect(url, settings=PATIENT) as client:
        await client.admin("subscriptions.create", topic="t", subscription="s")
        producer = await client.producer("t")
        sent = 0
        while sent < pending:
            await producer.send_many([PAYLOAD] * 10_000, delay=timedelta(hours=1))
            sent += 10_000
        await producer.send_many([b"overdue"] * 1000, delay=timedelta(seconds=1))


async def _first_delivery(url: str) -> None:
    async with (
        escapement.connect(url, settings=PATIENT) as client,
        client.consumer("t", "s") as inbox,
    ):
        assert (await anext(inbox)).payload == b"overdue"


if __name__ == "__main__":
    main()
