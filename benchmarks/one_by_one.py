"""The latency of single publishes, cancels and reschedules, one after the other.

    python benchmarks/one_by_one.py [--log URL | --sqlite] [--beside CHECKOUT] [--each 300]

Publishes batches of a thousand messages of 100 bytes that are due in a day. Then one client
publishes, cancels and reschedules single messages, each call after the answer to the one before.
``--beside`` starts a second broker, from another checkout of this repository, on a log of its
own. The calls then alternate between the brokers, so that other load on the machine affects both.
Without a URL it starts a private MariaDB or MySQL server.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trio
from figures import databases

from escapement.bench.host import Host, host
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.message import Blobs, MessageBatch, MessageId, Times

TOPIC = "bench/one-by-one/x"
BATCH = 1_000
DAY_MS = 86_400_000
# The time in which the broker writes a checkpoint after publishing.
CHECKPOINT_S = 6


class Side:
    """A broker, its client, and the latencies of the client's calls."""

    def __init__(self, name: str, on: Host, broker: Broker) -> None:
        self.name = name
        self.on = on
        self.broker = broker
        self.took_ms: list[float] = []

    async def call(self, what: Callable[[Broker], Awaitable[object]]) -> None:
        began_s = trio.current_time()
        await what(self.broker)
        self.took_ms.append(1e3 * (trio.current_time() - began_s))


@asynccontextmanager
async def side(name: str, checkout: Path | None, log: str | None) -> AsyncIterator[Side]:
    """Start a broker from ``checkout``, or from this checkout if it is None, with a topic."""
    earlier = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as data:
        if checkout is not None:
            os.environ["PYTHONPATH"] = str(checkout / "src")
        async with host(None, Path(data), log) as on:
            if checkout is not None:
                os.environ.pop("PYTHONPATH")
                if earlier is not None:
                    os.environ["PYTHONPATH"] = earlier
            async with connect(on.url) as broker:
                await broker.admin("topics.create", topic=TOPIC)
                await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
                yield Side(name, on, broker)


async def publish(broker: Broker, messages: int) -> None:
    """Publish all messages, batch after batch."""
    batch = MessageBatch(Blobs.of([b"." * 100] * BATCH))
    async with await broker.producer(TOPIC) as producer:
        for _ in range(messages // BATCH):
            await producer.send_batch(batch, Times(np.full(BATCH, DAY_MS)))


async def one_by_one(
    sides: list[Side], what: str, each: int, call: Callable[[Broker, int], Awaitable[object]]
) -> None:
    """Make ``each`` calls on every side, in turn, and print their latencies."""
    before_s = [one.on.cpu_seconds() or 0.0 for one in sides]
    for one in sides:
        one.took_ms.clear()
    for at in range(each):
        for one in sides:
            await one.call(lambda broker, at=at: call(broker, at))  # type: ignore[misc]
    for one, spent_s in zip(sides, before_s, strict=True):
        p50, p90, p99 = np.percentile(one.took_ms, [50, 90, 99])
        work_ms = 1e3 * ((one.on.cpu_seconds() or 0.0) - spent_s) / each
        print(
            f"{what}, {one.name}: p50 {p50:.1f}, p90 {p90:.1f}, p99 {p99:.1f} ms;"
            f" {work_ms:.1f} ms of the broker's processor time",
            flush=True,
        )


async def measure(checkouts: list[Path | None], logs: list[str | None], options: object) -> None:
    """Publish all messages to each broker. Then measure publishes, cancels and reschedules."""
    assert isinstance(options, argparse.Namespace)
    messages, each = options.messages, options.each
    offsets = np.random.default_rng(1).permutation(messages)[: 2 * each].tolist()
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for checkout, log in zip(checkouts, logs, strict=True):
            name = "here" if checkout is None else "beside"
            sides.append(await stack.enter_async_context(side(name, checkout, log)))
        for one in sides:
            await publish(one.broker, messages)
        await trio.sleep(CHECKPOINT_S)  # afterwards most pending messages are on disk
        producers = {
            one.broker: await stack.enter_async_context(await one.broker.producer(TOPIC))
            for one in sides
        }
        await one_by_one(
            sides, "publish", each, lambda broker, at: producers[broker].send(b"x", delay="1d")
        )
        await one_by_one(
            sides,
            "cancel",
            each,
            lambda broker, at: broker.cancel(MessageId(TOPIC, offsets[at])),
        )
        await one_by_one(
            sides,
            "reschedule",
            each,
            lambda broker, at: broker.reschedule(MessageId(TOPIC, offsets[each + at]), delay="2d"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", help="URL of a database to use instead of a private server")
    parser.add_argument("--sqlite", action="store_true", help="use SQLite")
    parser.add_argument(
        "--beside", type=Path, help="another checkout, called in turns with this one"
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=300, help="number of calls of each kind")
    options = parser.parse_args()
    if options.log and options.beside:
        parser.error("two brokers cannot share a log: leave out --log")
    checkouts = [None] if options.beside is None else [None, options.beside.absolute()]
    with databases(options) as database, contextlib.ExitStack() as stack:
        logs = [stack.enter_context(database()) for _ in checkouts]
        trio.run(measure, checkouts, logs, options)


if __name__ == "__main__":
    main()
