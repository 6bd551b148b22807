"""What keys, priorities and retries cost a burst, beside a plain one of the same minute.

    python benchmarks/keys.py [--log URL | --sqlite] [--rounds 4] [--messages 1000000]
                              [--keys 10000,100000,1000000] [--only WORD] [--beside CHECKOUT]

Each round runs every kind once, a plain burst first, so that whatever else the machine does
befalls them alike; each run has an empty database. Ratios are to the plain burst of the same
round. ``--beside`` runs each kind with another checkout of this repository, too, in turns.
Without a URL a private MariaDB or MySQL server is started, with its default durability. Prints
each run, and at the end a table with medians, and the lowest and highest beside them.
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
# A round of one side: what was found of each kind.
Round = dict[str, dict[str, Any]]


def kinds(key_counts: list[int]) -> dict[str, str]:
    """The options of `escapement bench burst` for each kind, the plain one first."""
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
    """Median, lowest and highest."""
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (median(values), min(values), max(values))
    )
    return f"{middle} ({low} to {high})"


def row(kind: str, rounds: list[Round]) -> str:
    """A line of the table: of those rounds in which this kind and the plain one succeeded."""
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
    """One burst, with the program of another checkout if one is named; prints what it did."""
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
    parser.add_argument("--log", help="a database to use instead of a private server's")
    parser.add_argument("--sqlite", action="store_true", help="the embedded log")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--messages", type=int, default=1_000_000, help="in each burst")
    parser.add_argument("--keys", default="10000,100000", help="how many keys there are, a list")
    parser.add_argument("--only", default="", help="kinds with this in their names, and plain")
    parser.add_argument("--beside", type=Path, help="another checkout, run in turns with this")
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
                # Each side is the first as often as the other.
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
