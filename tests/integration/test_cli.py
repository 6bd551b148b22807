"""The commands that talk to a broker: admin, send, consume, and the demo.

The broker is a process; commands run in this one where nothing depends on their being a
process of their own.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import trio

import escapement
import escapement.sync
from brokers import BrokerProcess, broker_process
from bulk import stage
from escapement import Fate, sync
from escapement.bench.host import Host
from escapement.cli.demo import Demo
from escapement.cli.main import escapement as commands
from escapement.cli.main import run
from escapement.cli.remote import with_broker
from escapement.protocol import commands as wire
from escapement.storage.engine.open import open_engine
from escapement.storage.letters import inbox, job
from escapement.storage.rule import FOREVER_MS
from letters import letter

TIMEOUT_S = 60
Say = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("cli") / "data") as started:
        yield started


@pytest.fixture
def say(
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Say:
    """Carries out a command line; returns its stdout, or its stderr where it is to fail.

    What it says on stderr though it does not fail is named by ``notes``.
    """
    monkeypatch.setenv("ESCAPEMENT_BROKER", f"127.0.0.1:{broker.port}")

    def carry_out(*words: str, fails: int = 0, notes: str = "") -> str:
        code = run(words)
        out, err = (text.decode() for text in capsysbinary.readouterr())
        assert code == fails, err
        assert out == "" if fails else (notes in err and bool(notes) == bool(err))
        return err if fails else out

    return carry_out


def process(broker: BrokerProcess, *words: str, **kwargs: Any) -> subprocess.Popen[bytes]:
    """A command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "escapement", *words],
        env=os.environ | {"ESCAPEMENT_BROKER": f"127.0.0.1:{broker.port}"},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs,
    )


# -- administration ----------------------------------------------------------------


def test_delays_are_configured_by_namespace(say: Say) -> None:
    """P2: defaults, both options, and back again; as JSON, in milliseconds."""
    made = json.loads(say("admin", "namespaces", "create", "p2/eu", "-o", "json"))
    assert made["namespace"] == "p2/eu"
    assert (made["granularity_ms"], made["tick_ms"]) == (300_000, 1000)
    enable = ["admin", "namespaces", "enable-delayed-message"]
    say(*enable, "--time-partition-granularity", "1h", "--tick-duration", "500ms", "p2/eu")
    say(*enable, "-p", "2w", "p2/eu")
    got = json.loads(say("admin", "-o", "json", "namespaces", "get", "p2/eu"))
    assert got == made | {"granularity_ms": 14 * 86_400_000, "tick_ms": 500}
    assert got["delays_enabled"] is True
    off = json.loads(say("admin", "namespaces", "disable-delayed-message", "p2/eu", "-o", "json"))
    assert off["delays_enabled"] is False
    assert "disabled in p2/eu" in say("produce", "p2/eu/t", "x", "--delay", "1s", fails=1)
    say("produce", "p2/eu/t", "x")
    assert "still has topics" in say("admin", "namespaces", "delete", "p2/eu", fails=1)


def test_a_namespace_is_deleted_with_its_topics_and_that_is_said_first(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Q7."""
    say("produce", "gone/eu/t", "x")
    would = say("admin", "namespaces", "delete", "gone/eu", "--dry-run", "-o", "json")
    assert json.loads(would)["would_delete"] == "gone/eu"
    assert run(["admin", "namespaces", "delete", "gone/eu", "--force", "-o", "json"]) == 0
    out, err = capsysbinary.readouterr()
    assert err.startswith(b"deleting gone/eu with topics: 1, subscriptions: 0, schedules: 0")
    assert json.loads(out)["deleted"] == "gone/eu"
    assert "no namespace" in say("admin", "namespaces", "get", "gone/eu", fails=1)


def test_a_namespace_is_shown_with_durations_in_words(say: Say) -> None:
    say("admin", "namespaces", "create", "words/eu")
    lines = say("admin", "namespaces", "get", "words/eu").splitlines()
    shown = dict(line.strip().rsplit("  ", 1) for line in lines)
    shown = {name.strip(): value.strip() for name, value in shown.items()}
    assert shown["namespace"] == "words/eu"
    assert shown["delays enabled"] == "yes"
    assert (shown["granularity"], shown["tick"]) == ("5m", "1s")
    head, *rows = say("admin", "namespaces", "list").splitlines()
    assert head.split() == ["namespace", "delays", "enabled", "granularity", "tick", "topics"]
    assert ["words/eu", "yes", "5m", "1s", "0"] in [row.split() for row in rows]
    assert json.loads(say("admin", "namespaces", "delete", "words/eu", "-o", "json")) == {
        "deleted": "words/eu"
    }


def test_the_inbox_is_listed_and_discarded(say: Say, broker: BrokerProcess) -> None:
    assert say("admin", "inbox", "list") == "no letters\n"
    say("admin", "topics", "create", "letters/eu/orders")
    say("admin", "namespaces", "disable-delayed-message", "letters/eu")
    engine = open_engine(None, broker.data)
    connection = engine.connect()
    connection.begin()
    waits = letter("letters/eu/orders", "one", b"a", b"b", delay_ms=[1, 2])
    inbox.insert(engine, connection, [waits, letter("letters/eu/quick", "one")], 1)
    connection.commit()
    connection.close()
    engine.close()

    def moved() -> bool:
        rows = json.loads(say("admin", "inbox", "list", "-o", "json"))
        return [row["target"] for row in rows] == ["letters/eu/orders"] and bool(rows[0]["reason"])

    deadline = time.monotonic() + TIMEOUT_S
    while not moved():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (row,) = json.loads(say("admin", "inbox", "list", "-o", "json"))
    assert (row["letters"], row["messages"], row["held"]) == (1, 2, 0)
    assert "disabled in letters/eu" in row["reason"]
    assert "letters/eu/orders" in say("admin", "inbox", "list")
    discarded = say("admin", "inbox", "discard", "letters/eu/orders", "-o", "json")
    assert json.loads(discarded) == {"discarded": 1}
    assert say("admin", "inbox", "list") == "no letters\n"


def test_jobs_are_listed(say: Say, broker: BrokerProcess) -> None:
    """B7."""
    engine = open_engine(None, broker.data)
    connection = engine.connect()
    load = job.enter(engine, connection, "nightly", 3)
    stage(engine, connection, load, 0, "a", b"1", b"2", target="jobs/eu/orders")
    (row,) = json.loads(say("admin", "jobs", "list", "-o", "json"))
    assert (row["job"], row["version"], row["state"], row["messages"]) == (
        "nightly",
        3,
        "staging",
        2,
    )
    assert "nightly" in say("admin", "jobs", "list")
    connection.close()
    engine.close()


def test_schedules_are_created_shown_paused_and_deleted(
    say: Say, broker: BrokerProcess, tmp_path: Path
) -> None:
    """B2."""
    assert say("schedule", "list") == "no schedules\n"
    file = tmp_path / "payload"
    file.write_bytes(b"from a file")
    when = ["--cron", "0 9 * * mon-fri", "--timezone", "Europe/Berlin", "--missed", "all"]
    until = ["--until", "2099-01-01T00:00Z"]
    what = ["--payload-file", str(file), "--key", "k", "-o", "json"]
    made = json.loads(say("schedule", "create", "b2/eu/report", "b2/eu/t", *when, *until, *what))
    assert (made["schedule"], made["topic"]) == ("b2/eu/report", "b2/eu/t")
    assert (made["cron"], made["timezone"]) == ("0 9 * * mon-fri", "Europe/Berlin")
    assert (made["missed"], made["state"], made["size_bytes"]) == ("all", "active", 12)
    *_, first, last = say("schedule", "show", "b2/eu/report").splitlines()
    assert all(" 09:00:00+0" in line for line in (first, last))
    shown = json.loads(say("schedule", "show", "b2/eu/report", "-o", "json"))
    assert len(shown["coming_ms"]) == 10
    assert shown["coming_ms"][0] == made["next_at_ms"]
    assert "b2/eu/report" in say("schedule", "list", "b2/eu")
    assert say("schedule", "list", "public/default") == "no schedules\n"
    paused = json.loads(say("schedule", "pause", "b2/eu/report", "-o", "json"))
    assert (paused["state"], paused["next_at_ms"]) == ("paused", None)
    resumed = say("schedule", "resume", "b2/eu/report")
    assert "active" in resumed
    assert "exists already" in say(
        "schedule", "create", "b2/eu/report", "b2/eu/t", "--every", "90s", fails=1
    )
    assert json.loads(say("schedule", "delete", "b2/eu/report", "-o", "json")) == {
        "deleted": "b2/eu/report"
    }
    assert "no schedule b2/eu/report" in say("schedule", "show", "b2/eu/report", fails=1)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--every", "0s"],
        ["--every", "1h", "--cron", "0 9 * * *"],
        ["--every", "1h", "--timezone", "Europe/Berlin"],
        ["--every", "1h", "--payload", "x", "--payload-file", os.devnull],
        ["--every", "1h", "--until", "2099-01-01T00:00"],
        ["--every", "1h", "--missed", "some"],
    ],
)
def test_schedules_that_cannot_be_meant_are_usage_errors(say: Say, wrong: list[str]) -> None:
    assert "Usage: escapement schedule create" in say(
        "schedule", "create", "s", "t", *wrong, fails=2
    )
    assert say("schedule", "list") == "no schedules\n"


def test_a_schedule_publishes_what_blocking_code_receives(broker: BrokerProcess) -> None:
    """B2, on a real clock and through the blocking client."""
    with sync.connect(broker.url) as client:
        made = client.schedules.create("ticks", "b2/eu/ticks", "tick", every="1s", serializer=str)
        with client.consumer("b2/eu/ticks", "s", serializer=str) as messages:
            first, second = (messages.receive(TIMEOUT_S) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first.value == second.value == "tick"
        times = [message.properties["occurrence_ms"] for message in (first, second)]
        assert times[1] - times[0] == 1000
        assert first.due_ms >= times[0]
        assert client.schedules.pause("ticks").state == "paused"
        assert client.schedules.resume("ticks").published >= 2
        assert client.schedules.get("ticks").created == made.created
        assert [one.name for one in client.schedules.list()] == [made.name]
        client.schedules.delete("ticks")
        assert client.schedules.list() == []


def test_topics_are_created_listed_measured_and_deleted(say: Say) -> None:
    say("admin", "topics", "create", "persistent://topics/eu/orders")
    assert say("admin", "topics", "list", "topics/eu").split() == ["topic", "topics/eu/orders"]
    say("admin", "subscriptions", "create", "topics/eu/orders", "billing")
    say("produce", "topics/eu/orders", "a", "b")
    stats = json.loads(say("admin", "topics", "stats", "topics/eu/orders", "-o", "json"))
    assert stats["topic"] == "topics/eu/orders"
    assert stats["next_offset"] == 2
    assert [one["subscription"] for one in stats["subscriptions"]] == ["billing"]
    assert stats["subscriptions"][0]["unacknowledged"] == 2
    table = say("admin", "topics", "stats", "topics/eu/orders")
    assert "next offset" in table
    assert "billing" in table
    say("admin", "topics", "delete", "topics/eu/orders")
    listed = json.loads(say("admin", "topics", "list", "topics/eu", "-o", "json"))
    assert listed == {"topics": [], "total": 0}
    assert say("admin", "topics", "list", "topics/eu") == "no topics\n"


def test_subscriptions_are_created_listed_and_deleted(say: Say) -> None:
    create = ["admin", "subscriptions", "create", "subs"]
    say(*create, "first")
    say(*create, "second", "--kind", "exclusive", "--from", "earliest")
    assert "second" in say(*create, "second", fails=1)
    rows = json.loads(say("admin", "subscriptions", "list", "subs", "-o", "json"))
    assert [(row["subscription"], row["kind"]) for row in rows] == [
        ("first", "shared"),
        ("second", "exclusive"),
    ]
    say("admin", "subscriptions", "delete", "subs", "first")
    assert "no subscription first" in say(
        "admin", "subscriptions", "delete", "subs", "first", fails=1
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("admin subscriptions update meant s", "Say what is to be changed, with --ack-wait or"),
        ("admin topics update meant", "Say what is to be changed, with --paused-until or"),
        ("admin topics update meant --quota-bytes 64MB", "'64MB' is not a size: write 64MiB"),
        ("consume meant s --from yesterday", "'yesterday' is neither latest nor earliest, nor"),
        ("cancel meant --all 1", "Name messages in one way: by ID, or"),
        (
            "cancel meant --from 2026-12-25T00:00Z --until 2026-12-24T00:00Z",
            "Nothing is due --from a time on and --until one before it.",
        ),
        ("peek meant --from 2026-12-25T00:00Z --until 2026-12-25T00:00Z", "Nothing is due --from"),
        ("reschedule meant 0 --delay 1h --at 2026-12-25T00:00Z", "either --delay or --at"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_could_be(
    words: str, told: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(words.split()) == 2
    assert told in " ".join(capsysbinary.readouterr().err.decode().split())


def test_what_is_looked_at_is_shown_as_people_say_it(say: Say) -> None:
    say("produce", "said", "x", "--delay", "25h", "--property", "a=1", "--property", "b=2")
    _, row = say("peek", "said").splitlines()
    assert re.search(r" 1d 0h +0 ", row)
    assert re.search(r"properties +a=1, b=2 *$", say("message", "show", "said@0"), re.MULTILINE)
    assert say("cancel", "said", "0", "--dry-run") == "1 message would be tried\n"
    say("admin", "subscriptions", "create", "said", "s")
    seek = ("admin", "subscriptions", "seek", "said", "s")
    assert re.search(r"position +latest *$", say(*seek, "--latest"), re.MULTILINE)
    assert re.search(r"position +offset 0 *$", say(*seek, "--offset", "0"), re.MULTILINE)
    shown = say(*seek, "--time", "2026-12-24T18:00Z")
    assert re.search(r"position +2026-12-2\d \d\d:00:00", shown)
    assert re.search(r"paused until +for ever *$", say("pause", "said"), re.MULTILINE)
    assert re.search(r"paused until +not paused *$", say("resume", "said"), re.MULTILINE)
    assert "look less far ahead" in say("forecast", "said", "--for", "99999d", fails=1)
    say("produce", "said/eu/topic", "x")
    assert "with --force" in say("admin", "namespaces", "delete", "said/eu", fails=1)
    assert "7-3 is no range of keys" in say("consume", "said", "s", "--keys", "7-3", fails=1)


def test_a_policy_is_shown_in_words_and_told_in_numbers(say: Say) -> None:
    """A 0 mostly stands for something else."""
    say("admin", "subscriptions", "create", "worded", "s", "--max-deliveries", "3")
    shown = say("admin", "subscriptions", "get", "worded", "s")
    for name, value in (
        ("ack wait", "the broker's, or without end if not shared"),
        ("max backoff", "no bound"),
        ("max deliveries", "3"),
        ("dead letter topic", "TOPIC-SUBSCRIPTION-DLQ"),
        ("expired to dead letter", "no"),
        ("paused until", "not paused"),
        ("max rate", "no limit"),
    ):
        assert re.search(rf"^{name} +{value} *$", shown, re.MULTILINE), name
    shown = say("admin", "topics", "update", "worded", "--quota-bytes", "64MiB")
    for name, value in (("ttl", "the namespace's"), ("quota bytes", "67.1 MB")):
        assert re.search(rf"^{name} +{value} *$", shown, re.MULTILINE), name
    shown = say("admin", "namespaces", "get", "public/default")
    for name, value in (("ttl", "never"), ("retention", "1d"), ("retention bytes", "no bound")):
        assert re.search(rf"^{name} +{value} *$", shown, re.MULTILINE), name
    told = json.loads(say("admin", "subscriptions", "get", "worded", "s", "-o", "json"))
    assert (told["ack_wait_ms"], told["dead_letter_topic"], told["max_rate"]) == (0, "", 0)
    helped = say("admin", "subscriptions", "update", "--help")
    assert "No wait for another attempt is longer. 0: no bound." in " ".join(helped.split())


def test_a_subscriptions_policy_is_changed_shown_and_set_back(say: Say) -> None:
    """V4: durations in words, a value at a time, and back to the default."""
    subscriptions = ["admin", "subscriptions"]
    say(*subscriptions, "create", "retry", "s", "--min-backoff", "1s")
    say(*subscriptions, "update", "retry", "s", "--ack-wait", "1m", "--max-backoff", "1h")
    say(*subscriptions, "update", "retry", "s", "--jitter", "0.1")
    shown = say(*subscriptions, "get", "retry", "s")
    for name, value in (("ack wait", "1m"), ("min backoff", "1s"), ("max backoff", "1h")):
        assert re.search(rf"{name} +{value}\b", shown)
    say(*subscriptions, "update", "retry", "s", "--max-backoff", "default")
    told = json.loads(say(*subscriptions, "get", "retry", "s", "-o", "json"))
    assert (told["max_backoff_ms"], told["jitter"], told["ack_wait_ms"]) == (0, 0.1, 60_000)
    assert json.loads(say("admin", "topics", "get", "retry", "-o", "json"))["topic"]
    refused = say(*subscriptions, "update", "retry", "s", "--max-backoff", "1ms", fails=1)
    assert "max_backoff_ms of 1ms is shorter than min_backoff_ms of 1s" in refused
    assert "is not from 0 to 1" in say(
        *subscriptions, "update", "retry", "s", "--jitter", "2", fails=2
    )
    assert "what is to be changed" in say(*subscriptions, "update", "retry", "s", fails=2)


def test_dead_letters_are_listed_shown_sent_back_and_thrown_away(say: Say) -> None:
    """V1: of a consumer that takes messages and leaves."""
    names = ["dying", "s"]
    say("admin", "subscriptions", "create", *names, "--max-deliveries", "1")
    assert "has no dead letters" in say("dlq", "list", *names)
    for value in ("one", "two", "three"):
        say("produce", "dying", value, "--key", "k")

    async def die() -> list[dict[str, Any]]:
        async with escapement.connect(f"escapement://{os.environ['ESCAPEMENT_BROKER']}") as broker:
            async with broker.consumer(*names) as inbox:
                for _ in range(3):
                    assert await inbox.receive(timeout_s=TIMEOUT_S)
            with trio.fail_after(TIMEOUT_S):
                found: list[dict[str, Any]] = []
                while len(found) < 3:
                    found = await broker.admin("dlq.list", topic="dying", subscription="s")
            return found

    first, second, _ = trio.run(die)
    listed = json.loads(say("dlq", "list", *names, "-o", "json"))
    assert [row["payload"] for row in listed] == ["one", "two", "three"]
    assert "disconnect" in say("dlq", "list", *names)
    shown = json.loads(say("dlq", "show", *names, str(first["offset"]), "-o", "json"))
    assert (shown["payload"], shown["key"], shown["attempts"]) == ("one", "k", 1)
    assert "public/default/dying" in say("dlq", "show", *names, str(first["offset"]))
    assert "no dead letter" in say("dlq", "show", *names, "77", fails=1)
    assert "3 would be sent back" in say("dlq", "redrive", *names, "--dry-run")
    one = ["--offset", str(first["offset"]), "--dry-run"]
    assert json.loads(say("dlq", "purge", *names, *one, "-o", "json")) == {"would_be_purged": 1}
    assert "not there" in say("dlq", "purge", *names, "--offset", "77", "--dry-run", fails=1)
    assert "1 sent back" in say("dlq", "redrive", *names, "--offset", str(first["offset"]))
    assert "1 thrown away" in say("dlq", "purge", *names, "--offset", str(second["offset"]))
    assert "not there" in say("dlq", "redrive", *names, "--offset", str(second["offset"]), fails=1)
    elsewhere = ("--in", "dying-s-DLQ")
    assert "three" in say("dlq", "list", *names, *elsewhere)
    redriven = say("dlq", "redrive", *names, *elsewhere, "-o", "json")
    assert json.loads(redriven) == {"redriven": 1}
    assert json.loads(say("dlq", "purge", *names, "-o", "json")) == {"purged": 0}
    assert "has no dead letters" in say("dlq", "list", *names)
    assert sorted(say("consume", *names, "--count", "2").split()) == ["one", "three"]


def test_limits_are_set_and_shown_as_people_write_them(say: Say) -> None:
    """P10, Q3, Q4, V18."""
    say("admin", "subscriptions", "create", "limited", "s")
    topic = ["admin", "topics", "update", "limited"]
    shown = say(*topic, "--ttl", "3d", "--quota-bytes", "64MiB", "--max-publish-rate", "2.5")
    assert "3d" in shown
    assert "2.5" in shown
    assert "no rate" in say(*topic, "--max-publish-rate", "-1", fails=2)
    subscription = ["admin", "subscriptions", "update", "limited", "s"]
    shown = say(*subscription, "--dispatch", "least_busy", "--expired-to-dead-letter", "yes")
    assert "least_busy" in shown
    assert "yes" in shown
    assert "mine" in say(*subscription, "--dispatch", "mine", fails=2)


def test_a_topic_and_a_subscription_are_paused_and_resumed(say: Say) -> None:
    say("admin", "subscriptions", "create", "pausing", "s")
    assert "for ever" in say("pause", "pausing", "s")
    assert "for ever" in say("admin", "subscriptions", "get", "pausing", "s")
    assert "2999-12-24" in say("pause", "pausing", "--until", "2999-12-24T12:00Z")
    update = ["admin", "topics", "update", "pausing", "--paused-until"]
    assert "2998-12-24" in say(*update, "2998-12-24T12:00Z")
    assert "for ever" in say(*update, "forever")
    assert "with a zone" in say(*update, "tomorrow", fails=2)
    say("produce", "pausing", "one")
    say("pause", "pausing", "--for", "1h", "--until", "2999-12-24T12:00Z", fails=2)
    assert "in the past" in say("pause", "pausing", "--until", "2001-12-24T12:00Z", fails=1)
    say("pause", "nowhere", fails=1)
    resumed = {"topic": "public/default/pausing", "subscription": "s", "paused_until_ms": 0}
    assert json.loads(say("resume", "pausing", "s", "-o", "json")) == resumed
    paused = json.loads(say("pause", "pausing", "s", "-o", "json"))
    assert paused == {**resumed, "paused_until_ms": FOREVER_MS}
    say("resume", "pausing", "s")
    say("pause", "pausing", "--for", "1ms")
    assert say("consume", "pausing", "s", "--count", "1") == "one\n"
    assert "-" in say("resume", "pausing")


def test_the_blocking_client_pauses_and_resumes(broker: BrokerProcess) -> None:
    with escapement.sync.connect(broker.url) as client:
        with client.consumer("sync-pause", "s", serializer=str) as inbox:
            client.pause("sync-pause", "s")
            client.pause("sync-pause", duration="1ms")
            with client.producer("sync-pause", serializer=str) as producer:
                producer.send("one")
            client.resume("sync-pause", "s")
            assert inbox.receive(timeout_s=TIMEOUT_S).value == "one"


def test_the_broker_tells_its_figures(say: Say) -> None:
    stats = json.loads(say("admin", "broker", "stats", "-o", "json"))
    assert stats["database"] == "up"
    assert stats["lease_held"] is True
    assert "lease held" in say("admin", "broker", "stats")


def test_the_logs_tables_are_changed_while_it_runs(say: Say) -> None:
    """N5."""
    before = json.loads(say("admin", "broker", "stats", "-o", "json"))
    tables = before["table_parallelism"] + 1
    update = ["admin", "broker", "update", "-o", "json", "--table-parallelism"]
    after = json.loads(say(*update, str(tables)))
    assert after["table_parallelism"] == tables
    assert after["log_generation"] == before["log_generation"] + 1
    say(*update, "0", fails=2)


def test_each_command_may_name_its_broker_and_the_nearest_goes_first(
    say: Say, broker: BrokerProcess
) -> None:
    nobody, there = "127.0.0.1:1", f"127.0.0.1:{broker.port}"
    say("admin", "--broker", nobody, "broker", "stats", "--broker", there)
    say("admin", "--broker", f"escapement://{there}", "broker", "stats")
    refused = say("admin", "--broker", nobody, "broker", "stats", fails=1)
    assert refused.startswith(
        "escapement: the broker cannot be reached: escapement://127.0.0.1:1: "
    )
    assert refused.endswith("Connection refused\n")


def test_what_the_broker_refuses_is_one_line_and_exit_code_1(say: Say) -> None:
    assert say("admin", "namespaces", "get", "no/where", fails=1).count("\n") == 1
    enable = ["admin", "namespaces", "enable-delayed-message"]
    assert "tenant/namespace" in say(*enable, "alone", fails=1)
    assert "create it" in say(*enable, "no/where", fails=1)
    say("admin", "namespaces", "create", "refused/eu")
    assert "does not fit" in say(*enable, "-t", "10m", "refused/eu", fails=1)
    assert "is not a duration" in say(*enable, "-t", "fast", "refused/eu", fails=2)


# -- sending and consuming ---------------------------------------------------------


def test_messages_go_in_and_come_out_with_all_there_is_to_them(say: Say) -> None:
    """P1: id, key, properties and time of a delayed message."""
    say("admin", "subscriptions", "create", "out", "s")
    began_ms = time.time() * 1000
    sent = say("produce", "out", "a", "b", "--delay", "50ms", "--key", "k", "--property", "p=1=2")
    assert sent.split() == ["public/default/out@0", "public/default/out@1"]
    lines = say("consume", "out", "s", "--count", "2", "-o", "json").splitlines()
    first, second = map(json.loads, lines)
    assert (first["payload"], second["payload"]) == ("a", "b")
    assert first["id"] == "public/default/out@0"
    assert (first["key"], first["properties"]) == ("k", {"p": "1=2"})
    assert (first["attempt"], first["redelivered"]) == (1, False)
    assert first["due_ms"] >= began_ms + 50


def test_what_was_consumed_does_not_come_again(say: Say) -> None:
    """V2."""
    say("admin", "subscriptions", "create", "once", "s")
    say("produce", "once", "a", "b", "c")
    assert say("consume", "once", "s", "--count", "2") == "a\nb\n"
    assert say("consume", "once", "s", "--count", "1") == "c\n"


def test_what_was_printed_may_be_given_back(say: Say) -> None:
    """V1, V4: failed, after a delay of its own; or untried, and then it does not count."""
    words = ["consume", "tried", "s", "--count", "1", "-o", "json"]
    say("admin", "subscriptions", "create", "tried", "s")
    say("produce", "tried", "a")
    began = time.monotonic()
    deliveries = [
        json.loads(say(*words, *more))
        for more in (
            ["--then", "release", "--again-in", "200ms"],
            ["--then", "nack", "--again-in", "300ms"],
            ["--then", "ack"],
        )
    ]
    assert time.monotonic() - began >= 0.5
    assert [one["attempt"] for one in deliveries] == [1, 1, 2]
    assert [one["redelivered"] for one in deliveries] == [False, True, True]
    said = say(*words, "--again-in", "1s", fails=2)
    assert "--again-in is for what is given back" in said


def test_a_time_may_be_given_and_one_that_passed_is_now(say: Say) -> None:
    """P1."""
    say("admin", "subscriptions", "create", "at", "s")
    say("produce", "at", "past", "--at", "2001-01-01T00:00Z")
    soon = datetime.now(UTC) + timedelta(seconds=1)
    say("produce", "at", "soon", "--at", soon.astimezone().isoformat())
    past, later = map(
        json.loads, say("consume", "at", "s", "--count", "2", "-o", "json").splitlines()
    )
    assert (past["payload"], later["payload"]) == ("past", "soon")
    assert past["due_ms"] < later["due_ms"]
    assert later["due_ms"] >= soon.timestamp() * 1000


def test_what_is_pending_is_shown_next_due_first_and_stays(say: Say, broker: BrokerProcess) -> None:
    """B6: peek consumes nothing; by time, key, id and property; also of the blocking client."""
    say("admin", "subscriptions", "create", "ahead", "s")
    say("produce", "ahead", "far", "--delay", "2h", "--key", "k")
    say("produce", "ahead", "near", "--delay", "1h", "--property", "source=till")
    for _ in range(2):
        rows = json.loads(say("peek", "ahead", "-o", "json"))
        assert [(row["payload"], row["key"]) for row in rows] == [("near", None), ("far", "k")]
        assert rows[0]["due_at_ms"] < rows[1]["due_at_ms"]
    assert "near" in say("peek", "ahead", "--count", "1")

    def shown(*words: str) -> list[str]:
        return [row["payload"] for row in json.loads(say("peek", "ahead", *words, "-o", "json"))]

    middle = (datetime.now(UTC) + timedelta(minutes=90)).isoformat()
    assert shown("--from", middle) == ["far"]
    assert shown("--until", middle) == ["near"]
    assert shown("--key", "k") == ["far"]
    assert shown("--id", "1") == ["near"]
    assert shown("--property", "source=till") == ["near"]
    assert shown("--property", "source=till", "--key", "k") == []
    assert "nothing of that is pending" in say("peek", "ahead", "--key", "none")
    say("peek", "ahead", "--property", "source", fails=2)
    assert "there is no topic" in say("peek", "nowhere-at-all", fails=1)
    with escapement.sync.connect(broker.url) as client:
        assert [one.payload for one in client.peek("ahead", key="k")] == [b"far"]
        assert client.forecast("ahead", within="1d").total == 2
        assert client.show(0, "ahead").state == "to_be_fired"


def test_a_forecast_is_drawn_or_given_as_json(say: Say) -> None:
    """B6."""
    say("produce", "weather", *["x"] * 3, "--delay", "30m")
    say("produce", "weather", "y", "--delay", "20h")
    drawn = say("forecast", "weather")
    assert "4 messages to fall due in this time" in drawn
    lines = drawn.splitlines()
    assert [line.split()[4] for line in lines if "█" in line] == ["3", "1"]
    assert any(line.strip() == "..." for line in lines)
    found = json.loads(say("forecast", "weather", "--by", "minute", "--for", "2h", "-o", "json"))
    assert (found["total"], max(found["counts"]), found["by_ms"]) == (3, 3, 60_000)
    days = json.loads(say("forecast", "weather", "--by", "day", "-o", "json"))
    assert days["total"] == 4
    assert "nothing falls due" in say("forecast", "weather", "--for", "1m")


def test_a_message_shows_its_life(say: Say) -> None:
    """Q2, B6: by topic and offset, or by its id."""
    say("admin", "subscriptions", "create", "lives", "s")
    id = say("produce", "lives", "x", "--delay", "1h", "--key", "k").strip()
    shown = say("message", "show", id)
    assert "to_be_fired" in shown
    assert "pending" in shown
    found = json.loads(say("message", "show", "lives", "0", "-o", "json"))
    assert (found["state"], found["key"], found["payload"]) == ("to_be_fired", "k", "x")
    assert [one["state"] for one in found["subscriptions"]] == ["pending"]
    assert "no message 1" in say("message", "show", "lives", "1", fails=1)
    say("message", "show", "lives", fails=2)


def test_messages_are_cancelled_by_id_and_each_is_answered_for(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: by what produce printed, by offset, from standard input; 1 if any was not."""
    say("admin", "subscriptions", "create", "recall", "s")
    first = say("produce", "recall", "a", "--delay", "1h").strip()
    say("produce", "recall", "b", "c", "--delay", "1h")
    (row,) = json.loads(say("cancel", "recall", first, "-o", "json"))
    assert row == {"id": first, "fate": "cancelled", "handed": []}
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    assert "recall@1" in say("cancel", "recall", "-")
    (row,) = json.loads(say("peek", "recall", "-o", "json"))
    assert row["payload"] == "c"
    assert run(["cancel", "recall", "2", "99"]) == 1
    out, err = (text.decode() for text in capsysbinary.readouterr())
    assert "unknown" in out
    assert err == "escapement: not cancelled: 1 of 2 messages\n"
    assert run(["cancel", "recall", "elsewhere@2"]) == 2
    assert "another topic" in capsysbinary.readouterr().err.decode()


def test_a_dedup_key_is_stored_once_and_names_its_message(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """B3, B1: the same id is printed twice, and the message cancelled by its key."""
    first = say("produce", "once", "a", "--dedup", "order-7", "--delay", "1h")
    assert run(["produce", "once", "again", "--dedup", "order-7"]) == 0
    out, err = (text.decode() for text in capsysbinary.readouterr())
    assert (out, err) == (first, f"duplicate of {first.strip()}: nothing was stored\n")
    (row,) = json.loads(say("cancel", "once", "--dedup", "order-7", "-o", "json"))
    assert row == {"id": first.strip(), "fate": "cancelled", "handed": []}
    assert "no message with the dedup key" in say("cancel", "once", "--dedup", "x", fails=1)
    assert "one message" in say("produce", "once", "a", "b", "--dedup", "y", fails=2)
    say("cancel", "once", "0", "--dedup", "order-7", fails=2)


def test_a_group_is_closed_shown_and_forgotten(say: Say) -> None:
    """Q10: its follow-up fires when the subscription has acknowledged all of it."""
    say("admin", "subscriptions", "create", "imports", "s")
    say("produce", "imports", "a", "b", "--group", "import-7")
    say("produce", "imports", "c", "--group", "other")
    close = ["close", "imports", "import-7", "s", "reports", "done"]
    options = ["--key", "k", "--property", "kind=import", "--priority", "7", "-o", "json"]
    answer = json.loads(say("admin", "groups", *close, *options))
    assert (answer["group"], answer["state"], answer["messages"]) == ("import-7", "closed", 2)
    assert [one["remaining"] for one in answer["closings"]] == [2]
    assert json.loads(say("admin", "groups", *close, *options)) == answer
    assert "another follow-up" in say("admin", "groups", *close, fails=1)
    assert "is closed" in say("produce", "imports", "x", "--group", "import-7", fails=1)
    listed = say("admin", "groups", "list", "imports").split()
    assert listed[-8:] == ["import-7", "closed", "2", "1", "other", "open", "1", "0"]
    say("consume", "imports", "s", "--count", "3")
    (line,) = say(
        "consume", "reports", "s", "--from", "earliest", "--count", "1", "-o", "json"
    ).splitlines()
    got = json.loads(line)
    assert (got["payload"], got["key"], got["properties"]) == ("done", "k", {"kind": "import"})
    assert "fired" in say("admin", "groups", "show", "imports", "import-7")
    say("admin", "groups", "delete", "imports", "import-7")
    assert "has no group import-7" in say("admin", "groups", "show", "imports", "import-7", fails=1)
    assert "not both" in say(
        "admin", "groups", *close, "--delay", "1s", "--at", "2026-12-24T18:00Z", fails=2
    )


def test_the_blocking_client_closes_groups(broker: BrokerProcess) -> None:
    """Q10."""
    with sync.connect(broker.url) as client, client.producer("blocks") as producer:
        client.admin("subscriptions.create", topic="blocks", subscription="s")
        producer.send_many([b"a", b"b"], groups="g")
        producer.send(b"c", group="g")
        then = escapement.FollowUp("done", "blocks-done", serializer=str)
        closed = producer.close_group("g", "s", then)
        assert client.groups.close("blocks", "g", "s", then) == closed
        assert client.groups.list("blocks") == [closed]
        with client.consumer("blocks", "s") as inbox:
            for _ in range(3):
                message = inbox.receive(TIMEOUT_S)
                assert message is not None
                assert message.group == "g"
                message.ack(durable=True)
        with client.consumer("blocks-done", "s", position="earliest", serializer=str) as inbox:
            message = inbox.receive(TIMEOUT_S)
            assert message is not None
            assert message.value == "done"
        assert client.groups.get("blocks", "g").closings[0].state == "fired"
        client.groups.delete("blocks", "g")
        assert client.groups.list("blocks") == []


def test_messages_are_rescheduled_by_id(say: Say) -> None:
    """B1: after a delay, to a time, and to now."""
    say("admin", "subscriptions", "create", "replan", "s")
    say("produce", "replan", "a", "b", "c", "--delay", "1h")
    (row,) = json.loads(say("reschedule", "replan", "0", "--delay", "3h", "-o", "json"))
    assert row == {"id": "public/default/replan@0", "fate": "rescheduled", "handed": []}
    at = datetime.now(UTC) + timedelta(days=30)
    say("reschedule", "replan", "1", "--at", at.isoformat())
    say("run-now", "replan", "2")
    assert say("consume", "replan", "s", "--count", "1") == "c\n"
    rows = json.loads(say("peek", "replan", "-o", "json"))
    assert [row["payload"] for row in rows] == ["a", "b"]
    assert rows[0]["due_in_ms"] > 2 * 3_600_000
    assert "--delay or --at" in say("reschedule", "replan", "0", fails=2)


def test_what_matches_is_cancelled_after_a_dry_run(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """B1: by key, property and time; a count of what became of them."""
    say("admin", "subscriptions", "create", "sweep", "s")
    say("produce", "sweep", "a", "b", "--delay", "1h", "--key", "k")
    say("produce", "sweep", "c", "--delay", "3h", "--key", "k")
    say("produce", "sweep", "d", "--delay", "1h")
    dry = ("cancel", "sweep", "--key", "k", "--dry-run")
    assert say(*dry) == "3 messages would be tried\n"
    assert json.loads(say(*dry, "-o", "json")) == {"would_be_tried": 3}
    until = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    words = ["cancel", "sweep", "--key", "k", "--until", until]
    assert say(*words) == "2 cancelled\n"
    assert say(*words) == "0 cancelled\n"
    assert json.loads(say("run-now", "sweep", "--all", "-o", "json")) == {"rescheduled": 2}
    assert sorted(say("consume", "sweep", "s", "--count", "2").split()) == ["c", "d"]
    say("produce", "sweep", "e", "--delay", "1h", "--property", "from=till")
    say("produce", "sweep", "f", "--delay", "1h", "--property", "from=web")
    assert say("cancel", "sweep", "--property", "from=till") == "1 cancelled\n"
    assert run(["cancel", "sweep"]) == run(["cancel", "sweep", "1", "--all"]) == 2
    assert b"by ID, or by" in capsysbinary.readouterr().err


def test_the_blocking_client_cancels(broker: BrokerProcess) -> None:
    """B1."""
    with sync.connect(f"escapement://127.0.0.1:{broker.port}") as client:
        receipts = client.producer("blocking").send_many([b"a", b"b"], delay=timedelta(hours=1))
        (outcome,) = client.cancel(receipts[1])
        assert outcome.done
        assert client.reschedule(receipts[0], delay=timedelta(hours=2)).done.all()
        assert client.run_now([0], topic="blocking").done.all()
        assert len(client.select("blocking")) == 0  # no subscription waits for what is due
        assert client.cancel(receipts).done.all()
        assert client.cancel([5], topic="blocking")[0].fate is Fate.UNKNOWN


def test_a_new_subscription_may_begin_with_the_first_message(say: Say) -> None:
    assert say("produce", "history", "old") == "public/default/history@0\n"  # by its other name
    assert say("consume", "history", "s", "--from", "earliest", "--count", "1") == "old\n"


def test_a_subscription_begins_anywhere_and_is_sought(say: Say) -> None:
    """N1, N3: at an offset or a time, from the first on, and again from elsewhere."""
    say("produce", "seek", "a", "b", "c", "d")
    assert say("consume", "seek", "s", "--from", "2", "--count", "2") == "c\nd\n"
    seek = ["admin", "subscriptions", "seek", "seek", "s"]
    assert "offset 1" in say(*seek, "--offset", "1")
    assert say("consume", "seek", "s", "--count", "3") == "b\nc\nd\n"
    say(*seek, "--earliest")
    assert say("consume", "seek", "s", "--count", "1") == "a\n"
    say(*seek, "--time", "2001-01-01T00:00Z")
    assert say("consume", "seek", "s", "--count", "1") == "a\n"
    say(*seek, "--latest")
    say("produce", "seek", "e")
    assert say("consume", "seek", "s", "--count", "1") == "e\n"
    say("admin", "subscriptions", "create", "seek", "t", "--from", "2001-01-01T00:00+01:00")
    assert say("consume", "seek", "t", "--count", "1") == "a\n"
    for words in ([], ["--earliest", "--latest"], ["--time", "2001-01-01"], ["--offset", "-1"]):
        say(*seek, *words, fails=2)
    assert "the next is 5" in say(*seek, "--offset", "6", fails=1)
    say("consume", "seek", "u", "--from", "middle", fails=2)


def test_a_seek_of_the_blocking_client_drops_what_it_has_begun(broker: BrokerProcess) -> None:
    """N3: the same names, the same promises."""
    with escapement.sync.connect(broker.url) as client:
        with client.producer("sync-seek", serializer=str) as producer:
            producer.send_many(["a", "b", "c", "d"])
        with client.consumer(
            "sync-seek", "s", kind="exclusive", position=1, serializer=str
        ) as inbox:
            assert inbox.receive().value == "b"
            inbox.seek(0)
            assert [inbox.receive().value for _ in range(4)] == ["a", "b", "c", "d"]
            inbox.seek("earliest")
            assert next(inbox.batches()).offsets.tolist() == [0, 1, 2, 3]


def test_a_topic_is_read_by_offset(say: Say, broker: BrokerProcess) -> None:
    """N1: in order, as often as one likes; also by the blocking client."""
    say("produce", "pages", "a", "b", "c", "--delay", "1h", "--key", "k")
    for _ in range(2):
        assert say("read", "pages") == "a\nb\nc\n"
    assert say("read", "pages", "--from", "1", "--count", "1") == "b\n"
    (line,) = say("read", "pages", "--from", "2", "-o", "json").splitlines()
    shown = json.loads(line)
    assert (shown["id"], shown["payload"], shown["key"]) == ("public/default/pages@2", "c", "k")
    assert shown["due_ms"] - shown["published_ms"] == 3_600_000
    assert say("read", "pages", "--from", "3", notes="pages has nothing at offset 3") == ""
    assert "there is no topic" in say("read", "no-such-pages", fails=1)
    with escapement.sync.connect(broker.url) as client:
        pages = client.read("pages", 1, serializer=str, page_messages=1)
        assert [page.values() for page in pages] == [["b"], ["c"]]


def test_the_lower_priority_goes_first(say: Say) -> None:
    """V5: from the command line, and how much it is worth."""
    say("admin", "subscriptions", "create", "graded", "s")
    for priority in ("60", "0", "255", "50"):
        say("produce", "graded", priority, "--priority", priority)
    say("produce", "graded", "x", "--priority", "256", fails=2)
    words = ["admin", "subscriptions", "update", "graded", "s", "--priority-ageing", "1h"]
    assert "1h" in say(*words)
    assert say("consume", "graded", "s", "--count", "4") == "0\n50\n60\n255\n"


def test_a_consumer_of_the_command_line_takes_a_range_of_keys(say: Say) -> None:
    """V16, Q9: and the order is a policy like others."""
    say("admin", "subscriptions", "create", "keyed", "s", "--order", "key", "--on-retry", "skip")
    for key in ("a", "b", "c"):
        say("produce", "keyed", key, "--key", key)
    slot = escapement.slot_of("b")
    words = ["consume", "keyed", "s", "--count", "1", "--keys"]
    assert say(*words, f"{slot}-{slot}") == "b\n"
    say(*words, "5", fails=2)
    assert "no range of keys" in say(*words, "0-65536", fails=1)
    assert say("consume", "keyed", "s", "--count", "2", "--keys", "auto") == "a\nc\n"


def test_an_exclusive_subscription_ignores_delays(say: Say) -> None:
    """P7."""
    say("produce", "order", "late", "--delay", "1h")
    say("produce", "order", "now")
    words = ["consume", "order", "s", "--kind", "exclusive", "--from", "earliest", "--count", "2"]
    assert say(*words) == "late\nnow\n"
    assert "is exclusive, not shared" in say("consume", "order", "s", fails=1)


def test_a_file_is_sent_line_by_line(say: Say, tmp_path: Path) -> None:
    lines = [b"one", b"", b"\xff\x00", b"x" * 300_000, b"no end"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    sent = say("produce", "lines", "--file", str(tmp_path / "lines"))
    assert len(sent.splitlines()) == len(lines)
    words = ["consume", "lines", "s", "--from", "earliest", "--count", "5", "-o", "json"]
    got = [json.loads(line) for line in say(*words).splitlines()]
    assert [one.get("payload") for one in got] == ["one", "", None, "x" * 300_000, "no end"]
    assert got[2]["payload_base64"] == "/wA="


def test_in_json_a_payload_is_text_or_base64_whoever_shows_it(say: Say, tmp_path: Path) -> None:
    """N1, V1: that of which only the beginning is shown may end within a letter."""
    lines = [b"\xff\x00", b"x" + 300 * "é".encode()]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    names = ("odd", "s")
    say("admin", "subscriptions", "create", *names, "--max-deliveries", "1")
    say("produce", "odd", "--file", str(tmp_path / "lines"))
    base64, text = ("payload_base64", "/wA="), ("payload", lines[1].decode())
    beginning = ("payload", "x" + 255 * "é")

    def shown(*words: str) -> list[tuple[str, str]]:
        """Under which name each payload stands, and what it is."""
        found = [json.loads(line) for line in say(*words, "-o", "json").splitlines()]
        rows = found[0] if isinstance(found[0], list) else found
        return [(n, row[n]) for row in rows for n in row if n.startswith("payload")]

    async def die() -> None:
        async with escapement.connect(f"escapement://{os.environ['ESCAPEMENT_BROKER']}") as broker:
            async with broker.consumer(*names) as inbox:
                for _ in lines:
                    assert await inbox.receive(timeout_s=TIMEOUT_S)
            with trio.fail_after(TIMEOUT_S):
                while len(await broker.admin("dlq.list", topic="odd", subscription="s")) < 2:
                    pass

    assert shown("peek", "odd") == [base64, beginning]
    assert shown("read", "odd") == [base64, text]
    assert shown("message", "show", "odd", "0") == [base64]
    assert shown("message", "show", "odd", "1") == [beginning]
    trio.run(die)
    assert shown("dlq", "list", *names) == [base64, beginning]
    assert shown("dlq", "show", *names, "0") == [base64]
    assert shown("dlq", "show", *names, "1") == [text]
    assert r"\xff" in say("dlq", "list", *names)
    assert r"\xff" in say("message", "show", "odd", "0")


def test_what_is_no_text_where_text_is_wanted_is_refused(say: Say) -> None:
    """A terminal hands over bytes, which may be no UTF-8."""
    odd = os.fsdecode(b"a\xff")
    topic = ("produce", "texts", "x")
    for words in (
        (*topic, "--key", odd),
        (*topic, "--dedup", odd),
        (*topic, "--property", f"a={odd}"),
        ("peek", "texts", "--key", odd),
        ("cancel", "texts", "--key", odd, "--dry-run"),
        ("cancel", "texts", "--dedup", odd),
        ("schedule", "create", "odd", "texts", "--every", "90s", "--key", odd),
        ("dlq", "list", "texts", odd),
    ):
        assert "udcff" in say(*words, fails=1)


def test_lines_of_a_pipe_are_sent_as_they_come(broker: BrokerProcess) -> None:
    with process(broker, "produce", "pipe", "--stdin", stdin=subprocess.PIPE) as sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        for number in range(3):
            sender.stdin.write(b"line\n")
            sender.stdin.flush()
            assert sender.stdout.readline() == b"public/default/pipe@%d\n" % number
        sender.stdin.close()
        assert sender.wait(TIMEOUT_S) == 0


def test_an_interrupt_ends_a_consumer_and_keeps_what_it_printed(
    broker: BrokerProcess, say: Say
) -> None:
    say("admin", "subscriptions", "create", "interrupt", "s")
    say("produce", "interrupt", "a")
    with process(broker, "consume", "interrupt", "s") as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"a\n"
        consumer.send_signal(signal.SIGINT)
        _, complaints = consumer.communicate(timeout=TIMEOUT_S)
        assert (consumer.returncode, complaints.strip()) == (130, b"")
    say("produce", "interrupt", "b")
    assert say("consume", "interrupt", "s", "--count", "1") == "b\n"


def test_an_interrupt_is_an_interrupt_whichever_task_it_falls_into(broker: BrokerProcess) -> None:
    """And no lost connection, where it is that of the connection."""

    async def work(client: escapement.Broker) -> None:
        producer = await client.producer("interrupt")
        heard = producer.heard

        def interrupted(command: wire.Command) -> None:
            signal.raise_signal(signal.SIGINT)
            heard(command)

        producer.heard = interrupted  # type: ignore[method-assign]
        await producer.submit(b"c")
        while True:
            await client.admin("topics.list")

    with pytest.raises(KeyboardInterrupt):
        with_broker(("127.0.0.1", broker.port), work)


def test_a_full_disk_is_said_in_one_line_and_nothing_unprinted_is_acknowledged(
    broker: BrokerProcess, say: Say
) -> None:
    say("admin", "subscriptions", "create", "full", "s")
    say("produce", "full", "a")
    for command in (["consume", "full", "s"], ["message", "show", "full@0"], ["peek", "full"]):
        with (
            Path("/dev/full").open("wb") as full,
            process(broker, *command, stdout=full) as printer,
        ):
            _, complaints = printer.communicate(timeout=TIMEOUT_S)
            assert printer.returncode == 1
            assert complaints == b"escapement: [Errno 28] No space left on device\n"
    assert say("consume", "full", "s", "--count", "1") == "a\n"


def test_a_reader_that_has_enough_ends_a_consumer_without_a_traceback(
    broker: BrokerProcess, say: Say
) -> None:
    say("admin", "subscriptions", "create", "head", "s")
    with process(broker, "consume", "head", "s") as consumer:
        assert consumer.stdout is not None
        say("produce", "head", "a")
        assert consumer.stdout.readline() == b"a\n"
        consumer.stdout.close()
        say("produce", "head", "b")
        assert consumer.wait(TIMEOUT_S) == 1
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""
    # What nobody read was not acknowledged.
    assert say("consume", "head", "s", "--count", "1") == "b\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["produce", "t"], "Give messages"),
        (["produce", "t", "x", "--stdin"], "Give messages"),
        (["produce", "t", "x", "--at", "2026-12-24T18:00Z", "--delay", "1s"], "not both"),
        (["produce", "t", "x", "--at", "2026-12-24T18:00"], "no time zone"),
        (["produce", "t", "x", "--at", "tomorrow"], "is not a time"),
        (["produce", "t", "x", "--delay", "-1s"], "is not a duration"),
        (["produce", "t", "x", "--property", "alone"], "NAME=VALUE"),
        (["produce", "t", "--file", "/does/not/exist"], "No such file"),
        (["consume", "t"], "Missing argument 'SUBSCRIPTION'"),
        (["consume", "t", "s", "--count", "0"], "--count"),
        (["consume", "t", "s", "--kind", "private"], "--kind"),
        (["sing"], "No such command 'sing'"),
    ],
)
def test_words_that_cannot_be_meant_are_usage_errors(say: Say, words: list[str], said: str) -> None:
    assert said in say(*words, fails=2)


def test_names_that_cannot_be_meant_are_refused(say: Say) -> None:
    assert "cannot be a topic name" in say("produce", "a b", "x", fails=1)
    assert "cannot be a subscription name" in say("consume", "t", "a/b", fails=1)


# -- help --------------------------------------------------------------------------


def all_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from all_commands(command, (*path, name))


def context_of(path: Sequence[str]) -> click.Context:
    """Of a group, as if one of its commands had been called."""
    group: Any = commands
    context: click.Context = group.make_context("escapement", ["x"])
    for name in path:
        group = group.get_command(context, name)
        context = group.make_context(name, ["x"], parent=context)
    return context


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for path, command in all_commands(commands):
        assert run([*path, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"Usage: escapement {' '.join(path)}" in shown
        assert command.help, path
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert option.help, (path, option.name)


def test_every_command_comes_with_examples_that_it_understands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path, command in all_commands(commands):
        assert run([*path, "--help"]) == 0
        shown = re.sub(r"\\\n +", "", capsys.readouterr().out)  # an example of several lines
        examples = re.findall(r"^ {4}(?:jq .* \| )?escapement (.*?)(?: &)?$", shown, re.MULTILINE)
        if hasattr(command, "commands"):
            continue
        name = " ".join(path)
        assert any(example.startswith(name) for example in examples), path
        for example in examples:
            if example.startswith(name):
                above = context_of(path[:-1])
                words = shlex.split(example.removeprefix(name))
                command.make_context(path[-1], words, parent=above)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("escapement, version ")


# -- the demo ----------------------------------------------------------------------


def test_the_demo_keeps_every_promise_over_a_kill() -> None:
    """P6: what a newcomer runs first is itself a test."""
    done = subprocess.run(
        [sys.executable, "-m", "escapement", "demo", "--messages", "500", "--seconds", "3"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "killed it with SIGKILL" in done.stdout
    assert done.stdout.endswith("Every promise was kept.\n")


class ForgetfulHost(Host):
    """A broker that loses its disk when it is killed."""

    def kill(self) -> None:
        super().kill()
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir()


def test_the_demo_notices_a_broken_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ForgetfulHost(tmp_path / "data", None)
    (tmp_path / "data").mkdir()
    try:
        assert trio.run(Demo(host, 200, 2.0, 0.5).run) is False
    finally:
        host.kill()
    assert "A promise was broken." in capsys.readouterr().out
