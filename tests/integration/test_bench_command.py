"""`escapement bench`, each of its commands once, small, on a broker it starts itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

COMMANDS = [
    "publish --messages 2000 --batch-size 100",
    "publish --messages 200 --batch-size 1 --in-flight 20 --window-ms 0",
    "burst --messages 2000 --window-ms 100",
    "burst --messages 500 --window-ms 100 --one-by-one --payload-bytes 5-50",
    "lateness --rate 500 --seconds 0.5 --window-ms 100",
    "restart --pending 1000 --at-once",
    "pending --pending 1000 --messages 1000 --batch-size 100",
]


def bench(words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "escapement", "bench", *words.split(), "--runs", "1", "-o", "json"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("words", COMMANDS)
def test_every_bench_measures_and_loses_nothing(words: str) -> None:
    found = bench(words)
    assert found["bench"] == words.split()[0]
    assert found["engine"] == "sqlite"
    assert found["seconds"] > 0
    for mishap in ("lost", "early", "duplicates"):
        assert found.get(mishap, 0) == 0
