"""The clients of the gateway, one for each token. Their connections last longer than requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import trio

from escapement.client.broker import Broker
from escapement.errors import Busy, EscapementError, OtherDatabase, Unauthenticated
from escapement.gateway.client import IDLE_S, Client
from escapement.gateway.pool import Pool

# The most tokens whose connections are open.
MOST_CLIENTS: Final = 256
# The most connections that are being opened. So senders of wrong tokens do not slow others down.
MOST_OPENING: Final = 16
# How often unused clients are closed.
SWEEP_S: Final = 30.0

Connect = Callable[[str], AbstractAsyncContextManager[Broker]]


class Clients:
    """The clients, by token. The token "" is for a broker without access control.

    Args:
      connect: connects with a token.
      nursery: runs the connections.
    """

    def __init__(self, connect: Connect, nursery: trio.Nursery) -> None:
        self._connect = connect
        self._nursery = nursery
        self._opening = 0
        self._pool: Pool[Client] = Pool(
            "tokens", MOST_CLIENTS, IDLE_S, self._open, Client.close, _has_failed
        )

    @asynccontextmanager
    async def use(self, token: str) -> AsyncIterator[Client]:
        """Lend the client of a token.

        Raises:
          Unauthenticated: if the broker refuses the token.
          Busy: if too many tokens are in use.
          Disconnected: if no broker can be reached.
        """
        async with self._pool.use(token) as client:
            try:
                yield client
            except (Unauthenticated, OtherDatabase):
                # The token was revoked, or has expired, or the brokers were given another database.
                # The connections have closed for good.
                client.failed = True
                client.over.set()
                raise

    async def sweep(self) -> None:
        """Close unused clients, producers and consumers from time to time, until cancelled."""
        while True:
            await trio.sleep(SWEEP_S)
            await self._pool.close_idle()
            for client in self._pool.values():
                await client.close_idle()

    async def close(self) -> None:
        """Close all clients. Their messages in flight go back to their subscriptions."""
        await self._pool.close_all()

    async def _open(self, token: str) -> Client:
        if self._opening >= MOST_OPENING:
            raise Busy("The gateway is opening too many connections. Try again.")
        self._opening += 1
        try:
            opened: Client | EscapementError = await self._nursery.start(self._run, token)
        finally:
            self._opening -= 1
        if isinstance(opened, EscapementError):
            raise opened
        return opened

    async def _run(
        self, token: str, task_status: trio.TaskStatus[Client | EscapementError]
    ) -> None:
        """Keep a client connected until it is over."""
        started = False
        try:
            async with self._connect(token) as broker:
                client = Client(broker)
                started = True
                task_status.started(client)
                await client.over.wait()
        except EscapementError as error:
            if not started:
                task_status.started(error)


def _has_failed(client: Client) -> bool:
    return client.failed
