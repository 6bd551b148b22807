"""The commands that show and change pending messages, against a broker in a separate process."""

from __future__ import annotations

import io
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

import escapement
import escapement.sync
from escapement import AmendStatus, sync
from escapement.cli.main import run
from support.processes.broker import BrokerProcess
from support.processes.command_lines import TIMEOUT_S, Say


def test_peek_shows_pending_messages_in_delivery_order(say: Say, broker: BrokerProcess) -> None:
    """B6: by due time, key, id and property, without consuming; also with the sync client."""
    say("admin", "subscriptions", "create", "ahead", "s")
    say("produce", "ahead", "far", "--delay", "2h", "--key", "k")
    say("produce", "ahead", "near", "--delay", "1h", "--property", "source=till")
    for _ in range(2):
        rows = json.loads(say("peek", "ahead", "-o", "json"))
        assert [(row["payload"], row["key"]) for row in rows] == [("near", None), ("far", "k")]
        assert rows[0]["due_at_ms"] < rows[1]["due_at_ms"]
    assert "near" in say("peek", "ahead", "--count", "1")

    def payloads_of(*words: str) -> list[str]:
        return [row["payload"] for row in json.loads(say("peek", "ahead", *words, "-o", "json"))]

    middle = (datetime.now(UTC) + timedelta(minutes=90)).isoformat()
    assert payloads_of("--from", middle) == ["far"]
    assert payloads_of("--until", middle) == ["near"]
    assert payloads_of("--key", "k") == ["far"]
    assert payloads_of("--id", "1") == ["near"]
    assert payloads_of("--property", "source=till") == ["near"]
    assert payloads_of("--property", "source=till", "--key", "k") == []
    assert "no matching message is pending" in say("peek", "ahead", "--key", "none")
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


def test_a_namespace_is_forecast_with_what_is_overdue(say: Say) -> None:
    """B6."""
    say("admin", "namespaces", "create", "sky/eu")
    for topic in ("sky/eu/rain", "sky/eu/snow"):
        say("admin", "subscriptions", "create", topic, "s")
        say("produce", topic, "x", "--delay", "30m")
        say("produce", topic, "y")
    drawn = say("forecast", "--namespace", "sky/eu", "--for", "1d")
    assert "2 messages to fall due in this time" in drawn
    assert "2 messages overdue: 2 due, 0 in retry\ncounted at " in drawn
    found = json.loads(say("forecast", "--all", "--for", "1d", "-o", "json"))
    assert (found["namespace"], found["scheduled"] >= 2, found["overdue"] >= 2) == (
        None,
        True,
        True,
    )
    say("admin", "namespaces", "create", "sky/us")
    assert "nothing falls due on sky/us" in say("forecast", "--namespace", "sky/us")
    assert "there is no namespace" in say("forecast", "--namespace", "sky/mars", fails=1)
    assert "one of TOPIC, --namespace and --all" in say("forecast", fails=2)
    assert "one of TOPIC" in say("forecast", "sky/eu/rain", "--all", fails=2)


def test_overview_shows_the_subscriptions_of_many_topics_in_pages(say: Say) -> None:
    """B6."""
    say("admin", "namespaces", "create", "over/view")
    for topic in ("over/view/a", "over/view/b"):
        say("admin", "subscriptions", "create", topic, "s")
    following = "... continue with --after over/view/a s"
    words = ["admin", "subscriptions", "overview", "over/view", "--count", "1"]
    assert "over/view/a" in say(*words, notes=following)
    page = ["admin", "subscriptions", "overview", "over/view", "--search", "view", "-o", "json"]
    found = json.loads(say(*page, "--after", "over/view/a", "s"))
    assert [row["topic"] for row in found["subscriptions"]] == ["over/view/b"]
    assert found["next"] is None
    assert "no subscriptions" in say("admin", "subscriptions", "overview", "--search", "nowhere!")


def test_printed_id_names_the_message_in_every_command(say: Say) -> None:
    """B1, B6, N1, N3: an id of another topic than TOPIC is refused."""
    say("admin", "subscriptions", "create", "named", "s")
    first, second = say("produce", "named", "a", "b", "--delay", "1h").split()
    ids = ["public/default/named@0", "public/default/named@1"]
    assert [first, second] == ids
    assert json.loads(say("message", "show", "named", second, "-o", "json"))["payload"] == "b"
    (row,) = json.loads(say("peek", "named", "--id", second, "-o", "json"))
    assert row["payload"] == "b"
    assert say("read", "named", "--from", second) == "b\n"
    assert say("consume", "named", "x", "--kind", "failover", "--from", second, "--count", "1")
    seek = ["admin", "subscriptions", "seek", "named", "s", "--offset"]
    assert "offset 1" in say(*seek, second)
    say("admin", "subscriptions", "create", "named", "t", "--from", first)
    other = "public/default/other@1"
    for words in (
        ["message", "show", "named", other],
        ["peek", "named", "--id", other],
        ["read", "named", "--from", other],
        ["consume", "named", "y", "--from", other],
        ["cancel", "named", other],
        [*seek, other],
        ["admin", "subscriptions", "create", "named", "y", "--from", other],
    ):
        assert "belongs to another topic than named" in say(*words, fails=2)
    assert "is not a message id" in say("message", "show", "named", "x", fails=2)


def test_message_show_prints_the_message_history(say: Say) -> None:
    """Q2, B6: by topic and offset, or by its id."""
    say("admin", "subscriptions", "create", "histories", "s")
    id = say("produce", "histories", "x", "--delay", "1h", "--key", "k").strip()
    output = say("message", "show", id)
    assert "to_be_fired" in output
    assert "pending" in output
    found = json.loads(say("message", "show", "histories", "0", "-o", "json"))
    assert (found["state"], found["key"], found["payload"]) == ("to_be_fired", "k", "x")
    assert [one["state"] for one in found["subscriptions"]] == ["pending"]
    assert "no message 1" in say("message", "show", "histories", "1", fails=1)
    say("message", "show", "histories", fails=2)


def test_messages_are_cancelled_by_id_with_a_status_each(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: by printed id, by offset, or from standard input. Exit code 1 if one is not cancelled."""
    say("admin", "subscriptions", "create", "recall", "s")
    first = say("produce", "recall", "a", "--delay", "1h").strip()
    say("produce", "recall", "b", "c", "--delay", "1h")
    (row,) = json.loads(say("cancel", "recall", first, "-o", "json"))
    assert row == {"id": first, "status": "cancelled", "handed": []}
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


def test_replaced_and_kept_messages_are_named(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """B11: produce prints the id of a kept message, and tells on stderr what happened."""

    def produce(*words: str) -> tuple[int, str, str]:
        code = run(["produce", "carts", *words, "--delay", "1h"])
        out, err = (text.decode() for text in capsysbinary.readouterr())
        return code, out.strip(), err

    first = say("produce", "carts", "a", "--delay", "1h", "--replace", "cart-7").strip()
    code, second, err = produce("b", "--replace", "cart-7")
    assert (code, err) == (0, f"replaced {first}\n")
    kept = produce("c", "--replace", "cart-7", "--replace-mode", "first")
    assert kept == (0, second, f"kept {second}: the new message was dropped\n")
    debounce = ("--replace-mode", "debounce", "--max-wait", "5m")
    code, _, err = produce("d", "--replace", "cart-7", *debounce)
    assert (code, err) == (0, f"replaced {second}\n")
    (row,) = json.loads(say("peek", "carts", "-o", "json"))
    assert row["payload"] == "d"
    assert row["due_in_ms"] <= 300_000
    for wrong in (
        ("--replace", "k", "--replace-mode", "debounce"),
        ("--replace", "k", "--max-wait", "5m"),
        ("--replace-mode", "first"),
    ):
        assert produce("x", *wrong)[0] == 2


def test_message_with_a_known_dedup_key_is_not_stored(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """B3, B1: produce prints the first id again. The dedup key also cancels the message."""
    first = say("produce", "once", "a", "--dedup", "order-7", "--delay", "1h")
    assert run(["produce", "once", "again", "--dedup", "order-7"]) == 0
    out, err = (text.decode() for text in capsysbinary.readouterr())
    assert (out, err) == (first, f"duplicate of {first.strip()}: nothing was stored\n")
    (row,) = json.loads(say("cancel", "once", "--dedup", "order-7", "-o", "json"))
    assert row == {"id": first.strip(), "status": "cancelled", "handed": []}
    assert "no message with the dedup key" in say("cancel", "once", "--dedup", "x", fails=1)
    assert "single message" in say("produce", "once", "a", "b", "--dedup", "y", fails=2)
    say("cancel", "once", "0", "--dedup", "order-7", fails=2)


def test_group_is_closed_shown_and_deleted(say: Say) -> None:
    """Q10: the follow-up fires when the subscription has acknowledged the whole group."""
    say("admin", "subscriptions", "create", "imports", "s")
    say("produce", "imports", "a", "b", "--group", "import-7")
    say("produce", "imports", "c", "--group", "other")
    close = ["close", "imports", "import-7", "s", "reports", "done"]
    options = ["--key", "k", "--property", "kind=import", "--priority", "7", "-o", "json"]
    answer = json.loads(say("admin", "groups", *close, *options))
    assert (answer["group"], answer["state"], answer["messages"]) == ("import-7", "closed", 2)
    assert [one["remaining"] for one in answer["completions"]] == [2]
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


def test_sync_client_closes_groups(broker: BrokerProcess) -> None:
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
        assert client.groups.get("blocks", "g").completions[0].state == "fired"
        client.groups.delete("blocks", "g")
        assert client.groups.list("blocks") == []


def test_messages_are_rescheduled_by_id(say: Say) -> None:
    """B1: after a delay, to a time, and to now."""
    say("admin", "subscriptions", "create", "replan", "s")
    say("produce", "replan", "a", "b", "c", "--delay", "1h")
    (row,) = json.loads(say("reschedule", "replan", "0", "--delay", "3h", "-o", "json"))
    assert row == {"id": "public/default/replan@0", "status": "rescheduled", "handed": []}
    at = datetime.now(UTC) + timedelta(days=30)
    say("reschedule", "replan", "1", "--at", at.isoformat())
    say("run-now", "replan", "2")
    assert say("consume", "replan", "s", "--count", "1") == "c\n"
    rows = json.loads(say("peek", "replan", "-o", "json"))
    assert [row["payload"] for row in rows] == ["a", "b"]
    assert rows[0]["due_in_ms"] > 2 * 3_600_000
    assert "--delay or --at" in say("reschedule", "replan", "0", fails=2)


def test_spread_scatters_messages_of_commands(say: Say) -> None:
    """B12: produce, reschedule, run-now and redrive."""
    say("admin", "subscriptions", "create", "wide", "s", "--max-deliveries", "1")

    def due_in_s() -> list[float]:
        rows = json.loads(say("peek", "wide", "--count", "100", "-o", "json"))
        assert len(rows) == 40
        return [row["due_in_ms"] / 1000 for row in rows]

    def check(begin_s: float) -> None:
        found = due_in_s()
        assert begin_s - 60 < found[0]
        assert found[-1] < begin_s + 3600
        assert found[-1] - found[0] > 1800

    say("produce", "wide", *"x" * 40, "--delay", "2h", "--spread", "1h")
    check(7200)
    say("reschedule", "wide", "--all", "--delay", "5h", "--spread", "1h")
    check(18_000)
    say("run-now", "wide", "--all", "--spread", "1h")
    check(0)
    say("run-now", "wide", "--all")
    say("consume", "wide", "s", "--count", "40", "--then", "nack")
    redrive = ["dlq", "redrive", "wide", "s", "--spread", "1h", "-o", "json"]
    deadline = time.monotonic() + 30
    while json.loads(say(*redrive))["redriven"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "--spread" in say("produce", "wide", "x", "--spread", "soon", fails=2)


def test_matching_messages_are_cancelled_after_a_dry_run(
    say: Say, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """B1: by key, property and due time. The output counts messages by status."""
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


def test_sync_client_spreads_messages_and_changes_schedules(broker: BrokerProcess) -> None:
    """B2, B12."""
    with sync.connect(broker.url) as connected:
        producer = connected.producer("widely")
        receipts = producer.send_many([b"x"] * 20, delay="1h", spread="1h")
        single = producer.submit(b"y", delay="1h", spread="1h").result()
        places = [connected.show(one).due_at for one in [*receipts, single]]
        assert len(set(places)) == 21
        assert connected.reschedule(receipts, delay="2h", spread="1h").done.all()
        assert connected.run_now(receipts, spread="1h").done.all()
        connected.schedules.create("pulse", "pulses", every="1h", spread="1m")
        changed = connected.schedules.update("pulse", every="2h", spread=None)
        assert (changed.every, changed.spread) == (timedelta(hours=2), None)
        assert connected.schedules.run_now("pulse").published == 1
        first, second = connected.schedules.next("pulse", count=2)
        assert second - first == timedelta(hours=2)
        connected.schedules.delete("pulse")


def test_sync_client_cancels(broker: BrokerProcess) -> None:
    """B1."""
    with sync.connect(f"escapement://127.0.0.1:{broker.port}") as client:
        receipts = client.producer("blocking").send_many([b"a", b"b"], delay=timedelta(hours=1))
        (outcome,) = client.cancel(receipts[1])
        assert outcome.done
        assert client.reschedule(receipts[0], delay=timedelta(hours=2)).done.all()
        assert client.run_now([0], topic="blocking").done.all()
        assert len(client.select("blocking")) == 0  # no subscription needs the due messages
        assert client.cancel(receipts).done.all()
        assert client.cancel([5], topic="blocking")[0].status is AmendStatus.UNKNOWN
