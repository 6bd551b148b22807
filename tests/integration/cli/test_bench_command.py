"""Small runs of each `escapement bench` command, on new brokers and on a running broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio

import escapement
from escapement.bench.host import host
from support.processes.forked import run_forked

SENDING = "--batch-size 50 --in-flight 200 --payload-bytes 5-50 --tick 20ms"
COMMANDS = [
    f"publish --messages 500 --window-ms 0 --pending 300 {SENDING}",
    "publish --messages 200 --batch-size 1 --in-flight 20 --window-ms 0",
    f"burst --messages 500 --window-ms 100 --one-by-one --pending 300 {SENDING}",
    "burst --messages 500 --window-ms 100 --restart",
    "burst --messages 500 --window-ms 100 --keys 20 --priorities --failing-percent 10"
    " --back-off-ms 10",
    f"lateness --rate 500 --seconds 1 --window-ms 100 --pending 300 {SENDING}",
    # The back-off bounds the ack wait, and no message may stay unacknowledged for longer.
    "lateness --rate 200 --seconds 5 --window-ms 100 --failing 300 --back-off-ms 2000",
    f"restart --pending 1000 --messages 300 --window-ms 60000 --at-once {SENDING}",
    f"pending --pending 1000 --messages 1000 --window-ms 60000 {SENDING}",
    "publish --messages 200 --batch-size 1 --in-flight 20 --window-ms 100 --topics 7",
    "publish --messages 200 --batch-size 1 --in-flight 20 --window-ms 100 --topics 7 --sync",
    "publish --messages 20 --batch-size 1 --in-flight 2 --rest-ms 5",
    "publish --messages 20 --batch-size 1 --in-flight 1 --topics 3 --per-producer 3",
    f"workers --workers 7 --messages 300 --pending 300 {SENDING}",
    "workers --workers 5 --messages 100 --connections 2 --permits 3 --durable",
    "workers --workers 3 --messages 100 --connections 2 --sync",
    "workers --workers 2 --messages 60 --durable --sync",
    "fanout --subscriptions 5 --rate 50 --seconds 1 --connections 2 --pending 300",
    f"catchup --messages 1000 {SENDING}",
]
# The most that rounding adds to times in milliseconds.
ROUNDED_MS = 0.1
TIMED = ("burst", "lateness", "restart", "fanout")
COUNTED = (*TIMED, "workers", "catchup")


def bench(words: str) -> dict[str, Any]:
    program = ["-m", "escapement", "bench", *words.split(), "-o", "json"]
    done = run_forked(*program, environment=os.environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wait_for(pattern: str, file: Path) -> re.Match[str]:
    """Wait until a file has a text, and return its match."""
    until_s = time.monotonic() + 60
    while True:
        found = re.search(pattern, file.read_text()) if file.exists() else None
        if found:
            return found
        assert time.monotonic() < until_s, f"{file.name} has no {pattern}"
        time.sleep(0.05)


def check(words: str, found: dict[str, Any], engine: str) -> None:
    """Check the fields of a measurement. No message may be lost, early or a duplicate."""
    name = words.split()[0]
    assert found["bench"] == name
    assert found["engine"] == engine
    assert found["seconds"] > 0
    assert found["messages"] > 0
    # A restart reports the time to its first delivery, not a rate.
    assert ("messages_per_second" in found) == (name != "restart")
    if name in COUNTED:
        assert (found["lost"], found["early"], found["duplicates"]) == (0, 0, 0)
    if name in TIMED:
        late = found["lateness_ms"]
        assert 0 <= late["p50"] <= late["p99"] <= late["max"]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_bench_measures_and_loses_nothing(words: str) -> None:
    found = bench(f"{words} --runs 1")
    check(words, found, "sqlite")
    assert ("delivered_per_second" in found) == words.startswith("lateness")
    given = words.split()
    if "burst" in given:
        assert found["failed"] == (50 if "--failing-percent" in given else 0)
    for option, setting in [
        ("--batch-size", "batch-size"),
        ("--in-flight", "in-flight"),
        ("--payload-bytes", "payload-bytes"),
        ("--window-ms", "window-ms"),
        ("--pending", "pending"),
        ("--back-off-ms", "back-off-ms"),
        ("--rate", "rate"),
        ("--topics", "topics"),
        ("--per-producer", "per-producer"),
        ("--rest-ms", "rest-ms"),
        ("--workers", "workers"),
        ("--connections", "connections"),
        ("--permits", "permits"),
        ("--subscriptions", "subscriptions"),
    ]:
        if option in given:
            assert str(found["setting"][setting]) == given[given.index(option) + 1]


def test_restart_with_many_topics_is_timed_to_the_first_overdue_message() -> None:
    """B5: the other topics stay passive."""
    found = bench("topics --topics 50 --runs 1")
    assert found["bench"] == "topics"
    assert found["seconds"] >= found["serving_after_s"] > 0
    assert 1 <= found["active_topics"] <= 50
    assert found["setting"]["topics"] == 50
    assert found["setting"]["created a second"] > 0


def test_fanout_delivers_each_message_to_each_subscription() -> None:
    found = bench("fanout --subscriptions 4 --rate 20 --seconds 1 --runs 1")
    assert found["published"] == 20
    assert found["messages"] == 80
    assert found["broker_cpu_ms_per_message"] > 0


def test_rests_between_sends_are_not_part_of_their_latency() -> None:
    found = bench("publish --messages 8 --batch-size 1 --in-flight 1 --rest-ms 300 --runs 1")
    sending_ms = 1000 * (found["seconds"] - 8 * 0.3)
    assert sending_ms > 0
    # Half of the sends take at least the median.
    assert 0 < found["send_p50_ms"] <= sending_ms / 4 + ROUNDED_MS


def test_new_producers_are_counted_by_their_number_of_sends() -> None:
    words = "publish --messages 21 --batch-size 1 --in-flight 1 --topics 4 --per-producer 3"
    found = bench(f"{words} --runs 1")
    # Both figures are rounded, the rate to an integer.
    rate = 7 / found["runs"][0]["seconds"]
    assert found["producers_per_second"] == pytest.approx(rate, rel=0.02, abs=0.51)


def test_publish_rate_excludes_the_wait_for_the_last_delivery() -> None:
    found = bench("lateness --messages 300 --rate 1000 --window-ms 500 --runs 1")
    assert found["messages"] == 300
    assert found["messages_per_second"] <= 1000
    # Publishing ended before deliveries reached a steady rate.
    assert "delivered_per_second" not in found


def test_lateness_beside_failures_is_compared_with_an_empty_topic() -> None:
    """Q6: the longest back-off also bounds how long a message stays unacknowledged."""
    found = bench("lateness --rate 500 --messages 500 --failing 300 --back-off-ms 2000 --runs 1")
    assert found["messages"] == 500
    assert found["failed_per_second"] > 0
    assert 0 <= found["empty_late_p50_ms"] <= found["empty_late_max_ms"]


def test_each_restart_finds_pending_messages_and_no_acknowledged_ones(
    mysql_url: str, tmp_path: Path
) -> None:
    """Invariants 1 and 4, as the bench command reports them."""
    words = f"restart --pending 2000 --messages 100 --at-once --runs 2 --data {tmp_path}"
    found = bench(f"{words} --log {mysql_url}")
    check(words, found, "mysql")
    assert [run["messages"] for run in found["runs"]] == [100, 100]
    assert [run["still_pending"] for run in found["runs"]] == [2000, 2000]


async def test_a_running_broker_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    """The bench deletes its topics and leaves no pending messages."""
    async with host(None, tmp_path, None) as running:
        for words in (
            "publish --messages 1000 --pending 500",
            "lateness --rate 500 --seconds 0.5 --window-ms 100",
        ):
            line = f"{words} --runs 1 --broker {running.url}"
            check(words, await trio.to_thread.run_sync(bench, line), "sqlite")
        async with escapement.connect(running.url) as broker:
            assert await broker.admin("namespaces.list") == []
            assert (await broker.admin("topics.list"))["total"] == 0


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_interrupted_bench_stops_the_broker_that_it_started(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    """A killed bench cannot, so the broker of that case shows that the test can fail."""
    words = f"publish --messages 100000000 --data {tmp_path} -o json".split()
    process = subprocess.Popen(
        [sys.executable, "-m", "escapement", "bench", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell that runs tests in the background may ignore SIGINT, and processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for("the database accepts writes", tmp_path / "broker.log")
    broker = int(wait_for(r"\d+", tmp_path / "broker.lock")[0])
    until_s = time.monotonic() + 60
    while (tmp_path / "log.sqlite3").stat().st_size < 1 << 20:  # until it publishes
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == exit_code
    runs = Path(f"/proc/{broker}").exists()
    assert runs == (number is signal.SIGKILL)
    if runs:
        os.kill(broker, signal.SIGKILL)
