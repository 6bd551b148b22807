"""The cost of a tick of 10 ms compared with one of a second, idle and under a steady load.

    python benchmarks/tick.py [--log URL] [--topics 5000] [--rate 10000] [--seconds 20] [--pairs 5]

Starts a broker and creates the topics, each with a shared subscription and a message that is due in
an hour. Then it sets the two ticks in turn, for the namespace of the topics. With each tick it
measures how much of a core the broker uses: first while nothing is sent, then while a client sends
messages at the given rate, with random delays of 0.2 to 3.2 s, to one more topic and takes them. It
also prints how late these messages are. All figures are of one broker, so they are comparable.
"""

from __future__ import annotations

import argparse
import statistics
from datetime import timedelta
from typing import Final

import trio

from escapement.bench.measurements.steady import Steady, spell
from escapement.bench.payload import PayloadSize
from escapement.bench.stage import Setting, Stage, stage
from escapement.bench.take import take_batches
from escapement.client.connect import connect

TICKS_MS: Final = (1_000, 10)
# The broker is idle when it has used no more than this share of a core for this long. It is busy
# for a while after a change of the tick, which rebuilds each topic's wheel, and after the creation
# of topics, which is followed by checkpoints.
REST_UTILIZATION: Final = 0.1
REST_S: Final = 6.0
# The number of topics created at the same time.
AT_ONCE: Final = 50
# For each tick, the share of a core that the broker used in each pair.
Utilizations = dict[int, list[float]]


async def fill(on: Stage, topics: int) -> None:
    """Create topics, each with a subscription and a message that is due in an hour."""
    left = iter(range(topics))
    async with connect(on.host.url) as broker, trio.open_nursery() as nursery:

        async def create() -> None:
            for _ in left:
                topic = on.new_topic()
                await broker.admin("subscriptions.create", topic=topic, subscription="idle")
                async with await broker.producer(topic) as producer:
                    await producer.send(b"later", delay=timedelta(hours=1))

        for _ in range(AT_ONCE):
            nursery.start_soon(create)


async def utilization(on: Stage, seconds: float) -> float:
    """Return the share of a core that the broker uses during ``seconds`` without requests."""
    began_s, before_s = trio.current_time(), on.host.cpu_seconds()
    await trio.sleep(seconds)
    after_s = on.host.cpu_seconds()
    assert before_s is not None
    assert after_s is not None
    return (after_s - before_s) / (trio.current_time() - began_s)


async def rest(on: Stage) -> None:
    """Wait until the broker is idle, as ``REST_UTILIZATION`` and ``REST_S`` define it."""
    while await utilization(on, REST_S) > REST_UTILIZATION:
        pass


async def loaded(on: Stage, steady: Steady) -> tuple[float, float, float]:
    """Put a steady load on a new topic.

    Returns:
      The share of a core that the broker used, and the median and 99th percentile of the lateness.
    """
    topic, subscription = await on.new_subscription()
    began_s, before_s = trio.current_time(), on.host.cpu_seconds()
    run = await spell(on, steady, topic, subscription, take_batches, "load")
    after_s = on.host.cpu_seconds()
    assert before_s is not None
    assert after_s is not None
    assert run.lateness_ms is not None
    assert (run.lost, run.early, run.duplicates) == (0, 0, 0)
    used = (after_s - before_s) / (trio.current_time() - began_s)
    await on.admin("topics.delete", topic=topic)
    return used, run.lateness_ms.p50, run.lateness_ms.p99


async def measure(options: argparse.Namespace) -> None:
    setting = Setting(
        None, None, options.log, 1000, PayloadSize(100, 100), 100, 100_000, 0, 1, lambda *_: None
    )
    steady = Steady(round(options.rate * options.seconds), options.rate, 3_000, 100_000)
    idle: Utilizations = {tick_ms: [] for tick_ms in TICKS_MS}
    busy: Utilizations = {tick_ms: [] for tick_ms in TICKS_MS}
    late: dict[int, list[tuple[float, float]]] = {tick_ms: [] for tick_ms in TICKS_MS}
    async with stage(setting) as on:
        namespace = on.new_topic().rpartition("/")[0]
        await rest(on)
        print(f"without topics: {await utilization(on, options.seconds):.4f} of a core", flush=True)
        await fill(on, options.topics)
        for number in range(options.pairs):
            for tick_ms in TICKS_MS[:: 1 if number % 2 else -1]:
                verb = "namespaces.enable_delayed_message"
                await on.admin(verb, namespace=namespace, tick_ms=tick_ms)
                await rest(on)
                idle[tick_ms].append(await utilization(on, options.seconds))
                used, *lateness = await loaded(on, steady)
                busy[tick_ms].append(used)
                late[tick_ms].append((lateness[0], lateness[1]))
                print(
                    f"tick {tick_ms} ms: idle {idle[tick_ms][-1]:.4f} of a core, load {used:.3f}; "
                    f"late p50 {lateness[0]:.0f}, p99 {lateness[1]:.0f} ms",
                    flush=True,
                )
    coarse, fine = TICKS_MS
    for name, utilizations in (("idle", idle), ("load", busy)):
        medians = [statistics.median(utilizations[tick_ms]) for tick_ms in TICKS_MS]
        ratios = [b / a for a, b in zip(utilizations[coarse], utilizations[fine], strict=True) if a]
        spread = f", of the pairs {min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        print(
            f"{name}: {medians[0]:.4f} of a core at 1 s, {medians[1]:.4f} at 10 ms{spread}",
            flush=True,
        )
    for tick_ms in TICKS_MS:
        p50, p99 = (statistics.median(column) for column in zip(*late[tick_ms], strict=True))
        print(f"late at {tick_ms} ms: p50 {p50:.0f}, p99 {p99:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log", help="mysql://USER:PASSWORD@HOST:PORT/DB; SQLite if not given")
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=5)
    trio.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
