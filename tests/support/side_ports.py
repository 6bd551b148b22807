"""The side port of a broker on a virtual clock, called without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from escapement.broker.broker import Broker
from escapement.broker.membership import Membership
from escapement.broker.side_port.app import SidePortApp
from escapement.broker.side_port.shown import Shown
from escapement.testing import World

LOCAL = ("127.0.0.1", 1)


@asynccontextmanager
async def side_port(
    world: World | None,
    *others: Broker,
    admin: bool = True,
    client: tuple[str, int] = LOCAL,
    membership: Membership | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """Call the application of a side port, as a client that sees no exceptions.

    Args:
      world: a broker that the side port shows.
      others: brokers of other bundles that it shows too.
      membership: that of the process, if it has started.
    """
    shown = Shown()
    shown.membership = membership
    for broker in (*(() if world is None else (world.server,)), *others):
        shown.show(broker)
    app = SidePortApp(shown, admin=admin)
    transport = httpx.ASGITransport(app.asgi, client=client, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http


async def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]
