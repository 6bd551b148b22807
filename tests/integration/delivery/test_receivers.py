"""Receivers cost the database no statements except for storing acknowledgements."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta

import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import arrived
from support.storage.commit_pipelines import FaultyEngine

CALM = BrokerConfig(ack_wait_ms=10**9, seed=0)


async def statements_with(receivers: int) -> Counter[str]:
    """Count the statements of an hour in which receivers wait, and then get 1000 messages."""
    statements: list[str] = []
    engine = FaultyEngine(SqliteEngine.in_memory(), before=statements.append)
    async with testing.start(engine=engine, config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        producer = await broker.producer("x")
        await producer.send_many([b"m"] * 1000, delay=timedelta(minutes=30))
        await world.checkpoint()
        async with AsyncExitStack() as stack:
            inboxes = [
                await stack.enter_async_context(broker.consumer("x", "s", permits=1000))
                for _ in range(receivers)
            ]
            statements.clear()
            for _ in range(180):
                await world.clock.advance(seconds=20)
            found = Counter(statements)
            assert sum([len(await arrived(inbox)) for inbox in inboxes]) == 1000
    return found


async def test_waiting_receivers_send_no_statements_to_the_database(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q5: while they wait, and while they receive messages that the index has on disk."""
    alone = await statements_with(1)
    assert alone.total() > 180, "the lease is renewed meanwhile"
    many = await statements_with(50)
    assert many.keys() == alone.keys()
    # Deliveries are recorded in one commit or in two.
    more = {statement: many[statement] - alone[statement] for statement in many}
    assert all(-2 <= times <= 2 for times in more.values()), more
