"""A broker with something to show on each page of the console: a shop at nine in the morning.

Its times and ids are the same each time, so pictures of the pages are too. The clocks of Berlin
change in the second night.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import escapement
from escapement import FollowUp, testing
from escapement.access.token import Token
from escapement.broker.broker import BrokerConfig
from escapement.clock import unix_ms
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.roles import connected, new_token

ORDERS: Final = "shop/eu/orders"
MAILS: Final = "shop/eu/mails"
RETURNS: Final = "shop/us/returns"
# Friday. The clocks of Berlin go forward on Sunday.
_START_MS: Final = unix_ms(datetime(2027, 3, 26, 5, 0, tzinfo=UTC))
_HOURS: Final = 3
_CONFIG: Final = BrokerConfig(ack_wait_ms=20 * 60_000, seed=0)
_DAY_S: Final = 86_400


class Filled(NamedTuple):
    """A broker, and the tokens of its users.

    Attributes:
      world: the broker. Its clock stands still.
      broker: connections of the admin.
      admin: the token of a user with all rights.
      viewer: the token of a user who may only look.
    """

    world: World
    broker: escapement.Broker
    admin: Token
    viewer: Token


@asynccontextmanager
async def filled(engine: Engine | None = None, mark: str = "") -> AsyncIterator[Filled]:
    """Run a broker that has something to show.

    Args:
      engine: its database; None for one in memory.
      mark: a text to add to each text that a client may choose freely.
    """
    async with testing.start(config=_CONFIG, start_ms=_START_MS, engine=engine) as world:
        admin = Token("a0c0ffee0001", "0" * 64)
        await world.server.services.access.bootstrap("ana", admin.id, admin.digest)
        async with connected(world, admin) as broker:
            acting = broker.because(f"ticket 4711{mark}")
            viewer = await new_token(acting, "vic")
            await acting.admin("grants.add", role="vic", pattern="*", actions=["peek"])
            await _schedules(acting, mark)
            await _mails_fail(world, acting, mark)
            await _returns_wait(world, acting, mark)
            async with _orders(world, acting, mark):
                yield Filled(world, broker, admin, viewer)


async def _schedules(broker: escapement.Broker, mark: str) -> None:
    schedules, text = broker.schedules, f"report{mark}".encode()
    for topic in (ORDERS, MAILS, RETURNS):
        await broker.admin("topics.create", topic=topic)
    night = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    await schedules.create("shop/eu/nightly-report", MAILS, text, key=f"report{mark}", **night)
    await schedules.create("shop/eu/stock", ORDERS, text, every=timedelta(hours=1))
    await schedules.create(
        "shop/us/weekly", RETURNS, text, cron="0 8 * * MON", timezone="US/Pacific"
    )
    await schedules.pause("shop/us/weekly")


async def _mails_fail(world: World, broker: escapement.Broker, mark: str) -> None:
    """Let mails become dead letters: after too many attempts, too long, or rejected at once."""
    policy = {"max_deliveries": 2, "jitter": 0, "min_backoff_ms": 30_000, "max_backoff_ms": 60_000}
    await broker.admin("subscriptions.create", topic=MAILS, subscription="sender", policy=policy)
    producer = await broker.producer(MAILS)
    for number in range(9):
        await producer.send(
            json.dumps(
                {"to": f"customer-{number}@example.org", "text": f"Thank you{mark}"}
            ).encode(),
            key=f"mail-{number}{mark}",
            properties={"campaign": f"spring{mark}", "number": number},
        )
    async with broker.consumer(MAILS, "sender", name="mailer-1") as inbox:
        mails = await arrived(inbox)
        await inbox.reject(mails[:2])
        await inbox.nack(mails[2:5], timedelta(seconds=10))
        await inbox.ack(mails[5:])
        await world.clock.advance(seconds=10)
        again = await arrived(inbox)
        await inbox.nack(again[:2])
        await world.clock.advance(minutes=30)
    await world.clock.advance(seconds=3)


async def _returns_wait(world: World, broker: escapement.Broker, mark: str) -> None:
    """Leave a backlog: one subscription is paused, and another one has no consumer."""
    for subscription in ("refunds", "statistics"):
        await broker.admin("subscriptions.create", topic=RETURNS, subscription=subscription)
    chance = random.Random(1)
    delays = [timedelta(seconds=chance.uniform(0, 2 * _DAY_S)) for _ in range(300)]
    producer = await broker.producer(RETURNS)
    await producer.send_many(
        [f"return {number}{mark}".encode() for number in range(300)],
        delay=delays,
        keys=[f"return-{number}{mark}" for number in range(300)],
    )
    await broker.pause(RETURNS, "refunds", duration=timedelta(hours=_HOURS + 6))


@asynccontextmanager
async def _orders(world: World, broker: escapement.Broker, mark: str) -> AsyncIterator[None]:
    """Deliver orders for some hours. The last ones are in flight, in retry, or not yet due."""
    await broker.admin(
        "subscriptions.create",
        topic=ORDERS,
        subscription="shipping",
        policy={"jitter": 0, "min_backoff_ms": 600_000, "max_backoff_ms": 3_600_000},
    )
    chance = random.Random(2)
    count = 400
    delays = [timedelta(seconds=chance.expovariate(1 / _DAY_S)) for _ in range(count)]
    producer = await broker.producer(ORDERS)
    await producer.send_many(
        [
            json.dumps(
                {"order": n, "total": chance.randint(5, 900), "note": f"gift{mark}"}
            ).encode()
            if n % 5
            else bytes(range(200))
            for n in range(count)
        ],
        delay=delays,
        keys=[f"order-{n}{mark}" for n in range(count)],
        properties=[{"shop": f"berlin{mark}", "number": n} for n in range(count)],
        groups=["sale" if n < 40 else None for n in range(count)],
    )
    done = FollowUp(f"the sale is over{mark}".encode(), MAILS, key=f"sale{mark}")
    await producer.close_group("sale", "shipping", done)
    async with broker.consumer(ORDERS, "shipping", name="packer-1") as inbox:
        for turn in range(_HOURS * 6):
            if turn == _HOURS * 6 - 4:
                await broker.pause(ORDERS, "shipping", duration=timedelta(minutes=13))
            await world.clock.advance(minutes=10)
            orders = await arrived(inbox)
            await inbox.nack(orders[:1])
            await inbox.ack(orders[1:])
        await _amend(world, broker, mark)
        await world.clock.advance(minutes=10)
        await inbox.nack((await arrived(inbox))[:1])
        await world.clock.settle()
        yield


async def _amend(world: World, broker: escapement.Broker, mark: str) -> None:
    """Cancel and reschedule some orders, and cancel returns by a job."""
    pending = await broker.admin("topics.peek", topic=ORDERS, count=20)
    offsets = [row["offset"] for row in pending["messages"]]
    await broker.cancel(offsets[-3:], topic=ORDERS)
    await broker.reschedule(offsets[-6:-3], topic=ORDERS, delay=timedelta(hours=30))
    await broker.bulk.cancel(RETURNS, key=f"return-7{mark}", reason=f"ticket 4711{mark}")
    for _ in range(5):
        await world.clock.advance(seconds=1)  # the job works
