"""The bound of publishes on one connection that have no receipt yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trio.testing import MockClock

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as wire
from escapement.storage.commit.items import ITEM_BYTES
from support.faults.held_calls import COMMIT, Held
from support.wire_peer import wire_peer

BODY: Final = MessageBatch(Blobs.of([b"x"])).encode()


async def test_small_publishes_without_receipts_count_with_the_memory_that_each_takes(
    mock_clock: MockClock,
) -> None:
    """Invariant 9: while the database hangs, the broker stops reading, and later reads on."""
    held, config = Held(), BrokerConfig(seed=0)
    config = replace(config, limits=BrokerLimits(unconfirmed_bytes=10 * ITEM_BYTES))
    async with testing.start(config=config, run=held) as world, wire_peer(world) as peer:
        await peer.say(wire.OpenProducer(1, 1, "t", "p", -1))
        with held.hold(COMMIT):
            for number in range(30):
                await peer.say(wire.Publish(1, number, number - 1, None, None, BODY))
            waiting_bytes = world.server.stats()["waiting_bytes"]
            assert waiting_bytes // ITEM_BYTES == 10
        await world.clock.advance(seconds=1)
        receipts = [one for one in peer.heard if isinstance(one, wire.Receipt)]
        assert [receipt.sequence for receipt in receipts] == list(range(30))
