"""The cost of many schedules: the broker's processor time, and another client's round trip.

    python benchmarks/schedules.py [--schedules 10000] [--topics 1] [--seconds 20] [--pairs 3]
        [--mysql] [--beside CHECKOUT]

Each run starts a broker on a database that contains only the schedules. All schedules publish once
a second, spread evenly over the second and over the topics. Meanwhile one client publishes single
messages, each after the receipt of the one before, and another takes all messages of the first
topic, one for each occurrence. Before each such run, a broker runs without schedules. ``--beside``
also measures the broker of another checkout of this repository, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import trio
from database import database

from escapement.bench.host import Host, host
from escapement.client.connect import connect
from escapement.recurrence import Recurrence
from escapement.storage import schema
from escapement.storage.engine.open import open_engine
from escapement.storage.inbox.schedule import Content, create_schedule

SECOND_MS = 1_000
# How long a started broker gets to handle the occurrences missed before its start.
REST_S = 4.0
# The pause between two publishes of the client whose round trip is measured.
PAUSE_S = 0.02


class Figures(NamedTuple):
    """The figures of one run."""

    share: float  # the share of a core that the broker uses
    trip_p50_ms: float  # from a publish to its receipt
    trip_p99_ms: float
    late_p50_ms: float  # lateness of the occurrences of the first topic
    late_p99_ms: float
    missing: int  # occurrences of the first topic that did not arrive in time
    taken: int  # occurrences of the first topic that arrived


def write_schedules(data: Path, log: str | None, count: int, topics: int) -> None:
    """Create schedules in a database that no broker uses yet."""
    engine = open_engine(log, data)
    schema.migrate(engine)
    connection = engine.connect()
    connection.begin()
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        anchor_ms = now_ms + number * SECOND_MS // count
        every = Recurrence(every_ms=SECOND_MS, anchor_ms=anchor_ms)
        name, topic = f"bench/all/s{number}", f"bench/all/t{number % topics}"
        content = Content(b"." * 100, b"")
        create_schedule(
            connection, name, topic, every, "last", anchor_ms + SECOND_MS, content, now_ms
        )
    connection.commit()
    connection.close()
    engine.close()


@asynccontextmanager
async def broker(checkout: Path | None, data: Path, log: str | None) -> AsyncIterator[Host]:
    """Start a broker from ``checkout``, or from this checkout if it is None."""
    own = os.environ.get("PYTHONPATH")
    if checkout is not None:
        os.environ["PYTHONPATH"] = str(checkout / "src")
    try:
        async with host(None, data, log) as started:
            if own is None:
                os.environ.pop("PYTHONPATH", None)
            else:
                os.environ["PYTHONPATH"] = own
            yield started
    finally:
        if own is not None:
            os.environ["PYTHONPATH"] = own


async def run(on: Host, count: int, topics: int, seconds: float) -> Figures:
    """Measure the broker ``on``, which has ``count`` schedules, for some seconds."""
    await trio.sleep(REST_S)
    trips_ms: list[float] = []
    late_ms: list[float] = []
    seen: set[tuple[str, int]] = set()
    async with connect(on.url) as other, connect(on.url) as client, trio.open_nursery() as nursery:

        async def take() -> None:
            async with client.consumer("bench/all/t0", "bench", permits=100_000) as inbox:
                async for batch in inbox.batches():
                    now_ms = time.time_ns() / 1e6
                    for message in batch:
                        at_ms = message.properties["occurrence_ms"]
                        late_ms.append(now_ms - at_ms)
                        seen.add((message.properties["schedule"], at_ms))
                    await inbox.ack(batch)

        if count:
            nursery.start_soon(take)
        producer = await other.producer("bench/all/other")
        await trio.sleep(1.0)
        late_ms.clear()
        began_s, before_s = trio.current_time(), on.cpu_seconds() or 0.0
        began_ms = time.time_ns() // 1_000_000
        while trio.current_time() < began_s + seconds:
            sent_s = trio.current_time()
            await producer.send(b"x")
            trips_ms.append(1e3 * (trio.current_time() - sent_s))
            await trio.sleep(PAUSE_S)
        used = ((on.cpu_seconds() or 0.0) - before_s) / (trio.current_time() - began_s)
        taken = len(late_ms)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    whole = range(began_ms + SECOND_MS, began_ms + int(seconds) * SECOND_MS - SECOND_MS)
    wanted = (count // topics) * (int(seconds) - 2)
    missing = wanted - sum(at_ms in whole for _, at_ms in seen) if count else 0
    late = np.percentile(late_ms, [50, 99]) if late_ms else (0.0, 0.0)
    trip = np.percentile(trips_ms, [50, 99])
    return Figures(used, *map(float, trip), *map(float, late), missing, taken)


async def measure(options: argparse.Namespace) -> None:
    sides = {"here": None} | ({"beside": options.beside} if options.beside else {})
    found: dict[tuple[str, int], list[Figures]] = {}
    for pair in range(options.pairs):
        for name in list(sides)[:: 1 if pair % 2 else -1]:
            for count in (0, options.schedules):
                with ExitStack() as stack:
                    data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    log = None
                    if options.mysql:
                        server = stack.enter_context(database(options))
                        server.admin("CREATE DATABASE bench")
                        log = server.url("bench")
                    write_schedules(data, log, count, options.topics)
                    async with broker(sides[name], data, log) as on:
                        one = await run(on, count, options.topics, options.seconds)
                found.setdefault((name, count), []).append(one)
                print(name, count, *(f"{k} {v:.3f}" for k, v in one._asdict().items()), flush=True)
    for (name, count), figures in found.items():
        columns = zip(*figures, strict=True)
        median = Figures(*map(statistics.median, columns))
        print(
            f"{name}, {count} schedules: {median.share:.2f} of a core; round trip p50 "
            f"{median.trip_p50_ms:.1f}, p99 {median.trip_p99_ms:.1f} ms; occurrences late p50 "
            f"{median.late_p50_ms:.0f}, p99 {median.late_p99_ms:.0f} ms,"
            f" {median.missing:.0f} missing",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--mysql", action="store_true", help="use a private server instead of SQLite"
    )
    parser.add_argument("--buffer-pool", help="memory of its buffer pool, such as 4G")
    parser.add_argument(
        "--beside", type=Path, help="another checkout, measured in turns with this one"
    )
    trio.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
