"""How fast the pages of the console answer with much pending, and what they cost the broker.

    python benchmarks/console.py [--log URL] [--pending 10000000] [--topics 10000] [--pairs 5]

Starts a broker, fills topics with pending messages, and starts a console. First it loads each page
several times. Then, in pairs, it puts a steady load on one more topic, once while the console has
no visitors and once while one visitor follows the timeline and another one loads page after page.
It prints how long each page took, how late the messages of the load were, and the share of a core
that the broker used.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx
import numpy as np
import trio

from escapement.bench.filling import create_topics, now_ms
from escapement.bench.measurements.steady import Steady
from escapement.bench.payload import PayloadSize
from escapement.bench.stage import Setting, Stage, stage
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.console.finding.filter import BY_LOOK, OVER
from escapement.errors import Busy
from escapement.message import Times

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tick import loaded

from support.processes.http_server import HttpServerProcess, console_process

HOUR_MS: Final = 3_600_000
MONTH_MS: Final = 30 * 24 * HOUR_MS
# How often each page is loaded, and how long it may take.
LOADS: Final = 20
LIMIT_S: Final = 0.3
# The number of producers that fill topics at the same time.
AT_ONCE: Final = 20
# The default tick of a namespace.
TICK_MS: Final = 10
# The dead letters of one topic, among which the page of a message looks for those of the message.
DEAD_LETTERS: Final = 50_000
# The pause of the visitor between two pages.
VISIT_S: Final = 0.25


async def fill(on: Stage, topics: list[str], pending: int) -> None:
    """Put the same number of pending messages on each topic."""
    each = pending // len(topics)
    payloads = on.setting.payload.batch(on.rng, each)
    left = iter(topics)
    async with connect(on.host.url) as broker, trio.open_nursery() as nursery:
        await create_topics(on, broker, topics, subscription="workers")

        async def send() -> None:
            for topic in left:
                at_ms = now_ms() + HOUR_MS + on.rng.integers(0, MONTH_MS, each)
                async with await broker.producer(topic) as producer:
                    await producer.send_batch(payloads, Times(None, np.sort(at_ms)))

        for _ in range(AT_ONCE):
            nursery.start_soon(send)


async def fail(on: Stage, broker: Broker, topic: str) -> None:
    """Turn messages of a topic into dead letters; acknowledge the first and the second one."""
    policy = {"max_deliveries": 1}
    await broker.admin("subscriptions.create", topic=topic, subscription="s", policy=policy)
    async with await broker.producer(topic) as producer:
        payloads, key = on.setting.payload.batch(on.rng, DEAD_LETTERS), [None, "k"]
        await producer.send_many([b"acknowledged"] * 2, keys=key)
        await producer.send_batch(payloads)
    left = DEAD_LETTERS + 2
    async with broker.consumer(topic, "s", permits=10_000) as inbox:
        while left:
            batch = await inbox.next_batch()
            assert batch is not None
            ids = [message.id for message in batch]
            await inbox.ack([id for id in ids if id.offset < 2])
            await inbox.nack([id for id in ids if id.offset >= 2])
            left -= len(ids)
    counted = 0
    while counted < DEAD_LETTERS:
        counted, after = 0, [0, 0]
        while after is not None:
            page = await broker.admin("dlq.count", topic=topic, subscription="s", after=after)
            counted, after = counted + page["dead_letters"], page["next"]


async def pages(broker: Broker, topics: list[str], failed: str) -> dict[str, str]:
    """Return the paths of the pages by name.

    Args:
      failed: the topic with dead letters.
    """
    topic = topics[len(topics) // 2]
    await broker.schedules.create("bench/console/reminder", topic, cron="0 9 * * *")
    (message,) = [one async for one in broker.peek(topic, count=1)]
    job = await broker.bulk.cancel(topic, key="none")
    await first_count(broker)
    namespace, at = topic.rpartition("/")[0], now_ms()
    named = f"topic={quote(topic)}&subscription=workers"
    return {
        "timeline by minute": "/?by=minute",
        "timeline by hour": "/",
        "timeline by day": "/?by=day",
        "timeline of a namespace": f"/?where={quote(namespace)}",
        "timeline of a topic": f"/?by=day&where={quote(topic)}",
        "find in a topic": f"/find?where={quote(topic)}",
        "find by key in a topic": f"/find?where={quote(topic)}&key=none",
        "find by property in a topic": f"/find?where={quote(topic)}&property=none%3D1",
        "find in a time range": f"/find?from={at + HOUR_MS}&until={at + 3 * HOUR_MS}",
        **{
            f"find {state} in a topic": f"/find?where={quote(topic)}&state={state}"
            for state in (*BY_LOOK, *OVER)
        },
        "message": f"/messages/{topic}@{message.id.offset}",
        "message that is a dead letter": f"/messages/{failed}@{DEAD_LETTERS // 10}",
        "message that is none": f"/messages/{failed}@0",
        "message with key that is none": f"/messages/{failed}@1",
        "subscriptions": "/subscriptions",
        "subscriptions by name": "/subscriptions?search=t99",
        "subscription": f"/subscription?{named}",
        "lateness": "/lateness",
        "lateness of a subscription": f"/lateness?{named}",
        "schedules": "/schedules",
        "schedule": "/schedules/bench/console/reminder",
        "change of a schedule": "/schedules/bench/console/reminder/edit",
        "dead letters": "/dead-letters",
        "dead letters of a subscription": f"/dead-letters/{failed}/s",
        "dead letter": f"/dead-letters/{failed}/s/{DEAD_LETTERS // 2}",
        "produce": "/produce",
        "copy of a message": f"/produce?from={quote(topic)}@{message.id.offset}",
        "jobs": "/jobs",
        "job": f"/jobs/{topic}/{job.id}",
        "brokers": "/brokers",
        "audit": "/audit",
    }


async def first_count(broker: Broker) -> None:
    """Wait until the broker has counted its pending messages once."""
    while True:
        try:
            await broker.admin("namespaces.forecast")
            return
        except Busy:
            await trio.sleep(0.5)


async def load(visitor: httpx.AsyncClient, path: str) -> float:
    """Load a page, and return how many seconds it took."""
    began_s = trio.current_time()
    answer = await visitor.get(path)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
    return trio.current_time() - began_s


async def measure_pages(visitor: httpx.AsyncClient, paths: dict[str, str]) -> None:
    worst_s = 0.0
    for name, path in paths.items():
        await load(visitor, path)
        times_s = sorted([await load(visitor, path) for _ in range(LOADS)])
        worst_s = max(worst_s, times_s[-1])
        middle_ms, most_ms = times_s[LOADS // 2] * 1e3, times_s[-1] * 1e3
        print(f"{name:32} {middle_ms:6.0f} ms, at most {most_ms:6.0f} ms", flush=True)
    verdict = "kept" if worst_s <= LIMIT_S else "missed"
    print(f"limit of {LIMIT_S * 1e3:.0f} ms: {verdict}", flush=True)


@contextlib.asynccontextmanager
async def visited(console: HttpServerProcess, paths: dict[str, str]) -> AsyncIterator[None]:
    """Follow the timeline, and load page after page, while the block runs."""
    async with console.client() as visitor, trio.open_nursery() as nursery:

        async def follow() -> None:
            while True:
                async with visitor.stream("GET", "/live/") as events:
                    async for _ in events.aiter_lines():
                        pass

        async def walk() -> None:
            while True:
                for path in paths.values():
                    await load(visitor, path)
                    await trio.sleep(VISIT_S)

        nursery.start_soon(follow)
        nursery.start_soon(walk)
        yield
        nursery.cancel_scope.cancel()


async def measure(options: argparse.Namespace, progress: Callable[..., None]) -> None:
    setting = Setting(
        None, None, options.log, TICK_MS, PayloadSize(100, 100), 100, 100_000, 0, 1, progress
    )
    steady = Steady(round(options.rate * options.seconds), options.rate, 3_000, 100_000)
    topics = [f"bench/console/t{number}" for number in range(options.topics)]
    async with stage(setting) as on:
        began_s = trio.current_time()
        await fill(on, topics, options.pending)
        took_s = trio.current_time() - began_s
        print(f"filled in {took_s:.0f} s: {options.pending:,} in {options.topics:,} topics")
        async with connect(on.host.url) as broker:
            failed = "bench/console/failed"
            await fail(on, broker, failed)
            paths = await pages(broker, topics, failed)
        with tempfile.TemporaryDirectory() as home:
            with console_process(Path(home), on.host.url.partition("://")[2]) as console:
                async with console.client() as visitor:
                    await measure_pages(visitor, paths)
                await measure_lateness(on, steady, console, paths, options.pairs)


async def measure_lateness(
    on: Stage, steady: Steady, console: HttpServerProcess, paths: dict[str, str], pairs: int
) -> None:
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "visited": []}
    for number in range(pairs):
        for name in list(found)[:: 1 if number % 2 else -1]:
            if name == "visited":
                async with visited(console, paths):
                    used, _, p99_ms = await loaded(on, steady)
            else:
                used, _, p99_ms = await loaded(on, steady)
            found[name].append((p99_ms, used))
            print(f"{name}: late p99 {p99_ms:.1f} ms, {used:.3f} of a core", flush=True)
    for name, runs in found.items():
        p99_ms, used = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name}: median of the p99 {p99_ms:.1f} ms, {used:.3f} of a core", flush=True)
    moved = [b[0] - a[0] for a, b in zip(found["alone"], found["visited"], strict=True)]
    middle = statistics.median(moved)
    print(f"p99 moves by {middle:+.1f} ms ({min(moved):+.1f} to {max(moved):+.1f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", help="mysql://USER:PASSWORD@HOST:PORT/DB; SQLite if not given")
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--pairs", type=int, default=5)
    trio.run(measure, parser.parse_args(), lambda *_: None)


if __name__ == "__main__":
    main()
