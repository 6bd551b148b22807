"""`escapement admin bulk`, against a broker in a separate process (B13)."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from escapement import BulkChange, sync
from escapement.cli.main import run
from support.processes.broker import BrokerProcess
from support.processes.command_lines import Say

COUNT = 300_000


def test_bulk_changes_on_the_command_line(
    say: Say,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """B13: preview, confirmation, progress, list, show and stop."""
    say("admin", "subscriptions", "create", "many", "s")
    say("produce", "many", "a", "b", "c", "--key", "k", "--delay", "1h")
    say("produce", "many", "d", "--property", "source=till", "--delay", "1h")
    bulk = ("admin", "bulk")
    assert "3 messages would be tried" in say(*bulk, "cancel", "many", "--key", "k", "--preview")
    found = json.loads(say(*bulk, "cancel", "many", "--all", "--preview", "-o", "json"))
    assert found == {"messages": 4, "complete": True}
    for answer, code in (("", 2), ("n\n", 130), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert run((*bulk, "cancel", "many", "--key", "k", "--reason", "returned")) == code
        out = capsysbinary.readouterr().out.decode()
    assert "Cancel 3 messages of many? [y/N]" in out
    (id,) = re.findall(r"Started bulk change (\d+)", out)
    asked = ("reschedule", "many", "--property", "source=till", "--delay", "2h", "--yes", "--wait")
    assert re.search(r"done +1 *\n", say(*bulk, *asked))
    shown = json.loads(say(*bulk, "show", "many", id, "-o", "json"))
    assert (shown["state"], shown["done"], shown["reason"]) == ("done", 3, "returned")
    listed = json.loads(say(*bulk, "list", "--namespace", "public/default", "-o", "json"))
    assert [row["action"] for row in listed] == ["reschedule", "cancel"]
    assert "returned" in say(*bulk, "list")
    assert "done" in say(*bulk, "stop", "many", id)
    assert json.loads(say(*bulk, "run-now", "many", "--all", "--preview", "-o", "json")) == {
        "messages": 1, "complete": True,
    }  # fmt: skip
    assert "no dead letters" in say(*bulk, "redrive", "many", "s", "--all", "--yes", fails=1)
    say(*bulk, "cancel", "many", "--yes", fails=2)
    say(*bulk, "cancel", "many", "--key", "k", "--all", "--yes", fails=2)
    say(*bulk, "reschedule", "many", "--all", "--yes", fails=2)
    with sync.connect(broker.url) as client:
        assert client.bulk.preview("many", everything=True).messages == 1
        change = client.bulk.wait(client.bulk.run_now("many", everything=True, spread="1h"))
        assert (change.done, client.bulk.list()[0]) == (1, change)
        assert client.bulk.stop("many", change.id) == client.bulk.show("many", change.id)


def large(client: sync.Broker) -> BulkChange | None:
    return next((one for one in client.bulk.list() if one.topic.endswith("/large")), None)


def test_interrupted_wait_leaves_the_bulk_change_running(broker: BrokerProcess) -> None:
    """B13: Ctrl-C says how to stop it."""
    with sync.connect(broker.url) as client:
        with client.producer("large") as producer:
            for _ in range(0, COUNT, 20_000):
                producer.send_many([b"x"] * 20_000, delay="1h")
        words = ["admin", "bulk", "cancel", "large", "--all", "--yes", "--wait"]
        with subprocess.Popen(
            [sys.executable, "-m", "escapement", *words],
            env=os.environ | {"ESCAPEMENT_BROKER": f"127.0.0.1:{broker.port}"},
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            while not (change := large(client)) or not change.handled:
                assert command.poll() is None
                time.sleep(0.01)
            command.send_signal(signal.SIGINT)
            _, err = command.communicate(timeout=60)
        assert command.returncode == 130
        (stop,) = re.findall(r"continues. To stop it: escapement (.+)", err)
        assert stop == f"admin bulk stop public/default/large {change.id}"
        assert client.bulk.wait(change).done == COUNT
