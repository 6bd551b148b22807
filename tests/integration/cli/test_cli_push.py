"""`escapement push` in a process of its own, and `escapement admin push`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import escapement
from escapement.cli.output.table import counted
from support.certificates import Authority
from support.code_blocks import DOCS, blocks
from support.processes.broker import PATIENT, BrokerProcess
from support.processes.command_lines import Say
from support.processes.http_server import HttpServerProcess
from support.webhook_server import status, webhook_server

TARGET: Final = ("orders", "billing")


def test_targets_are_managed_on_the_command_line(say: Say, broker: BrokerProcess) -> None:
    """B16: only create and rotate print a secret."""
    push = ("admin", "push")
    say("admin", "subscriptions", "create", *TARGET)
    assert "no push targets" in say(*push, "list")
    assert "URL" in say(*push, "create", *TARGET, "https://user:pass@a.example/", fails=1)
    once = "not shown again"
    made = say(*push, "create", *TARGET, "https://a.example/hook", "--timeout", "3s", notes=once)
    assert len(re.findall(r"whsec_[A-Za-z0-9+/=]{44}", made)) == 1
    assert "already" in say(*push, "create", *TARGET, "https://a.example/hook", fails=1)
    say(*push, "update", *TARGET, fails=2)
    say(*push, "update", *TARGET, "--concurrency", "3", "--timeout", "default")
    say(*push, "pause", *TARGET)
    shown = json.loads(say(*push, "show", *TARGET, "-o", "json"))
    assert (shown["concurrency"], shown["timeout_ms"], shown["paused"]) == (3, 10_000, True)
    say(*push, "resume", *TARGET)
    assert "whsec_" in say(*push, "rotate", *TARGET, "--keep", "1h", notes=once)
    listed = say(*push, "list", "--namespace", "public/default")
    assert "https://a.example/hook" in listed
    assert "whsec_" not in listed + say(*push, "show", *TARGET)
    assert "billing" in say(*push, "delete", *TARGET)
    assert "no push target" in say(*push, "show", *TARGET, fails=1)


def verifier() -> Callable[[str, dict[str, str], bytes], bool]:
    """Return the function of the guide that verifies a post."""
    (code,) = blocks(DOCS / "guides" / "push.md", "python")
    names: dict[str, Any] = {}
    exec(code.compiled(), names)
    found: Callable[[str, dict[str, str], bytes], bool] = names["verify"]
    return found


async def test_process_posts_messages_and_stops_on_a_signal(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """B16: the posts are verified with the code of the guide."""
    authority, verify = Authority(tmp_path / "ca"), verifier()
    env = {**os.environ, "ESCAPEMENT_BROKER": f"127.0.0.1:{broker.port}"}
    program = [sys.executable, "-m", "escapement"]

    async def tell(*words: str) -> Any:
        done = await trio.run_process([*program, *words], env=env, capture_stdout=True)
        return json.loads(done.stdout) if words[-1] == "json" else done.stdout

    async with webhook_server(authority.certify("127.0.0.1")) as server:
        names = ("letters", "sent")
        await tell("admin", "subscriptions", "create", *names)
        url = f"https://127.0.0.1:{server.port}/hook"
        secret = (await tell("admin", "push", "create", *names, url, "-o", "json"))["secret"]
        server.answers.extend([status(503, {"Retry-After": "0"}), status(204), status(410)])
        process = await trio.lowlevel.open_process(
            [*program, "push", "--target-ca", authority.ca, "--allow-network", "127.0.0.0/8"],
            env=env,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            with trio.fail_after(60):
                line = await process.stdout.receive_some()
                assert line == b"escapement push is ready with 1 target\n"
                await tell("produce", "letters", "one")
                one, again = await server.until(2)
                await tell("produce", "letters", "two")
                _, _, two = await server.until(3)
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
                while b"rejected" not in (listed := await tell("dlq", "list", *names)):
                    pass
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await process.stdout.aclose()
    assert (one.body, again.body, two.body) == (b"one", b"one", b"two")
    assert one.headers["webhook-id"] == again.headers["webhook-id"] != two.headers["webhook-id"]
    for post in server.posts:
        assert verify(secret, post.headers, post.body)
        assert not verify(secret, post.headers, post.body + b"x")
        assert not verify("whsec_" + "A" * 44, post.headers, post.body)
        old = {**post.headers, "webhook-timestamp": str(int(time.time()) - 600)}
        assert not verify(secret, old, post.body)
    assert re.search(rb"rejected +HTTP 410 +1 ", listed), listed


@pytest.mark.parametrize("command", ["gateway", "console"])
async def test_server_pushes_in_its_own_process_and_stops_on_a_signal(
    command: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    """B16: one process takes a message over HTTP and posts it."""
    names, topic = {"topic": f"shop/eu/{command}", "subscription": "sent"}, f"shop/eu/{command}"
    options = ("--push", "--allow-network", "127.0.0.0/8")
    async with (
        webhook_server(None) as server,
        escapement.connect(broker.url, settings=PATIENT) as native,
    ):
        await native.admin("subscriptions.create", **names)
        url = f"http://127.0.0.1:{server.port}/hook"
        await native.admin("push.create", **names, url=url)
        started = await trio.to_thread.run_sync(
            lambda: HttpServerProcess(command, tmp_path, broker.url, *options)
        )
        try:
            said = (tmp_path / f"{command}.out").read_text()
            targets = counted(len(await native.admin("push.list")), "push target")
            assert said == f"escapement {command} with {targets} is ready on {started.url}\n"
            async with started.client(topic) as http:
                assert (await http.post("messages", content=b"one")).status_code == 201
            with trio.fail_after(60):
                (post,) = await server.until(1)
                assert await started.stop() == 0
            assert post.body == b"one"
            assert "push.ready" in started.complaints()
            assert "Traceback" not in started.complaints()
            (row,) = await native.admin("subscriptions.list", topic=topic)
            assert row["unacknowledged"] == 0
        finally:
            started.remove()


def test_process_ends_with_the_error_of_the_pusher(say: Say) -> None:
    """B16: without a broker, a gateway that is to push does not start."""
    away = ("--broker", "127.0.0.1:1")
    said = say("gateway", *away, "--listen", "127.0.0.1:0", "--push", fails=1)
    assert said.startswith("escapement: ")
    assert "127.0.0.1:1" in said


def test_authorities_that_are_no_certificates_are_refused(say: Say, tmp_path: Path) -> None:
    """B16"""
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "none.pem"):
        assert name in say("push", "--target-ca", str(tmp_path / name), fails=1)
    assert "10.0.0.0/40" in say("push", "--allow-network", "10.0.0.0/40", fails=1)
