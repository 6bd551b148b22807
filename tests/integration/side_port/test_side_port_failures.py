"""A side port that fails stops nothing, and the port of a broken database says so."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import trio

import escapement
from escapement.broker.side_port.app import MOST_BODY_BYTES
from escapement.broker.side_port.config import SidePortConfig
from escapement.broker.side_port.openapi import path_of
from escapement.broker.side_port.shown import Shown
from escapement.broker.side_port.side_port import run_side_port
from support.database.servers import MysqlServer, free_port
from support.processes.broker import PATIENT, broker_process

TIMEOUT_S = 60


async def answered(url: str, status: int) -> httpx.Response:
    """Ask until the answer has this status."""
    async with httpx.AsyncClient(timeout=5) as http:
        with trio.fail_after(TIMEOUT_S):
            while True:
                try:
                    answer = await http.get(url)
                except httpx.TransportError:
                    answer = None
                if answer is not None and answer.status_code == status:
                    return answer
                await trio.sleep(0.05)


async def test_side_port_starts_again_when_its_port_becomes_free() -> None:
    """O4: a failure ends neither the task nor its nursery."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_side_port, SidePortConfig("127.0.0.1", port), Shown())
            await trio.sleep(0.2)
            taken.close()
            answer = await answered(f"http://127.0.0.1:{port}/livez", 200)
            assert answer.text == "alive\n"
            nursery.cancel_scope.cancel()


async def test_request_with_a_large_body_is_refused() -> None:
    """Q10: the body of a request is bounded."""
    port = free_port()
    config = SidePortConfig("127.0.0.1", port, admin=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_side_port, config, Shown())
        await answered(f"http://127.0.0.1:{port}/livez", 200)
        async with httpx.AsyncClient(timeout=30) as http:
            answer = await http.post(
                f"http://127.0.0.1:{port}{path_of('broker.stats')}",
                content=b" " * (MOST_BODY_BYTES + 1),
                headers={"content-type": "application/json"},
            )
        assert (answer.status_code, "bytes" in answer.json()["message"]) == (400, True)
        nursery.cancel_scope.cancel()


async def test_broker_serves_messages_while_its_side_port_fails(tmp_path: Path) -> None:
    """O4: the port of another program does not stop the broker, and is logged."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with broker_process(tmp_path / "b", None, "--http", at) as process:
            async with escapement.connect(process.url, settings=PATIENT) as broker:
                async with broker.consumer("t", "s") as inbox:
                    await (await broker.producer("t")).send(b"x")
                    message = await inbox.receive(timeout_s=TIMEOUT_S)
                    assert message is not None
                    await message.ack(durable=True)
            assert f"the HTTP side port on {at} failed" in process.complaints()
            assert process.stop() == 0


async def test_broker_is_not_ready_while_the_database_is_away(
    tmp_path: Path, mysql_to_break: MysqlServer
) -> None:
    """O4: 503 with the reasons, and 200 again afterwards."""
    mysql_to_break.admin("CREATE DATABASE IF NOT EXISTS ready")
    at = f"127.0.0.1:{free_port()}"
    with broker_process(tmp_path / "b", mysql_to_break.url("ready"), "--http", at):
        await answered(f"http://{at}/readyz", 200)
        mysql_to_break.stop()
        answer = await answered(f"http://{at}/readyz", 503)
        assert "no commit has succeeded" in answer.text or "the database is down" in answer.text
        assert (await answered(f"http://{at}/livez", 200)).text == "alive\n"
        mysql_to_break.start()
        await answered(f"http://{at}/readyz", 200)
    mysql_to_break.admin("DROP DATABASE ready")
