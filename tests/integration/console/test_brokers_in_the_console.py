"""The page Brokers."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import version

import trio.testing

from escapement import testing
from escapement.storage.engine.base import Engine
from support.console.visitor import visiting


async def test_page_shows_the_version_of_each_broker(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B8, B14: during a rolling upgrade. A broker of an earlier version does not tell its own."""
    async with testing.start(engine=engine) as world, visiting(world) as visitor:
        with closing(engine.connect()) as connection:
            connection.execute(
                "INSERT INTO brokers (owner_id, incarnation, name, place, address, expires_at_ms,"
                " seen_ms, draining, connection_ids) VALUES ('id-1', 'i', 'old:7650', 'there',"
                f" 'old.example:7650', {engine.dialect.now_ms} + 3600000, 0, 0, '')"
            )
        text = await visitor.text("/brokers")
        assert "old.example:7650 unknown active" in text
        assert f" {version('escapement')} active" in text
