"""Compare the working tree with another commit, in pairs of runs on one machine.

    python benchmarks/pairs.py COMMIT [--pairs 7] [--sqlite] [--only WORD]

Each pair runs `escapement bench` once with the source of COMMIT and once with the working tree, and
the order changes from pair to pair. Prints the median figure of each side, and the median, lowest
and highest ratio of the pairs. A ratio above 1 means that the working tree is better.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.database.servers import MysqlServer, private_server

ROOT = Path(__file__).parents[1]


class Measurement(NamedTuple):
    name: str
    words: str  # the arguments of `escapement bench`
    figure: Callable[[dict[str, Any]], float]  # selects the figure to compare from the output
    higher_is_better: bool


def rate(found: dict[str, Any]) -> float:
    return float(found["messages_per_second"])


def late_p99_ms(found: dict[str, Any]) -> float:
    return float(found["lateness_ms"]["p99"])


def late_p50_ms(found: dict[str, Any]) -> float:
    return float(found["lateness_ms"]["p50"])


def send_p50_ms(found: dict[str, Any]) -> float:
    return float(found["send_p50_ms"])


MEASUREMENTS = [
    Measurement("publish, messages/s", "publish --messages 1000000", rate, True),
    Measurement("burst, messages/s", "burst --messages 1000000", rate, True),
    Measurement(
        "burst with 100,000 keys, messages/s",
        "burst --messages 1000000 --keys 100000",
        rate,
        True,
    ),
    # At 5,000 messages a second, a small machine with two cores has time to spare.
    Measurement(
        "lateness at 5,000/s, p99 ms", "lateness --rate 5000 --seconds 8", late_p99_ms, False
    ),
    Measurement("100 workers, messages/s", "workers --workers 100 --messages 10000", rate, True),
    Measurement("1 worker, messages/s", "workers --workers 1 --messages 3000", rate, True),
    Measurement(
        "single sends, p50 ms",
        "publish --batch-size 1 --in-flight 1 --window-ms 0 --rest-ms 20 --messages 300",
        send_p50_ms,
        False,
    ),
    Measurement(
        "100 subscriptions at 20/s, p50 ms",
        "fanout --subscriptions 100 --rate 20 --seconds 5",
        late_p50_ms,
        False,
    ),
    Measurement("catching up, messages/s", "catchup --messages 1000000", rate, True),
]


@contextlib.contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """Check out ``commit`` in a folder that exists in the ``with`` block; yield its source."""
    with tempfile.TemporaryDirectory(prefix="escapement-pairs-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(one: Measurement, source: Path, server: MysqlServer | None) -> float:
    """Run `escapement bench` once with the package in ``source``, on an empty database."""
    environment = dict(os.environ, PYTHONPATH=str(source))
    environment.pop("ESCAPEMENT_LOG", None)
    database = "escapement_pairs"
    if server is not None:
        environment["ESCAPEMENT_LOG"] = server.url(database)
    command = [sys.executable, "-m", "escapement", "bench", *one.words.split()]
    try:
        done = subprocess.run(
            [*command, "--runs", "1", "-o", "json"],
            stdout=subprocess.PIPE,
            env=environment,
            cwd=source.parent,
            check=True,
        )
    finally:
        if server is not None:
            server.admin(f"DROP DATABASE IF EXISTS {database}")
    return one.figure(json.loads(done.stdout))


def compare(one: Measurement, before: Path, pairs: int, server: MysqlServer | None) -> str:
    """Run all pairs of one measurement, and return its row of the table."""
    sources = {"before": before, "now": ROOT / "src"}
    figures: dict[str, list[float]] = {"before": [], "now": []}
    for pair in range(pairs):
        order = ["before", "now"] if pair % 2 == 0 else ["now", "before"]
        for name in order:
            figures[name].append(measure(one, sources[name], server))
        print(f"  {one.name}: pair {pair + 1} of {pairs}", file=sys.stderr, flush=True)
    ratios = [now / then for then, now in zip(figures["before"], figures["now"], strict=True)]
    if not one.higher_is_better:
        ratios = [1 / ratio for ratio in ratios]
    then, now = (statistics.median(figures[name]) for name in ("before", "now"))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    ratio = f"{statistics.median(ratios):.2f} ({spread})"
    return f"| {one.name} | {rounded(then)} | {rounded(now)} | {ratio} |"


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
    parser.add_argument("--only", default="", help="run only measurements with this in their names")
    options = parser.parse_args()
    chosen = [one for one in MEASUREMENTS if options.only in one.name]
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(source_of(options.commit))
        server = None if options.sqlite else stack.enter_context(private_server())
        rows = [compare(one, before, options.pairs, server) for one in chosen]
    print(
        f"| {options.pairs} pairs | {options.commit} | now | ratio |", "|---|---|---|---|", sep="\n"
    )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
