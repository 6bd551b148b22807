"""The administration commands, against a broker in a separate process."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import trio

import escapement
import escapement.sync
from escapement import sync
from escapement.cli.main import run
from escapement.storage.catalog.rule import FOREVER_MS
from escapement.storage.engine.open import open_engine
from escapement.storage.inbox import inbox, job
from support.processes.broker import BrokerProcess
from support.processes.command_lines import TIMEOUT_S, Say
from support.storage.inbox_entries import inbox_entry
from support.storage.staged_jobs import stage


def test_delays_are_configured_by_namespace(say: Say) -> None:
    """P2: the defaults, both options and disabled delays. JSON output is in milliseconds."""
    made = json.loads(say("admin", "namespaces", "create", "p2/eu", "-o", "json"))
    assert made["namespace"] == "p2/eu"
    assert (made["granularity_ms"], made["tick_ms"]) == (300_000, 10)
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


def test_lateness_is_shown_by_subscription_and_by_minute(say: Say) -> None:
    """B14: as tables and as JSON."""
    lateness = ("admin", "subscriptions", "lateness")
    say("admin", "subscriptions", "create", "late/cli/t", "s")
    nothing = "no messages were delivered in this time"
    assert say(*lateness, "late/cli/t", "s").strip() == nothing
    say("produce", "late/cli/t", "x", "y")
    say("consume", "late/cli/t", "s", "--count", "2")
    listed = json.loads(say(*lateness, "--namespace", "late/cli", "-o", "json"))
    assert (listed["within_ms"], listed["count"]) == (3_600_000, 50)
    (found,) = listed["worst"]
    assert (found["topic"], found["subscription"]) == ("late/cli/t", "s")
    assert found["delivered"] == 2
    assert found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    heads, line = say(*lateness, "--namespace", "late/cli", "--within", "1h").splitlines()
    assert heads.split() == ["topic", "subscription", "delivered", "p50", "p99", "max"]
    assert line.split()[:3] == ["late/cli/t", "s", "2"]
    minutes = json.loads(say(*lateness, "late/cli/t", "s", "-o", "json"))["minutes"]
    assert sum(one["delivered"] for one in minutes) == 2
    table = say(*lateness, "late/cli/t", "s").splitlines()
    assert table[0].split() == ["at", "delivered", "p50", "p99", "max"]
    assert len(table) == 1 + len(minutes)
    assert "or neither" in say(*lateness, "late/cli/t", fails=2)
    both = (*lateness, "late/cli/t", "s", "--namespace", "late/cli")
    assert "not both" in say(*both, fails=2)


def test_delay_policy_is_set_and_shown(say: Say) -> None:
    """B10."""
    say("admin", "topics", "create", "bounds/eu/t")
    bounds = ["--default", "5m", "--min", "1m", "--max", "30d"]
    made = json.loads(say("admin", "namespaces", "set-delays", *bounds, "bounds/eu", "-o", "json"))
    assert (made["default_delay_ms"], made["min_delay_ms"]) == (300_000, 60_000)
    say("admin", "topics", "set-delays", "bounds/eu/t", "--max", "90d")
    lines = say("admin", "topics", "get", "bounds/eu/t").splitlines()
    fields = dict(line.strip().split("  ", 1) for line in lines)
    fields = {name: value.strip() for name, value in fields.items()}
    assert (fields["max delay"], fields["min delay"]) == ("90d", "the namespace's")
    refused = say("produce", "bounds/eu/t", "x", "--delay", "1s", fails=1)
    assert "a delay of 1s. The minimum is 1m, set by namespace bounds/eu" in refused
    say("produce", "bounds/eu/t", "x")
    (pending,) = json.loads(say("peek", "bounds/eu/t", "-o", "json"))
    assert 290_000 < pending["due_in_ms"] <= 300_000
    assert "--default" in say("admin", "topics", "set-delays", "bounds/eu/t", fails=2)
    contrary = say("admin", "topics", "set-delays", "bounds/eu/t", "--min", "100d", fails=1)
    assert "max_delay_ms of 90d is shorter than min_delay_ms of 100d" in contrary


def test_forced_namespace_deletion_first_reports_what_it_deletes(
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
    fields = dict(line.strip().rsplit("  ", 1) for line in lines)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    assert fields["namespace"] == "words/eu"
    assert fields["delays enabled"] == "yes"
    assert (fields["granularity"], fields["tick"]) == ("5m", "10ms")
    head, *rows = say("admin", "namespaces", "list").splitlines()
    assert head.split() == ["namespace", "delays", "enabled", "granularity", "tick", "topics"]
    assert ["words/eu", "yes", "5m", "10ms", "0"] in [row.split() for row in rows]
    assert json.loads(say("admin", "namespaces", "delete", "words/eu", "-o", "json")) == {
        "deleted": "words/eu"
    }


def test_the_inbox_is_listed_and_discarded(say: Say, broker: BrokerProcess) -> None:
    assert say("admin", "inbox", "list") == "no inbox entries\n"
    say("admin", "topics", "create", "undelayed/eu/orders")
    say("admin", "namespaces", "disable-delayed-message", "undelayed/eu")
    engine = open_engine(None, broker.data)
    connection = engine.connect()
    connection.begin()
    waits = inbox_entry("undelayed/eu/orders", "one", b"a", b"b", delay_ms=[1, 2])
    inbox.insert(engine, connection, [waits, inbox_entry("undelayed/eu/quick", "one")], 1)
    connection.commit()
    connection.close()
    engine.close()

    def moved() -> bool:
        rows = json.loads(say("admin", "inbox", "list", "-o", "json"))
        return [row["target"] for row in rows] == ["undelayed/eu/orders"] and bool(
            rows[0]["reason"]
        )

    deadline = time.monotonic() + TIMEOUT_S
    while not moved():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (row,) = json.loads(say("admin", "inbox", "list", "-o", "json"))
    assert (row["entries"], row["messages"], row["stuck"]) == (1, 2, 0)
    assert "disabled in undelayed/eu" in row["reason"]
    assert "undelayed/eu/orders" in say("admin", "inbox", "list")
    discarded = say("admin", "inbox", "discard", "undelayed/eu/orders", "-o", "json")
    assert json.loads(discarded) == {"discarded": 1}
    assert say("admin", "inbox", "list") == "no inbox entries\n"


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
    schedule = json.loads(say("schedule", "show", "b2/eu/report", "-o", "json"))
    assert len(schedule["coming_ms"]) == 10
    assert schedule["coming_ms"][0] == made["next_at_ms"]
    assert "b2/eu/report" in say("schedule", "list", "b2/eu")
    assert say("schedule", "list", "public/default") == "no schedules\n"
    paused = json.loads(say("schedule", "pause", "b2/eu/report", "-o", "json"))
    assert (paused["state"], paused["next_at_ms"]) == ("paused", None)
    resumed = say("schedule", "resume", "b2/eu/report")
    assert "active" in resumed
    change = ["--cron", "30 8 * * *", "--until", "never", "--spread", "5m", "-o", "json"]
    changed = json.loads(say("schedule", "update", "b2/eu/report", *change))
    assert (changed["cron"], changed["timezone"]) == ("30 8 * * *", "Europe/Berlin")
    assert (changed["until_at_ms"], changed["spread_ms"]) == (None, 300_000)
    coming = say("schedule", "next", "b2/eu/report", "--count", "3").splitlines()
    assert len(coming) == 3
    assert all(" 08:30:00+0" in line for line in coming)
    as_json = json.loads(say("schedule", "next", "b2/eu/report", "-o", "json"))
    assert as_json[:3] == coming
    now = json.loads(say("schedule", "run-now", "b2/eu/report", "-o", "json"))
    assert (now["published"], now["last_at_ms"]) == (1, None)
    assert "at least one option" in say("schedule", "update", "b2/eu/report", fails=2)
    assert "already exists" in say(
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
def test_invalid_schedules_are_usage_errors(say: Say, wrong: list[str]) -> None:
    assert "Usage: escapement schedule create" in say(
        "schedule", "create", "s", "t", *wrong, fails=2
    )
    assert say("schedule", "list") == "no schedules\n"


def test_sync_client_receives_the_messages_of_a_schedule(broker: BrokerProcess) -> None:
    """B2, on a real clock."""
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
        (
            "admin subscriptions update meant s",
            "Give at least one option to change, such as --ack-wait",
        ),
        ("admin topics update meant", "Give at least one option to change, such as --paused-until"),
        ("admin topics update meant --quota-bytes 64MB", "'64MB' is not a size: write 64MiB"),
        ("consume meant s --from yesterday", "'yesterday' is not latest, earliest, an offset, "),
        ("admin subscriptions update meant s --max-in-flight many", "'many' is not a number"),
        ("cancel meant --all 1", "Name messages in one way: by ID, or"),
        (
            "cancel meant --from 2026-12-25T00:00Z --until 2026-12-24T00:00Z",
            "--until must be later than --from.",
        ),
        ("peek meant --from 2026-12-25T00:00Z --until 2026-12-25T00:00Z", "--until must be later"),
        ("reschedule meant 0 --delay 1h --at 2026-12-25T00:00Z", "either --delay or --at"),
    ],
)
def test_usage_error_says_what_to_write_instead(
    words: str, told: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(words.split()) == 2
    assert told in " ".join(capsysbinary.readouterr().err.decode().split())


def test_output_shows_durations_counts_and_positions_in_words(say: Say) -> None:
    say("produce", "said", "x", "--delay", "25h", "--property", "a=1", "--property", "b=2")
    _, row = say("peek", "said").splitlines()
    assert re.search(r" 1d 0h +0 ", row)
    assert re.search(r"properties +a=1, b=2 *$", say("message", "show", "said@0"), re.MULTILINE)
    assert say("cancel", "said", "0", "--dry-run") == "1 message would be tried\n"
    say("admin", "subscriptions", "create", "said", "s")
    seek = ("admin", "subscriptions", "seek", "said", "s")
    assert re.search(r"position +latest *$", say(*seek, "--latest"), re.MULTILINE)
    assert re.search(r"position +offset 0 *$", say(*seek, "--offset", "0"), re.MULTILINE)
    output = say(*seek, "--time", "2026-12-24T18:00Z")
    assert re.search(r"position +2026-12-2\d \d\d:00:00", output)
    assert re.search(r"paused until +forever *$", say("pause", "said"), re.MULTILINE)
    assert re.search(r"paused until +not paused *$", say("resume", "said"), re.MULTILINE)
    assert "Look less far ahead" in say("forecast", "said", "--for", "99999d", fails=1)
    say("produce", "said/eu/topic", "x")
    assert "with --force" in say("admin", "namespaces", "delete", "said/eu", fails=1)
    assert "7-3 is not a key range" in say("consume", "said", "s", "--keys", "7-3", fails=1)


def test_policy_is_shown_in_words_and_as_numbers_in_json(say: Say) -> None:
    """Most policies use 0 for "no limit" or for an inherited value."""
    say("admin", "subscriptions", "create", "worded", "s", "--max-deliveries", "3")
    output = say("admin", "subscriptions", "get", "worded", "s")
    for name, value in (
        ("ack wait", "the broker's, or no limit if not shared"),
        ("max backoff", "no limit"),
        ("max deliveries", "3"),
        ("dead letter topic", "TOPIC-SUBSCRIPTION-DLQ"),
        ("expired to dead letter", "no"),
        ("paused until", "not paused"),
        ("max rate", "no limit"),
    ):
        assert re.search(rf"^{name} +{value} *$", output, re.MULTILINE), name
    output = say("admin", "topics", "update", "worded", "--quota-bytes", "64MiB")
    for name, value in (("ttl", "the namespace's"), ("quota bytes", "67.1 MB")):
        assert re.search(rf"^{name} +{value} *$", output, re.MULTILINE), name
    output = say("admin", "namespaces", "get", "public/default")
    for name, value in (("ttl", "never"), ("retention", "1d"), ("retention bytes", "no limit")):
        assert re.search(rf"^{name} +{value} *$", output, re.MULTILINE), name
    told = json.loads(say("admin", "subscriptions", "get", "worded", "s", "-o", "json"))
    assert (told["ack_wait_ms"], told["dead_letter_topic"], told["max_rate"]) == (0, "", 0)
    helped = say("admin", "subscriptions", "update", "--help")
    assert "Longest wait for a retry or an acknowledgement. 0: no limit." in " ".join(
        helped.split()
    )


def test_subscription_policy_is_changed_shown_and_reset(say: Say) -> None:
    """V4: durations in words, one option at a time, and back to the default."""
    subscriptions = ["admin", "subscriptions"]
    say(*subscriptions, "create", "retry", "s", "--min-backoff", "1s")
    say(*subscriptions, "update", "retry", "s", "--ack-wait", "1m", "--max-backoff", "1h")
    say(*subscriptions, "update", "retry", "s", "--jitter", "0.1")
    output = say(*subscriptions, "get", "retry", "s")
    for name, value in (("ack wait", "1m"), ("min backoff", "1s"), ("max backoff", "1h")):
        assert re.search(rf"{name} +{value}\b", output)
    say(*subscriptions, "update", "retry", "s", "--max-backoff", "default")
    told = json.loads(say(*subscriptions, "get", "retry", "s", "-o", "json"))
    assert (told["max_backoff_ms"], told["jitter"], told["ack_wait_ms"]) == (0, 0.1, 60_000)
    assert json.loads(say("admin", "topics", "get", "retry", "-o", "json"))["topic"]
    refused = say(*subscriptions, "update", "retry", "s", "--max-backoff", "1ms", fails=1)
    assert "max_backoff_ms of 1ms is shorter than min_backoff_ms of 1s" in refused
    assert "is not from 0 to 1" in say(
        *subscriptions, "update", "retry", "s", "--jitter", "2", fails=2
    )
    assert "at least one option" in say(*subscriptions, "update", "retry", "s", fails=2)


def test_dead_letters_are_listed_shown_redriven_and_purged(say: Say) -> None:
    """V1: the consumer disconnects without acknowledging its messages."""
    names = ["payments", "s"]
    say("admin", "subscriptions", "create", *names, "--max-deliveries", "1")
    assert "has no dead letters" in say("dlq", "list", *names)
    for value in ("one", "two", "three"):
        say("produce", "payments", value, "--key", "k")

    async def fail_all() -> list[dict[str, Any]]:
        async with escapement.connect(f"escapement://{os.environ['ESCAPEMENT_BROKER']}") as broker:
            async with broker.consumer(*names) as inbox:
                for _ in range(3):
                    assert await inbox.receive(timeout_s=TIMEOUT_S)
            with trio.fail_after(TIMEOUT_S):
                found: list[dict[str, Any]] = []
                while len(found) < 3:
                    found = await broker.admin("dlq.list", topic="payments", subscription="s")
            return found

    first, second, _ = trio.run(fail_all)
    listed = json.loads(say("dlq", "list", *names, "-o", "json"))
    assert [row["payload"] for row in listed] == ["one", "two", "three"]
    assert "disconnect" in say("dlq", "list", *names)
    dead_letter = json.loads(say("dlq", "show", *names, str(first["offset"]), "-o", "json"))
    assert (dead_letter["payload"], dead_letter["key"], dead_letter["attempts"]) == ("one", "k", 1)
    assert "public/default/payments" in say("dlq", "show", *names, str(first["offset"]))
    assert "no dead letter" in say("dlq", "show", *names, "77", fails=1)
    assert "3 would be moved back" in say("dlq", "redrive", *names, "--dry-run")
    one = ["--offset", str(first["offset"]), "--dry-run"]
    assert json.loads(say("dlq", "purge", *names, *one, "-o", "json")) == {"would_be_purged": 1}
    assert "do not exist" in say("dlq", "purge", *names, "--offset", "77", "--dry-run", fails=1)
    assert "1 moved back" in say("dlq", "redrive", *names, "--offset", str(first["offset"]))
    assert "1 deleted" in say("dlq", "purge", *names, "--offset", str(second["offset"]))
    assert "do not exist" in say(
        "dlq", "redrive", *names, "--offset", str(second["offset"]), fails=1
    )
    elsewhere = ("--in", "payments-s-DLQ")
    assert "three" in say("dlq", "list", *names, *elsewhere)
    redriven = say("dlq", "redrive", *names, *elsewhere, "-o", "json")
    assert json.loads(redriven) == {"redriven": 1}
    assert json.loads(say("dlq", "purge", *names, "-o", "json")) == {"purged": 0}
    assert "has no dead letters" in say("dlq", "list", *names)
    assert sorted(say("consume", *names, "--count", "2").split()) == ["one", "three"]


def test_limits_are_set_and_shown_with_units(say: Say) -> None:
    """P10, Q3, Q4, V18."""
    say("admin", "subscriptions", "create", "limited", "s")
    topic = ["admin", "topics", "update", "limited"]
    output = say(*topic, "--ttl", "3d", "--quota-bytes", "64MiB", "--max-publish-rate", "2.5")
    assert "3d" in output
    assert "2.5" in output
    assert "not a valid rate" in say(*topic, "--max-publish-rate", "-1", fails=2)
    subscription = ["admin", "subscriptions", "update", "limited", "s"]
    output = say(*subscription, "--dispatch", "least_busy", "--expired-to-dead-letter", "yes")
    assert "least_busy" in output
    assert "yes" in output
    assert "mine" in say(*subscription, "--dispatch", "mine", fails=2)


def test_a_topic_and_a_subscription_are_paused_and_resumed(say: Say) -> None:
    say("admin", "subscriptions", "create", "pausing", "s")
    assert "forever" in say("pause", "pausing", "s")
    assert "forever" in say("admin", "subscriptions", "get", "pausing", "s")
    assert "2999-12-24" in say("pause", "pausing", "--until", "2999-12-24T12:00Z")
    update = ["admin", "topics", "update", "pausing", "--paused-until"]
    assert "2998-12-24" in say(*update, "2998-12-24T12:00Z")
    assert "forever" in say(*update, "forever")
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


def test_sync_client_pauses_and_resumes(broker: BrokerProcess) -> None:
    with escapement.sync.connect(broker.url) as client:
        with client.consumer("sync-pause", "s", serializer=str) as inbox:
            client.pause("sync-pause", "s")
            client.pause("sync-pause", duration="1ms")
            with client.producer("sync-pause", serializer=str) as producer:
                producer.send("one")
            client.resume("sync-pause", "s")
            assert inbox.receive(timeout_s=TIMEOUT_S).value == "one"


def test_broker_stats_are_shown(say: Say) -> None:
    stats = json.loads(say("admin", "broker", "stats", "-o", "json"))
    assert stats["database"] == "up"
    assert stats["lease_held"] is True
    assert "lease held" in say("admin", "broker", "stats")


def test_number_of_log_tables_changes_while_the_broker_runs(say: Say) -> None:
    """N5."""
    before = json.loads(say("admin", "broker", "stats", "-o", "json"))
    tables = before["table_parallelism"] + 1
    update = ["admin", "broker", "update", "-o", "json", "--table-parallelism"]
    after = json.loads(say(*update, str(tables)))
    assert after["table_parallelism"] == tables
    assert after["log_generation"] == before["log_generation"] + 1
    say(*update, "0", fails=2)


def test_last_broker_option_on_a_command_line_wins(say: Say, broker: BrokerProcess) -> None:
    unused, there = "127.0.0.1:1", f"127.0.0.1:{broker.port}"
    say("admin", "--broker", unused, "broker", "stats", "--broker", there)
    say("admin", "--broker", f"escapement://{there}", "broker", "stats")
    refused = say("admin", "--broker", unused, "broker", "stats", fails=1)
    assert refused == (
        "escapement: cannot connect to escapement://127.0.0.1:1: Connection refused; "
        "start a broker with `escapement serve`, or check the address\n"
    )


def test_refusal_by_the_broker_is_one_line_and_exit_code_1(say: Say) -> None:
    assert say("admin", "namespaces", "get", "no/where", fails=1).count("\n") == 1
    enable = ["admin", "namespaces", "enable-delayed-message"]
    assert "tenant/namespace" in say(*enable, "alone", fails=1)
    assert "create it" in say(*enable, "no/where", fails=1)
    say("admin", "namespaces", "create", "refused/eu")
    assert "does not fit" in say(*enable, "-t", "10m", "refused/eu", fails=1)
    assert "is not a duration" in say(*enable, "-t", "fast", "refused/eu", fails=2)
