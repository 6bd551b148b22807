"""How fast batches become durable: the commit pipeline alone, without a broker.

    python benchmarks/bench_commit.py [--log URL | --sqlite] [--topics N] [--lanes N]

Without a URL it starts a private MariaDB or MySQL server, with its default durability. One task
keeps the pipeline full. The batches are encoded beforehand: each message has 100 random bytes and a
random delay. Prints one line for each batch size: messages a second, the median of the runs after a
warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import trio

from escapement.clock import SystemClock
from escapement.message import Blobs, MessageBatch, Times
from escapement.storage import lease, schema
from escapement.storage.blocking import in_threads
from escapement.storage.catalog import catalog
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Append
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.transaction import transaction
from escapement.storage.log.log import Log
from escapement.storage.state import checkpoint
from escapement.storage.state.state import load_state

PAYLOAD_BYTES = 100
DELAY_MS = 86_400_000
# The most bytes that wait in the pipeline: about as many as a few busy connections have in flight.
WAITING_BYTES = 8 << 20


@contextlib.contextmanager
def open_database(options: argparse.Namespace) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as directory:
        if options.sqlite or options.log:
            yield open_engine(options.log, Path(directory))
            return
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from support.database.servers import private_server

        with private_server() as server:
            yield open_engine(server.url("escapement_bench"), Path(directory))


async def measure(engine: Engine, options: argparse.Namespace, batch: int, count: int) -> float:
    """Commit ``count`` messages, ``batch`` at a time. Return the number of messages a second."""
    clock = SystemClock()
    held = lease.acquire(engine, lease.Identity("bench", "bench"), 3_600_000, clock)
    connection = engine.connect()
    log = Log.open(engine, connection, held, 4, clock.now_ms())
    state = load_state(connection)
    rng = np.random.default_rng(1)
    bodies = [
        MessageBatch(Blobs(np.full(batch, PAYLOAD_BYTES, np.uint32), rng.bytes(size))).encode()
        for size in [batch * PAYLOAD_BYTES] * 16
    ]
    times = [Times(delay_ms=rng.integers(0, DELAY_MS, batch)) for _ in bodies]
    pipeline = CommitPipeline(
        engine,
        log,
        held,
        clock,
        in_threads(options.lanes),
        lambda group: None,
        journal_ends=state.journal_ends,
        max_lanes=options.lanes,
        max_waiting_bytes=WAITING_BYTES,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(pipeline.run)
        topics = []
        for _ in range(options.topics):
            name = f"bench-{time.time_ns()}"
            topic = await pipeline.transact(
                lambda c, name=name: catalog.create_topic(c, 1, name, clock.now_ms())
            )
            pipeline.open_topic(topic.id, 0)
            topics.append(topic.id)
        begin = time.perf_counter()
        for number in range(count // batch):
            if not pipeline.has_room:
                await pipeline.room()
            at = number % len(bodies)
            topic = topics[number % len(topics)]
            pipeline.submit(Append(topic, bodies[at], batch, times[at]))
        await pipeline.drain()
        seconds = time.perf_counter() - begin
        nursery.cancel_scope.cancel()
    ends = state.journal_ends | checkpoint.journal.ends(connection, 0)
    checkpoint.write(engine, connection, held, checkpoint.Checkpoint(trims=ends))
    connection.close()
    return count // batch * batch / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", help="URL of a server to use")
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate length of a run")
    options = parser.parse_args()
    with open_database(options) as engine:
        schema.migrate(engine)
        with contextlib.closing(engine.connect()) as connection, transaction(connection):
            catalog.create_namespace(connection, "bench", "commit", 0)
        for batch, guess in ((1000, 1_500_000), (100, 1_000_000), (1, 40_000)):
            count = int(guess * options.seconds)
            trio.run(measure, engine, options, batch, count)
            rates = [trio.run(measure, engine, options, batch, count) for _ in range(options.runs)]
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            print(
                f"{engine.kind}, batches of {batch}: {statistics.median(rates):,.0f}/s ({spread})"
            )


if __name__ == "__main__":
    main()
