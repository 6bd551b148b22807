"""Compare a broker with TLS and one without, in pairs of runs on one machine.

    python benchmarks/tls.py [--pairs 5] [--messages 300000]

Both brokers run all the time, on SQLite. In each pair `escapement bench` measures one after the
other, in an order that changes. Prints the ratio with TLS / without of the rates, and of the
processor time of the broker: the median, and the lowest and highest in brackets.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from slow_connections import processor_s, tls_options

from support.processes.broker import BrokerProcess

MEASUREMENTS: Final = {
    "publish, batches of 1000": "publish --batch-size 1000",
    "publish, single sends": "publish --batch-size 1",
    "burst, batches of 1000": "burst --batch-size 1000",
}
# Single sends are so many times slower than batches.
SINGLE: Final = 10


def main() -> None:
    """Measure, and print a row for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="escapement-tls-") as home:
        words, ca = tls_options(Path(home))
        brokers = {
            "without": BrokerProcess(Path(home) / "plain", None),
            "with": BrokerProcess(Path(home) / "tls", None, *words),
        }
        try:
            for one in brokers.values():
                one.start()
            print("| what | rate | processor time of the broker |\n|---|---|---|")
            for name, command in MEASUREMENTS.items():
                rates, times = compare(command, brokers, ca, options)
                print(f"| {name} | {spread(rates)} | {spread(times)} |", flush=True)
        finally:
            for one in brokers.values():
                one.remove()


def compare(
    command: str, brokers: dict[str, BrokerProcess], ca: str, options: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Measure all pairs. Return the ratios of the rates, and those of the processor times."""
    messages = options.messages // (SINGLE if command.endswith("-size 1") else 1)
    rates, times = [], []
    for pair in range(options.pairs):
        rate, time = {}, {}
        for name in sorted(brokers, reverse=bool(pair % 2)):
            before_s = processor_s(brokers[name])
            url = brokers[name].url
            if name == "with":
                url = url.replace("escapement:", "escapements:")
            rate[name] = bench(command, messages, url, ca)
            time[name] = processor_s(brokers[name]) - before_s
        rates.append(rate["with"] / rate["without"])
        times.append(time["with"] / time["without"])
    return rates, times


def bench(command: str, messages: int, url: str, ca: str) -> float:
    """Return the messages per second of a run of `escapement bench`."""
    words = [*command.split(), "--messages", str(messages), "--runs", "1", "--broker", url]
    done = subprocess.run(
        [sys.executable, "-m", "escapement", "bench", *words, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "SSL_CERT_FILE": ca},
    )
    return float(json.loads(done.stdout)["messages_per_second"])


def spread(ratios: list[float]) -> str:
    """Return the median, the lowest and the highest of some ratios."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
