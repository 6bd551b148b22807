"""Measure how long reading the metrics takes with many topics.

    python benchmarks/scrape.py [--topics 100000] [--active 10000]

Runs a broker in memory in this process. A tenth of the topics have a message that is due in an
hour. Prints the processor time of a scrape, which holds the event loop; that of a census, and of
its longest turn of the event loop; and the same for a namespace with all topics.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import trio
import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import DEFAULT_LIMITS
from escapement.broker.side_port.collector import families_of, render
from escapement.broker.side_port.detailed import DetailedFamilies
from escapement.broker.side_port.readings import take_readings
from escapement.broker.side_port.shown import Shown
from escapement.names import NamespaceName

NAMESPACE = "bench/scrape"
# Topics that are created together.
STEP = 5_000


class Turns(trio.abc.Instrument):
    """Measures the longest turn of the event loop, in processor time of its thread."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._since_s = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        self._since_s = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._since_s)


async def measure(topics: int, active: int) -> None:
    limits = replace(DEFAULT_LIMITS, active_topics=active)
    config = BrokerConfig(seed=0, limits=limits)
    async with testing.start(config=config) as world, world.connect() as broker:
        names = [f"{NAMESPACE}/t{number}" for number in range(topics)]
        for at in range(0, topics, STEP):
            await broker.admin("topics.create_many", topics=names[at : at + STEP], subscription="s")
        for name in names[: topics // 10]:
            async with await broker.producer(name) as producer:
                await producer.send(b"x" * 100, delay="1h")
        await world.server.services.passivator.round(active)
        shown = Shown()
        shown.show(world.server)
        print(f"{topics} topics, {len(world.server.registry.active)} of them active")

        turns = Turns()
        began_s = time.thread_time()
        trio.lowlevel.add_instrument(turns)
        census = await world.server.services.census.fresh(1e9)
        trio.lowlevel.remove_instrument(turns)
        took_s = time.thread_time() - began_s
        print(f"census: {took_s * 1e3:.0f} ms, longest turn {turns.longest_s * 1e3:.1f} ms")
        assert census is not None
        print(f"  {census.scheduled} scheduled, {len(census.spans.counts)} spans")

        times_s = []
        for _ in range(20):
            began_s = time.thread_time()
            body, _ = render(families_of(take_readings(shown)), process=True)
            times_s.append(time.thread_time() - began_s)
        times_s.sort()
        print(f"/metrics: {times_s[10] * 1e3:.1f} ms, at most {times_s[-1] * 1e3:.1f} ms")
        print(f"  {len(body)} bytes")

        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        families = DetailedFamilies()
        await families.add(world.server, NamespaceName.parse(NAMESPACE))
        trio.lowlevel.remove_instrument(turns)
        began_s = time.thread_time()
        body, _ = render(families.all())
        took_s = time.thread_time() - began_s
        print(f"/metrics/detailed: longest turn {turns.longest_s * 1e3:.1f} ms")
        print(f"  rendered in a thread: {took_s * 1e3:.1f} ms")
        print(f"  {len(body)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--active", type=int, default=10_000)
    options = parser.parse_args()
    trio.run(measure, options.topics, options.active, clock=trio.testing.MockClock())


if __name__ == "__main__":
    main()
