"""How soon a broker without a delayed index delivers, however many messages are pending.

    python benchmarks/takeover.py [--pending 1000000,10000000] [--runs 3] [--sqlite]

A broker that takes a database over on another machine has no index. For each number of pending
messages, this runs `escapement bench restart --without-index` on a private MariaDB or MySQL server,
or on SQLite. Prints the seconds from the start of the process until it serves, until a consumer has
the first overdue message, and the peak of the broker's memory.

The pending messages are published in batches of 10,000. They are due in an hour or later, at random
times within thirty days.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import nullcontext

from database import add_options, database
from measurements import Measurement

BATCH = "--batch-size 10000 --in-flight 50000 --payload-bytes 20"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pending", default="1000000,10000000", help="numbers, with commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sqlite", action="store_true")
    add_options(parser)
    options = parser.parse_args()
    for pending in map(int, options.pending.split(",")):
        name = f"{pending:,} pending"
        measured = Measurement(name, f"restart --without-index {BATCH}", "--pending", pending)
        with nullcontext() if options.sqlite else database(options) as server:
            log = server.url("log") if server is not None else None
            found = measured.run(log, options.runs, pending, {})
        if found is None:
            continue
        runs = found["runs"]
        for what, values in (
            ("serves after", [run["serving_after_s"] for run in runs]),
            ("first overdue delivery after", [run["seconds"] for run in runs]),
            ("peak memory, MiB", [run["peak_resident_bytes"] / 2**20 for run in runs]),
        ):
            median, low, high = statistics.median(values), min(values), max(values)
            print(f"{name}: {what} {median:.2f} ({low:.2f} to {high:.2f})", flush=True)
        assert not any(run["lost"] or run["early"] or run["duplicates"] for run in runs), runs


if __name__ == "__main__":
    main()
