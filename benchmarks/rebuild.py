"""How fast a delayed index is rebuilt from the log, by the job and by a broker's own start.

    python benchmarks/rebuild.py [--messages 10000000] [--runs 3]

Starts a private MariaDB or MySQL server and a broker on it, publishes messages of 100 random
bytes with random delays of up to thirty days in batches of a thousand, to one topic with one
subscription, and stops the broker. Then the job rebuilds the index of an empty directory, some
times; and a broker is started on another empty directory, until it accepts connections, which it
does when its index is whole. Prints messages a second by the clock, and processor seconds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import trio

import escapement
from escapement.errors import InvalidRequest
from escapement.message import Blobs, MessageBatch, Times
from escapement.pipeline.rebuild import RebuildConfig, run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from brokers import broker_process
from servers import private_server

TOPIC = "x"
BATCH, PAYLOAD_BYTES = 1_000, 100
# Batches without a receipt yet, and how many different ones there are.
IN_FLIGHT, VARIETY = 32, 32
# None is due before the benchmark ends.
FIRST_MS, LAST_MS = 3_600_000, 30 * 86_400_000


async def publish(url: str, messages: int) -> None:
    """All messages, some batches at a time."""
    rng = np.random.default_rng(1)
    lengths = np.full(BATCH, PAYLOAD_BYTES, np.uint32)
    different = [
        MessageBatch(Blobs(lengths, rng.bytes(BATCH * PAYLOAD_BYTES))) for _ in range(VARIETY)
    ]
    left = iter(range(messages // BATCH))
    async with escapement.connect(url) as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        async with await broker.producer(TOPIC) as producer, trio.open_nursery() as nursery:

            async def send() -> None:
                for number in left:
                    delays = rng.integers(FIRST_MS, LAST_MS, BATCH)
                    await producer.send_batch(different[number % VARIETY], Times(delays))

            for _ in range(IN_FLIGHT):
                nursery.start_soon(send)


def processor_s() -> float:
    """Of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if options.messages % BATCH or options.messages <= 0:
        raise InvalidRequest(f"messages come in batches of {BATCH}")
    with private_server() as server, tempfile.TemporaryDirectory() as directory:
        url = server.url("log")
        with broker_process(Path(directory) / "data", url) as broker:
            trio.run(publish, broker.url, options.messages)
            broker.stop()
        rates = []
        for number in range(options.runs):
            began_s, used_s = time.perf_counter(), processor_s()
            done = run(None, RebuildConfig(Path(directory) / f"rebuilt{number}", url))
            took_s, used_s = time.perf_counter() - began_s, processor_s() - used_s
            assert done.pending == options.messages
            rates.append(done.messages / took_s)
            print(f"the job: {rates[-1]:,.0f} messages/s, {used_s:.1f} processor seconds")
        print(f"the job, the median: {statistics.median(rates):,.0f} messages/s", flush=True)
        began_s = time.perf_counter()
        with broker_process(Path(directory) / "own", url) as broker:
            rate = options.messages / (time.perf_counter() - began_s)
            print(f"a broker's own start: {rate:,.0f} messages/s")
            broker.stop()


if __name__ == "__main__":
    main()
