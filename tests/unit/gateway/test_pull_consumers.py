"""The consumers that pull messages for requests close without requests, and never during one."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from escapement import testing
from escapement.client.consuming.batch import Batch
from escapement.gateway.pull_consumers import PullConsumers, Source

IDLE_S = 60.0
FIRST, SECOND = Source("a", "s"), Source("b", "s")


async def test_consumer_that_is_used_while_others_close_stays_open(
    autojump_clock: MockClock,
) -> None:
    """B15: the request that waits gets its message. The next one uses the same consumer."""
    async with testing.start() as world, world.connect() as broker:
        pulls = PullConsumers(broker, IDLE_S)
        pulled: list[Batch] = []

        async def wait() -> None:
            pulled.extend(await pulls.pull(SECOND, 1, IDLE_S, None))

        for source in (FIRST, SECOND):
            assert await pulls.pull(source, 1, 0, None) == []
        opened = await pulls.any_inbox(SECOND)
        await trio.sleep(IDLE_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pulls.close_idle)
            while pulls._of(FIRST):
                await trio.lowlevel.checkpoint()
            nursery.start_soon(wait)
            await trio.sleep(1)
            await (await broker.producer("b")).send(b"x")
        assert [batch.values() for batch in pulled] == [[b"x"]]
        assert await pulls.inboxes(SECOND) == [opened]
        await trio.sleep(IDLE_S)
        await pulls.close_idle()
        assert await pulls.inboxes(SECOND) == []
