"""A pusher in the process of the gateway or of the console, with a virtual clock."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.console.config import ConsoleConfig
from escapement.console.console import run_console
from escapement.errors import AccessDenied
from escapement.gateway.config import GatewayConfig
from escapement.gateway.gateway import run_gateway
from escapement.push.beside import serve_and_push
from escapement.push.pusher import REFRESH_S, PushConfig, run_push
from escapement.testing import World
from support.pushing import pushing
from support.roles import begin, connected, new_token
from support.webhook_server import held, status

MESSAGES: Final = "/v1/topics/public/default/x/messages"
HOST: Final = ("127.0.0.1", 0)
IMPATIENT: Final = escapement.Settings(heartbeat_s=None, close_timeout_s=0)


def serving(name: str, world: World) -> Any:
    """Return the function that serves the gateway or the console of a broker."""

    def connect(token: str) -> Any:
        return world.connect(token=token, settings=IMPATIENT)

    if name == "gateway":
        return partial(run_gateway, GatewayConfig(*HOST), connect)
    return partial(run_console, ConsoleConfig(*HOST), connect, connect)


def client(address: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{address}", trust_env=False)


@pytest.mark.parametrize("name", ["gateway", "console"])
async def test_stop_ends_the_posts_in_progress_and_then_the_server(
    name: str, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: a message that came in over HTTP is posted by the same process."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        has_ended = trio.Event()

        async def run(task_status: trio.TaskStatus[tuple[str, int]]) -> None:
            await serve_and_push(
                serving(name, push.world),
                partial(run_push, push.config, push.world.connect),
                push.stop.wait,
                lambda address, count: task_status.started((address, count)),
            )
            has_ended.set()

        address, count = await nursery.start(run)
        assert count == 1
        answered = trio.Event()
        push.server.answers.append(held(answered, status(200)))
        async with client(address) as http:
            for body in (b"posted", b"left"):
                assert (await http.post(MESSAGES, content=body)).status_code == 201
        (post,) = await push.server.until(1)
        assert post.body == b"posted"
        push.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        async with client(address) as http:  # a new connection is still accepted
            assert (await http.get("/livez")).status_code == 200
        assert not has_ended.is_set()
        answered.set()
        await has_ended.wait()
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        row = await push.state()
        assert (row["consumers"], row["acknowledged"], row["unacknowledged"]) == ([], 1, 1)
        assert len(push.server.posts) == 1


async def test_server_ends_if_the_pusher_may_not_push(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B16, O1: at the start, and when the right is revoked. The error is the one of the pusher."""
    addresses: list[str] = []
    async with testing.start() as world:
        async with connected(world, await begin(world)) as root:
            token = await new_token(root, "pusher")

            def connect() -> Any:
                return world.connect(token=token.text, settings=IMPATIENT)

            async def run() -> None:
                with pytest.raises(AccessDenied):
                    await serve_and_push(
                        serving("gateway", world),
                        partial(run_push, PushConfig(), connect),
                        trio.sleep_forever,
                        lambda address, count: addresses.append(address),
                    )

            await run()
            assert addresses == []
            grant = {"role": "pusher", "pattern": "*"}
            await root.admin("grants.add", **grant, actions=["admin"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await trio.testing.wait_all_tasks_blocked()
                (address,) = addresses
                async with client(address) as http:
                    assert (await http.get("/livez")).status_code == 200
                    # The token of the process is not lent to those who ask.
                    assert (await http.post(MESSAGES, content=b"x")).status_code == 401
                await root.admin("grants.remove", **grant)
                await world.clock.advance(seconds=REFRESH_S)
    failed = [one for one in caplog.records if getattr(one, "event", "") == "push.failed"]
    assert [one.levelno for one in failed] == [logging.ERROR] * 2
