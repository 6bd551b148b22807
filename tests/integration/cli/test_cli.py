"""The commands that send and consume.

The broker is a separate process. Commands run in the test process unless a test needs a
separate process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

import escapement
import escapement.sync
from escapement.cli.input.remote import with_broker
from escapement.client.connection.address import Address
from escapement.protocol import commands as wire
from support.processes.broker import BrokerProcess
from support.processes.command_lines import TIMEOUT_S, Say, process


def test_consumed_message_has_its_id_key_properties_and_due_time(say: Say) -> None:
    """P1: also the payload and the attempt, of a delayed message."""
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


def test_consumed_message_is_not_delivered_again(say: Say) -> None:
    """V2."""
    say("admin", "subscriptions", "create", "once", "s")
    say("produce", "once", "a", "b", "c")
    assert say("consume", "once", "s", "--count", "2") == "a\nb\n"
    assert say("consume", "once", "s", "--count", "1") == "c\n"


def test_printed_message_is_released_nacked_or_acknowledged(say: Say) -> None:
    """V1, V4: a nack counts as an attempt and a release does not; each can set a delay."""
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
    assert "--again-in needs --then nack" in said


def test_past_delivery_time_means_now(say: Say) -> None:
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


def test_a_new_subscription_may_begin_with_the_first_message(say: Say) -> None:
    assert say("produce", "history", "old") == "public/default/history@0\n"  # the full topic name
    assert say("consume", "history", "s", "--from", "earliest", "--count", "1") == "old\n"


@pytest.mark.parametrize(("kind", "without"), [("shared", "due"), ("exclusive", "published")])
def test_new_subscription_at_latest_says_which_messages_it_lacks(
    kind: str, without: str, say: Say, broker: BrokerProcess
) -> None:
    """N1: the messages that a new subscription lacks might be those the user waits for."""
    topic = f"hinted-{kind}"
    say("produce", topic, "old")
    words = ("consume", topic, "s", "--kind", kind, "--count", "1")
    with process(broker, *words) as consumer:
        assert consumer.stderr is not None
        hint = consumer.stderr.readline().decode()
        assert hint.startswith(f"created subscription s, without messages that were {without} ")
        say("produce", topic, "new")
        assert consumer.communicate(timeout=TIMEOUT_S) == (b"new\n", b"")
    say("produce", topic, "newer")
    assert say(*words) == "newer\n"  # without the hint


def test_consume_says_that_it_creates_the_topic(broker: BrokerProcess) -> None:
    """A topic with a typo would be silent for ever."""
    with process(broker, "consume", "shop-typo", "phone") as consumer:
        assert consumer.stderr is not None
        hint = consumer.stderr.readline().decode()
        consumer.terminate()
    assert hint == "created topic shop-typo and subscription phone\n"


def test_subscription_begins_at_and_seeks_to_offsets_and_times(say: Say) -> None:
    """N1, N3: also to the earliest and the latest message."""
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


def test_seek_of_the_sync_client_drops_delivered_messages(broker: BrokerProcess) -> None:
    """N3: the sync client seeks as the async client does."""
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
    """N1: in arrival order, repeatably, also with the sync client."""
    say("produce", "pages", "a", "b", "c", "--delay", "1h", "--key", "k")
    for _ in range(2):
        assert say("read", "pages") == "a\nb\nc\n"
    assert say("read", "pages", "--from", "1", "--count", "1") == "b\n"
    (line,) = say("read", "pages", "--from", "2", "-o", "json").splitlines()
    row = json.loads(line)
    assert (row["id"], row["payload"], row["key"]) == ("public/default/pages@2", "c", "k")
    assert row["due_ms"] - row["published_ms"] == 3_600_000
    assert say("read", "pages", "--from", "3", notes="pages has no messages at offset 3") == ""
    assert "there is no topic" in say("read", "no-such-pages", fails=1)
    with escapement.sync.connect(broker.url) as client:
        pages = client.read("pages", 1, serializer=str, page_messages=1)
        assert [page.values() for page in pages] == [["b"], ["c"]]


def test_lower_priority_number_is_delivered_first(say: Say) -> None:
    """V5: from the command line, with priority ageing set."""
    say("admin", "subscriptions", "create", "graded", "s")
    for priority in ("60", "0", "255", "50"):
        say("produce", "graded", priority, "--priority", priority)
    say("produce", "graded", "x", "--priority", "256", fails=2)
    words = ["admin", "subscriptions", "update", "graded", "s", "--priority-ageing", "1h"]
    assert "1h" in say(*words)
    assert say("consume", "graded", "s", "--count", "4") == "0\n50\n60\n255\n"


def test_consume_command_takes_a_key_range(say: Say) -> None:
    """V16, Q9: a subscription in key order."""
    say("admin", "subscriptions", "create", "keyed", "s", "--order", "key", "--on-retry", "skip")
    for key in ("a", "b", "c"):
        say("produce", "keyed", key, "--key", key)
    slot = escapement.slot_of("b")
    words = ["consume", "keyed", "s", "--count", "1", "--keys"]
    assert say(*words, f"{slot}-{slot}") == "b\n"
    say(*words, "5", fails=2)
    assert "is not a key range" in say(*words, "0-65536", fails=1)
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


def test_every_command_shows_a_json_payload_as_text_or_base64(say: Say, tmp_path: Path) -> None:
    """N1, V1: a truncated payload may end in the middle of a character."""
    lines = [b"\xff\x00", b"x" + 300 * "é".encode()]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    names = ("odd", "s")
    say("admin", "subscriptions", "create", *names, "--max-deliveries", "1")
    say("produce", "odd", "--file", str(tmp_path / "lines"))
    base64, text = ("payload_base64", "/wA="), ("payload", lines[1].decode())
    beginning = ("payload", "x" + 255 * "é")

    def payload_fields(*words: str) -> list[tuple[str, str]]:
        """Return the name and value of each payload field."""
        found = [json.loads(line) for line in say(*words, "-o", "json").splitlines()]
        rows = found[0] if isinstance(found[0], list) else found
        return [(n, row[n]) for row in rows for n in row if n.startswith("payload")]

    async def fail_all() -> None:
        async with escapement.connect(f"escapement://{os.environ['ESCAPEMENT_BROKER']}") as broker:
            async with broker.consumer(*names) as inbox:
                for _ in lines:
                    assert await inbox.receive(timeout_s=TIMEOUT_S)
            with trio.fail_after(TIMEOUT_S):
                while len(await broker.admin("dlq.list", topic="odd", subscription="s")) < 2:
                    pass

    assert payload_fields("peek", "odd") == [base64, beginning]
    assert payload_fields("read", "odd") == [base64, text]
    assert payload_fields("message", "show", "odd", "0") == [base64]
    assert payload_fields("message", "show", "odd", "1") == [beginning]
    trio.run(fail_all)
    assert payload_fields("dlq", "list", *names) == [base64, beginning]
    assert payload_fields("dlq", "show", *names, "0") == [base64]
    assert payload_fields("dlq", "show", *names, "odd-s-DLQ@1") == [text]
    assert payload_fields("dlq", "find", *names, "odd@0") == [base64]
    assert "no topic" in say("dlq", "show", *names, "elsewhere@1", fails=1)
    other = ["--in", "odd-s-DLQ", "--offset", "elsewhere@1"]
    assert "another topic than odd-s-DLQ" in say("dlq", "purge", *names, *other, fails=2)
    assert r"\xff" in say("dlq", "list", *names)
    assert r"\xff" in say("message", "show", "odd", "0")


def test_argument_that_is_not_utf8_is_refused(say: Say) -> None:
    """Command-line arguments are bytes and may be invalid UTF-8."""
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


def test_interrupt_ends_a_consumer_and_acknowledges_printed_messages(
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


@pytest.mark.usefixtures("ctrl_c")
def test_interrupt_in_any_task_raises_keyboard_interrupt(broker: BrokerProcess) -> None:
    """An interrupt in the connection's task is not reported as a lost connection."""

    async def work(client: escapement.Broker) -> None:
        producer = await client.producer("interrupt")
        heard = producer._heard

        def interrupted(command: wire.Command) -> None:
            signal.raise_signal(signal.SIGINT)
            heard(command)

        producer._heard = interrupted  # type: ignore[method-assign]
        await producer.submit(b"c")
        while True:
            await client.admin("topics.list")

    with pytest.raises(KeyboardInterrupt):
        with_broker(Address("127.0.0.1", broker.port), work)


def test_full_disk_is_reported_in_one_line_and_acknowledges_nothing(
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


def test_closed_output_pipe_ends_a_consumer_without_a_traceback(
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
    # The message that was not printed is not acknowledged.
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
def test_invalid_arguments_are_usage_errors(say: Say, words: list[str], said: str) -> None:
    assert said in say(*words, fails=2)


def test_invalid_names_are_refused(say: Say) -> None:
    assert "cannot be a topic name" in say("produce", "a b", "x", fails=1)
    assert "cannot be a subscription name" in say("consume", "t", "a/b", fails=1)
