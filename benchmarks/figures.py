"""The figures of docs/benchmarks.md, taken on this machine.

    python benchmarks/figures.py [--log URL | --sqlite] [--quick] [--only WORD] [--json FILE]

Without a URL it starts a private MariaDB or MySQL server with its default durability (a flush
to disk at each commit), and each measurement gets a database of its own there. ``--quick`` uses
a tenth of the messages, and one run instead of three. Prints a row for each measurement as it
ends, in the form of the tables in the document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from measurements import MEASUREMENTS

RUNS = 3  # of each measurement


@contextlib.contextmanager
def databases(
    options: argparse.Namespace,
) -> Iterator[Callable[[], contextlib.AbstractContextManager[str | None]]]:
    """Yield a function that returns a context manager for the log of one measurement.

    The context manager yields the URL of the log, or None for SQLite.
    """
    if options.sqlite or options.log:
        yield lambda: contextlib.nullcontext(options.log)
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.database.servers import private_server

    with private_server() as server:
        numbers = count(1)

        @contextlib.contextmanager
        def fresh() -> Iterator[str | None]:
            name = f"escapement_bench_{next(numbers)}"
            try:
                yield server.url(name)
            finally:
                server.admin(f"DROP DATABASE IF EXISTS {name}")

        yield fresh


def line(name: str, found: dict[str, Any]) -> str:
    """Return the row of the measurement ``name`` in the table of docs/benchmarks.md."""
    figures = []
    if found["bench"] == "topics":
        setting = found["setting"]
        figures.append(f"{setting['created a second']:,} created a second")
        figures.append(f"{setting['filled, resident MiB']} MiB when all have a message")
    if found["bench"] in ("restart", "topics"):
        peak = found["peak_resident_bytes"] / 1024**2
        figures.append(f"{found['seconds']:.2f} s to the first delivery, {peak:.0f} MiB at most")
    elif "send_p50_ms" in found and found["setting"]["in-flight"] == 1:
        figures.append(f"send p50 {found['send_p50_ms']:.1f} ms")
    elif found["bench"] != "fanout" and "messages_per_second" in found:
        rates = [run["messages_per_second"] for run in found["runs"]]
        figures.append(f"{found['messages_per_second']:,} msg/s ({min(rates):,} to {max(rates):,})")
    if "ratio" in found:
        ratios = [run["ratio"] for run in found["runs"]]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        figures.append(f"{found['ratio']:.2f} of an empty topic's rate ({spread})")
    if "lateness_ms" in found and found["bench"] not in ("restart", "topics"):
        late = found["lateness_ms"]
        figures.append(f"late p50 {late['p50']:.1f}, p99 {late['p99']:.1f} ms")
    if "failed_per_second" in found:
        p50, p99 = found["empty_late_p50_ms"], found["empty_late_p99_ms"]
        figures.append(f"on an empty topic p50 {p50:.1f}, p99 {p99:.1f} ms")
        figures.append(f"{found['failed_per_second']:,} failed a second")
    if "producers_per_second" in found:
        figures.append(f"{found['producers_per_second']:,} producers a second")
    if "client_cpu_seconds" in found:
        client, broker = found["client_cpu_seconds"], found.get("broker_cpu_seconds", 0.0)
        figures.append(f"processor time: client {client:.1f}, broker {broker:.1f} s")
    wrong = {word: found[word] for word in ("lost", "early", "duplicates") if found.get(word)}
    figures += [f"{count} {word}" for word, count in wrong.items()]
    return f"| {name} | {'; '.join(figures)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", help="URL of a database to use instead of a private server")
    parser.add_argument("--sqlite", action="store_true", help="use SQLite")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="run only measurements with this in their names")
    parser.add_argument("--json", type=Path, help="file to write all results to")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    print("| what | figures |", "|---|---|", sep="\n", flush=True)
    with databases(options) as database:
        for one in MEASUREMENTS:
            if options.only not in one.name:
                continue
            with database() as log:
                size, runs = (one.size // 10, 1) if options.quick else (one.size, RUNS)
                found = one.run(log, runs, size, {})
            if found is None:
                print(f"| {one.name} | failed |", flush=True)
                continue
            results[one.name] = found
            print(line(one.name, found), flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
