"""The figures of docs/benchmarks.md, taken on this machine.

    python benchmarks/figures.py [--log URL | --sqlite] [--quick] [--only WORD] [--json FILE]

Without a URL it starts a private MariaDB or MySQL server with its default durability (a flush
to disk at each commit), and each measurement gets a database of its own there. ``--quick`` uses
a tenth of the messages, and one run instead of three. Prints a row for each measurement as it
ends. All rows are the table of the document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple


class Measurement(NamedTuple):
    name: str
    words: str  # the arguments of `escapement bench`
    sized_by: str  # the option for the size of the measurement, which --quick makes smaller
    size: int  # the value of this option


RUNS = 3  # of each measurement
SINGLE = "publish --batch-size 1"
MEASUREMENTS = [
    Measurement("publish, batches of 1000", "publish --window-ms 0", "--messages", 1_000_000),
    Measurement("publish, batches of 1000, delayed", "publish", "--messages", 1_000_000),
    Measurement(
        "publish, batches of 100", "publish --batch-size 100 --window-ms 0", "--messages", 1_000_000
    ),
    Measurement(
        "publish, batches of 100, delayed", "publish --batch-size 100", "--messages", 1_000_000
    ),
    Measurement(
        "publish, 1 KB each",
        "publish --batch-size 100 --payload-bytes 1000 --window-ms 0",
        "--messages",
        300_000,
    ),
    Measurement(
        "publish, 10 KB each",
        "publish --batch-size 100 --payload-bytes 10000 --window-ms 0",
        "--messages",
        50_000,
    ),
    Measurement(
        "publish, 100 KB each",
        "publish --batch-size 10 --in-flight 640 --payload-bytes 100000 --window-ms 0",
        "--messages",
        5_000,
    ),
    Measurement("single sends", SINGLE, "--messages", 200_000),
    Measurement("single sends to 100 topics", f"{SINGLE} --topics 100", "--messages", 100_000),
    Measurement("single sends to 1,000 topics", f"{SINGLE} --topics 1000", "--messages", 50_000),
    Measurement("single sends, blocking client", f"{SINGLE} --sync", "--messages", 100_000),
    Measurement(
        "a producer for 3 sends, topic after topic",
        f"{SINGLE} --topics 1000 --per-producer 3",
        "--messages",
        9_000,
    ),
    Measurement(
        "a send every 20 ms",
        f"{SINGLE} --in-flight 1 --window-ms 0 --rest-ms 20",
        "--messages",
        300,
    ),
    Measurement("burst, batches()", "burst", "--messages", 1_000_000),
    Measurement("burst in half a second", "burst --window-ms 500", "--messages", 2_000_000),
    Measurement("burst, async for", "burst --one-by-one", "--messages", 1_000_000),
    Measurement("burst, from disk after a restart", "burst --restart", "--messages", 1_000_000),
    Measurement("burst, 100,000 keys in order", "burst --keys 100000", "--messages", 1_000_000),
    Measurement(
        "burst, 100,000 keys in order, priorities, a tenth fails once",
        "burst --keys 100000 --priorities --failing-percent 10",
        "--messages",
        1_000_000,
    ),
    Measurement("lateness at 10,000 a second", "lateness --seconds 10", "--rate", 10_000),
    Measurement("lateness at 50,000 a second", "lateness --seconds 10", "--rate", 50_000),
    Measurement("lateness at 100,000 a second", "lateness --seconds 10", "--rate", 100_000),
    Measurement(
        "lateness beside 1 million failures",
        "lateness --seconds 10 --rate 5000",
        "--failing",
        1_000_000,
    ),
    Measurement("1 worker", "workers --workers 1", "--messages", 5_000),
    Measurement("10 workers", "workers --workers 10", "--messages", 20_000),
    Measurement("100 workers", "workers --workers 100", "--messages", 20_000),
    Measurement("100 workers, durable", "workers --workers 100 --durable", "--messages", 20_000),
    Measurement(
        "1,000 workers, 20 permits", "workers --workers 1000 --permits 20", "--messages", 20_000
    ),
    Measurement(
        "1 blocking worker, 1,000 permits",
        "workers --sync --workers 1 --permits 1000",
        "--messages",
        100_000,
    ),
    Measurement("100 subscriptions", "fanout --subscriptions 100", "--seconds", 10),
    Measurement("1,000 subscriptions", "fanout", "--seconds", 10),
    Measurement("catching up", "catchup", "--messages", 2_000_000),
    Measurement("restart, 1 million pending", "restart", "--pending", 1_000_000),
    Measurement("restart, 10 million pending", "restart", "--pending", 10_000_000),
    Measurement("restart, 100,000 topics", "topics", "--topics", 100_000),
    Measurement("publish with 10 million pending", "pending", "--pending", 10_000_000),
]


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


def measure(one: Measurement, log: str | None, quick: bool) -> dict[str, Any] | None:
    """Run `escapement bench` and return its JSON output; None if it failed and printed why."""
    size, runs = (one.size // 10, 1) if quick else (one.size, RUNS)
    words = [*one.words.split(), one.sized_by, str(size), "--runs", str(runs), "-o", "json"]
    environment = dict(os.environ)
    environment.pop("ESCAPEMENT_LOG", None)
    if log is not None:
        environment["ESCAPEMENT_LOG"] = log
    command = [sys.executable, "-m", "escapement", "bench", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    found: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return found


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
                found = measure(one, log, options.quick)
            if found is None:
                print(f"| {one.name} | failed |", flush=True)
                continue
            results[one.name] = found
            print(line(one.name, found), flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
