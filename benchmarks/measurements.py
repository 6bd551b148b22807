"""The measurements of docs/benchmarks.md: each is one `escapement bench` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple


class Measurement(NamedTuple):
    name: str
    words: str  # the arguments of `escapement bench`
    sized_by: str  # the option for the size of the measurement, which --quick makes smaller
    size: int  # the value of this option

    def run(
        self, log: str | None, runs: int, size: int, environment: dict[str, str]
    ) -> dict[str, Any] | None:
        """Run `escapement bench` and return its JSON output; None if it failed and printed why.

        Args:
          log: the URL of an empty database; None for SQLite.
          size: the size of the measurement, instead of the usual one.
          environment: further environment variables of the process.
        """
        words = [*self.words.split(), self.sized_by, str(size), "--runs", str(runs), "-o", "json"]
        variables = os.environ | environment
        variables.pop("ESCAPEMENT_LOG", None)
        if log is not None:
            variables["ESCAPEMENT_LOG"] = log
        command = [sys.executable, "-m", "escapement", "bench", *words]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=variables, check=False
        )
        found: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
        return found


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
