"""A poll that has read rows before the broker sends them, and returns afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.tables.poll import Polled
from escapement.testing import arrived
from support.tables.shops import Shop, comment

T = TypeVar("T")


class LatePolls:
    """A runner of blocking calls that returns the results of polls late, if ``holds`` is set."""

    def __init__(self) -> None:
        self.holds = False
        self.has_read = trio.Event()
        self.released = trio.Event()

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T:
        await trio.lowlevel.checkpoint()
        result = function(*arguments)
        if (
            self.holds
            and isinstance(result, list)
            and any(isinstance(one, Polled) for one in result)
        ):
            self.has_read.set()
            await self.released.wait()
        return result


async def test_late_poll_does_not_take_a_row_back_that_was_sent_meanwhile(
    shop: Shop, mock_clock: trio.testing.MockClock
) -> None:
    """V6, V8: the poll knows the row as it was before it was sent."""
    run = LatePolls()
    topic = shop.create(comment=comment(poller_interval=1))
    config = replace(BrokerConfig(seed=0), tables=(shop.address,))
    async with testing.start(config=config, run=run) as world, world.connect() as broker:
        async with broker.consumer(topic, "table", permits=1) as consumer:
            shop.fill(9, tenant_id=1)
            await world.clock.advance(seconds=5)
            sent = [epoch for (epoch,) in shop.rows("epoch")]
            assert 0 in sent  # it waits for permits
            run.holds = True
            for _ in range(20):
                await world.clock.advance(ms=250)
            assert run.has_read.is_set()
            found = await arrived(consumer)
            assert [message.row["id"] for message in found] == list(range(1, 10))
            run.holds = False
            run.released.set()
            for _ in range(20):
                await world.clock.advance(ms=250)
            assert await arrived(consumer) == []
            assert set(shop.rows("epoch")) == {(1,)}
            assert await consumer.ack(found, durable=True) == 9
