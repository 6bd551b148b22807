"""Compare the working tree with another commit, in pairs of runs on one machine.

    python benchmarks/pairs.py COMMIT [--pairs 7] [--sqlite] [--quick] [--scrape] [--console]
        [--bundles N] [--only WORD ...]

The measurements are those of docs/benchmarks.md. Each pair runs `escapement bench` once with the
source of COMMIT and once with the working tree, and the order changes from pair to pair. Prints the
median figure of each side, and the median, lowest and highest ratio of the pairs, for the figure
and for the processor time of the broker, which hardly depends on other load. A ratio above 1
means that the working tree is better. With --scrape, the broker of the working tree has an HTTP
side port, and its metrics are read each second. With --console, it has the console in its process,
and a visitor has the timeline open. With --bundles, its database has N bundles in place of one.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from measurements import MEASUREMENTS, Measurement

from support.commits import source_of
from support.database.servers import MysqlServer, free_port, private_server

ROOT = Path(__file__).parents[1]


class Figure(NamedTuple):
    """The figure of a measurement that the pairs compare."""

    unit: str
    value: float
    higher_is_better: bool
    broker_s: float = 0.0  # processor time of the broker

    def with_broker(self, found: dict[str, Any]) -> Figure:
        """Return this figure with the processor time of the broker."""
        return self._replace(broker_s=found.get("broker_cpu_seconds", 0.0))


def figure_of(found: dict[str, Any]) -> Figure:
    """Select the figure to compare from the output of `escapement bench`."""
    match found["bench"]:
        case "restart" | "topics":
            return Figure("s", found["seconds"], False)
        case "lateness":
            late = found.get("empty_late_p99_ms", found["lateness_ms"]["p99"])
            return Figure("p99 ms late", late, False)
        case "fanout":
            return Figure("p50 ms late", found["lateness_ms"]["p50"], False)
        case "publish" if found["setting"]["in-flight"] == 1 and "send_p50_ms" in found:
            return Figure("p50 ms", found["send_p50_ms"], False)
        case _:
            return Figure("msg/s", found["messages_per_second"], True)


@contextlib.contextmanager
def unwatched(bundles: int = 1) -> Iterator[dict[str, str]]:
    """Watch nothing. A broker that starts with the yielded environment has this many bundles."""
    yield {} if bundles == 1 else {"ESCAPEMENT_BUNDLES": str(bundles)}


@contextlib.contextmanager
def scraped() -> Iterator[dict[str, str]]:
    """Scrape a broker that starts with the yielded environment, each second. Print how often."""
    port, ended, answers = free_port(), threading.Event(), 0

    def scrape() -> None:
        nonlocal answers
        while not ended.wait(1):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
                answers += 1

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield {"ESCAPEMENT_HTTP": f"127.0.0.1:{port}"}
    finally:
        ended.set()
        thread.join()
        print(f"  {answers} scrapes", file=sys.stderr, flush=True)


@contextlib.contextmanager
def watched() -> Iterator[dict[str, str]]:
    """Follow the timeline of a broker that starts with the yielded environment.

    Print how many parts of the page arrived.
    """
    port, ended, parts = free_port(), threading.Event(), 0

    def follow() -> None:
        nonlocal parts
        while not ended.wait(0.2):
            with contextlib.suppress(OSError):
                events = urllib.request.urlopen(f"http://127.0.0.1:{port}/live/", timeout=10)
                for line in events:
                    parts += line.startswith(b"event: part")

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield {"ESCAPEMENT_CONSOLE": f"127.0.0.1:{port}"}
    finally:
        ended.set()
        thread.join()
        print(f"  {parts} parts of the timeline", file=sys.stderr, flush=True)


def measure(
    one: Measurement,
    source: Path,
    size: int,
    server: MysqlServer | None,
    watch: Callable[[], AbstractContextManager[dict[str, str]]],
) -> Figure:
    """Run `escapement bench` once with the package in ``source``, on an empty database.

    Args:
      watch: watches the broker that starts with the environment that its context yields.
    """
    database = "escapement_pairs"
    log = None if server is None else server.url(database)
    try:
        with watch() as environment:
            found = one.run(log, 1, size, {"PYTHONPATH": str(source), **environment})
    finally:
        if server is not None:
            server.admin(f"DROP DATABASE IF EXISTS {database}")
    if found is None:
        sys.exit(f"{one.name}: `escapement bench` failed with {source}")
    return figure_of(found).with_broker(found)


def compare(
    one: Measurement,
    before: Path,
    options: argparse.Namespace,
    server: MysqlServer | None,
) -> str:
    """Run all pairs of one measurement, and return its row of the table."""
    sources = {"before": before, "now": ROOT / "src"}
    figures: dict[str, list[Figure]] = {"before": [], "now": []}
    size = one.size // 10 if options.quick else one.size
    if options.scrape or options.console:
        watch = scraped if options.scrape else watched
    else:
        watch = partial(unwatched, options.bundles)
    for pair in range(options.pairs):
        order = ["before", "now"] if pair % 2 == 0 else ["now", "before"]
        for name in order:
            how = watch if name == "now" else unwatched
            figures[name].append(measure(one, sources[name], size, server, how))
        print(f"  {one.name}: pair {pair + 1} of {options.pairs}", file=sys.stderr, flush=True)
    ratios = [
        now.value / then.value if now.higher_is_better else then.value / now.value
        for then, now in zip(figures["before"], figures["now"], strict=True)
    ]
    busy = [
        then.broker_s / now.broker_s
        for then, now in zip(figures["before"], figures["now"], strict=True)
        if then.broker_s and now.broker_s
    ]
    medians = {name: statistics.median(one.value for one in figures[name]) for name in sources}
    columns = [
        f"{one.name}, {figures['now'][0].unit}",
        rounded(medians["before"]),
        rounded(medians["now"]),
        spread(ratios),
        spread(busy) if busy else "",
    ]
    return f"| {' | '.join(columns)} |"


def spread(ratios: list[float]) -> str:
    """Return the median, the lowest and the highest of some ratios."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def rounded(figure: float) -> str:
    """Return a figure with two decimals if it is small."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--sqlite", action="store_true", help="use SQLite instead of MariaDB")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    watching = parser.add_mutually_exclusive_group()
    watching.add_argument("--scrape", action="store_true", help="read the metrics each second")
    watching.add_argument("--console", action="store_true", help="have the timeline open")
    watching.add_argument("--bundles", type=int, default=1, help="how many bundles the topics have")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[""],
        help="run only measurements with one of these in the name",
    )
    options = parser.parse_args()
    chosen = [one for one in MEASUREMENTS if any(word in one.name for word in options.only)]
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(source_of(options.commit))
        server = None if options.sqlite else stack.enter_context(private_server())
        header = [
            f"| {options.pairs} pairs | {options.commit} | now | ratio | broker processor time |",
            "|---|---|---|---|---|",
        ]
        print("\n".join(header), flush=True)
        for one in chosen:
            print(compare(one, before, options, server), flush=True)


if __name__ == "__main__":
    main()
