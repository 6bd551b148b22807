"""The cost of keys, priorities and retries in a burst, compared with a plain burst.

    python benchmarks/keys.py [--log URL | --sqlite] [--rounds 4] [--messages 1000000]
                              [--keys 10000,100000] [--only WORD] [--beside CHECKOUT]

Each round runs every kind of burst once, the plain kind first, so that other load on the machine
affects all of them alike. Each run has an empty database. Ratios are to the plain burst of the same
round. ``--beside`` also runs each kind with another checkout of this repository, in turns. Without
a URL it starts a private MariaDB or MySQL server, with its default durability. Prints each run, and
at the end a table with the median, lowest and highest figures.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median
from typing import Any

from figures import Measurement, databases, measure

PLAIN = "plain"
FAILING = "--failing-percent 10"
# The figures of one round with one checkout, by kind of burst.
Round = dict[str, dict[str, Any]]


def kinds(key_counts: list[int]) -> dict[str, str]:
    """Return the options of `escapement bench burst` for each kind of burst, plain first."""
    found = {PLAIN: "", "priorities, a tenth fails once": f"--priorities {FAILING}"}
    for count in key_counts:
        keyed = f"{count:,} keys in order"
        found[keyed] = f"--keys {count}"
        found[f"{keyed}, priorities"] = f"--keys {count} --priorities"
        all_three = f"--keys {count} --priorities {FAILING}"
        found[f"{keyed}, priorities, a tenth fails once"] = all_three
        soon = f"{keyed}, priorities, a tenth fails once, again after 10 ms"
        found[soon] = f"{all_three} --back-off-ms 10"
    return found


def spread(values: list[float], digits: int = 0) -> str:
    """Return the median, lowest and highest value as text."""
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (median(values), min(values), max(values))
    )
    return f"{middle} ({low} to {high})"


def row(kind: str, rounds: list[Round]) -> str:
    """Return the table's row of ``kind``. Leave out rounds in which it or the plain kind failed."""
    both = [found for found in rounds if kind in found and PLAIN in found]
    if not both:
        return f"| {kind} | failed | | |"
    rates = [found[kind]["messages_per_second"] for found in both]
    ratios = [
        found[kind]["messages_per_second"] / found[PLAIN]["messages_per_second"] for found in both
    ]
    cpu = [found[kind]["broker_cpu_seconds"] for found in both]
    ratio = "" if kind == PLAIN else spread(ratios, 2)
    return f"| {kind} | {spread(rates)} | {ratio} | {spread(cpu, 1)} s |"


def run(name: str, words: str, messages: int, log: str | None, source: Path | None) -> Any:
    """Run one burst, with the code in ``source`` if it is given, and print its figures."""
    here = os.environ.get("PYTHONPATH")
    if source is not None:
        os.environ["PYTHONPATH"] = str(source)
    try:
        found = measure(Measurement(name, f"burst {words}", "--messages", messages, 1), log, False)
    finally:
        if source is not None:
            os.environ.pop("PYTHONPATH")
            if here is not None:
                os.environ["PYTHONPATH"] = here
    if found is not None:
        print(
            f"{name}: {found['messages_per_second']:,} msg/s, "
            f"broker {found['broker_cpu_seconds']:.1f} s, lost {found['lost']}, "
            f"early {found['early']}, twice {found['duplicates']}, "
            f"load {found['machine']['load'][0]:.1f}",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", help="URL of a database to use instead of a private server")
    parser.add_argument("--sqlite", action="store_true", help="use SQLite")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in each burst")
    parser.add_argument(
        "--keys", default="10000,100000", help="numbers of keys, separated by commas"
    )
    parser.add_argument(
        "--only", default="", help="run only the plain kind and kinds with this in their names"
    )
    parser.add_argument("--beside", type=Path, help="another checkout, run in turns with this one")
    options = parser.parse_args()
    counts = [int(count) for count in options.keys.split(",") if count]
    chosen = {
        kind: words
        for kind, words in kinds(counts).items()
        if kind == PLAIN or options.only in kind
    }
    sources: dict[str, Path | None] = {"now": None}
    if options.beside is not None:
        sources["beside"] = options.beside.resolve() / "src"
    rounds: dict[str, list[Round]] = {side: [] for side in sources}
    with databases(options) as database:
        for number in range(options.rounds):
            for found in rounds.values():
                found.append({})
            for kind, words in chosen.items():
                # Alternate the order of the checkouts.
                for side in sorted(sources, reverse=number % 2 == 0):
                    with database() as log:
                        name = kind if len(sources) == 1 else f"{kind} ({side})"
                        done = run(name, words, options.messages, log, sources[side])
                    if done is not None:
                        rounds[side][-1][kind] = done
    for side, found in rounds.items():
        if len(sources) > 1:
            print(f"\n{side}:")
        print("\n| what | msg/s | to plain | the broker's processor time |\n|---|---|---|---|")
        for kind in chosen:
            print(row(kind, found))


if __name__ == "__main__":
    main()
