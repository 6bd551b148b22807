"""The side port of a process that owns no bundle, because another node has them all."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from escapement.broker.side_port.openapi import path_of
from escapement.storage import lease as leases
from escapement.storage import members
from escapement.storage.engine.open import open_engine
from escapement.storage.lease import Identity
from escapement.storage.schema import migrate
from escapement.testing.clock import START_MS, VirtualClock
from support.database.outages import Outage
from support.metrics import plain, scrape
from support.side_ports import refusal, side_port
from support.storage.virtual_node import virtual_node

HOUR_MS = 3_600_000


async def test_node_without_bundles_is_ready_only_while_it_could_take_one(
    tmp_path: Path, mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """O4: it has the metrics that alerts use, without a label, like a broker."""
    outage, clock = Outage(open_engine(mysql_url, tmp_path)), VirtualClock(START_MS)
    migrate(outage.database)
    other = Identity("b" * 32, "b:7650")
    leases.take(
        outage.database, members.register(outage.database, other, HOUR_MS, clock, "b:7650"), clock
    )
    node = virtual_node(outage.engine, tmp_path, clock)
    async with trio.open_nursery() as nursery, side_port(None, membership=node.membership) as http:
        await nursery.start(node.run)
        assert not node.brokers
        await clock.advance(seconds=60)
        assert (await http.get("/readyz")).text == "ready\n"
        found = plain(await scrape(http))
        assert (found["escapement_ready"], found["escapement_database_up"]) == (1, 1)
        assert 6 < found["escapement_lease_left_seconds"] <= 10
        assert found["escapement_commit_age_seconds"] < 4
        assert "escapement_messages_published_total" not in found
        answer = await http.post(path_of("cluster.status"), json={})
        assert await refusal(answer) == (503, "busy")
        assert "this node owns no bundle" in answer.text

        outage.read_only()
        await clock.advance(seconds=4)
        assert (await http.get("/readyz")).status_code == 503
        assert "the database is read-only" in (await http.get("/readyz")).text

        outage.unreachable()
        await clock.advance(seconds=14)
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        for reason in ("the lease has expired", "the database is down", "no commit has succeeded"):
            assert reason in answer.text
        found = plain(await scrape(http))
        assert (found["escapement_ready"], found["escapement_database_up"]) == (0, 0)
        assert found["escapement_lease_left_seconds"] == 0
        assert found["escapement_commit_age_seconds"] > 14

        outage.over()
        await clock.advance(seconds=4)
        assert (await http.get("/readyz")).status_code == 200
        node.stop()
    outage.database.close()
