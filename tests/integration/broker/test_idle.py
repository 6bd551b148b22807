"""A broker without work leaves the database alone."""

from __future__ import annotations

from contextlib import closing

from trio.testing import MockClock

from escapement import testing
from escapement.storage.engine.base import Engine
from support.faults.dying_brokers import finish


def marks(engine: Engine) -> int:
    """Return of how many deleted things rows are left."""
    with closing(engine.connect()) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM removals").rows[0][0])


async def test_idle_broker_commits_nothing(mock_clock: MockClock, engine: Engine) -> None:
    """Each group commit would cost a checkpoint of the index too."""
    async with testing.start(engine=engine) as world:
        await world.clock.advance(seconds=10)  # in the first round, all work is due
        last_ms = world.server.services.committed_at_ms
        assert last_ms is not None
        for _ in range(4):
            await world.clock.advance(seconds=10)
        assert world.server.services.committed_at_ms == last_ms

        async with world.connect() as broker:
            await broker.admin("topics.create", topic="t")
            await broker.admin("topics.delete", topic="t")
            assert marks(engine) == 1
        await finish(world, world.server.services.housekeeper.round)
        assert marks(engine) == 0
