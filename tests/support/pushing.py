"""A broker, a pusher and an endpoint on loopback, with a virtual clock."""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.push.addresses import network
from escapement.push.pusher import PushConfig, run_push
from escapement.testing import World
from support.certificates import Authority
from support.webhook_server import WebhookServer, webhook_server

HOST: Final = "hooks.example"
NAMES: Final = {"topic": "x", "subscription": "s"}
CALM: Final = BrokerConfig(seed=0)
# How long a test may take in real time, because virtual time stands still while it waits for a post
# that never comes. A test takes a second.
LIMIT_S: Final = 60


async def loopback(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


class Push:
    """A broker, an endpoint, and `escapement push` between them, with a virtual clock."""

    def __init__(
        self, world: World, broker: escapement.Broker, server: WebhookServer, config: PushConfig
    ) -> None:
        self.world = world
        self.broker = broker
        self.server = server
        self.config = config
        self.stop = trio.Event()

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.server.port}/hook"

    async def create(self, **policy: Any) -> str:
        """Create a subscription with a target, and return the secret."""
        await self.broker.admin("subscriptions.create", **NAMES, policy={"jitter": 0})
        made = await self.broker.admin("push.create", **NAMES, url=self.url, policy=policy)
        secret: str = made["secret"]
        return secret

    async def run(
        self,
        config: PushConfig | None = None,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Post messages until ``stop`` is set, with ``config`` or that of the fixture."""
        config = config or self.config
        await run_push(config, self.world.connect, self.stop.wait, task_status.started)

    async def state(self) -> dict[str, Any]:
        (row,) = await self.broker.admin("subscriptions.list", topic="x")
        return row

    async def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the broker's figures of the subscription are so, without advancing time."""
        while not is_so(row := await self.state()):
            await trio.lowlevel.checkpoint()
        return row

    async def dead(self, count: int) -> list[dict[str, Any]]:
        """Wait until there are ``count`` dead letters, and return them."""
        while True:
            found = await self.broker.admin("dlq.list", **NAMES, count=1000)
            if len(found) >= count:
                return list(found)
            await self.world.clock.advance(seconds=1)


@asynccontextmanager
async def pushing(tmp_path: Path, config: BrokerConfig = CALM) -> AsyncIterator[Push]:
    authority = Authority(tmp_path / "ca")
    async with (
        testing.start(config=config) as world,
        world.connect() as broker,
        webhook_server(authority.certify(HOST)) as server,
        _limited(),
    ):
        push_config = PushConfig(
            [network("127.0.0.0/8")],
            ssl.create_default_context(cafile=authority.ca),
            loopback,
            world.clock,
        )
        yield Push(world, broker, server, push_config)


@asynccontextmanager
async def _limited() -> AsyncIterator[None]:
    """Fail if the body takes longer than ``LIMIT_S``."""
    over = threading.Event()

    async def watch() -> None:
        in_time = await trio.to_thread.run_sync(over.wait, LIMIT_S, abandon_on_cancel=True)
        assert in_time, f"the test hangs: it has waited for {LIMIT_S} s"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            yield
        finally:
            over.set()
