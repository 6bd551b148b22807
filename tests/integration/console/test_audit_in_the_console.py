"""The page of the audit log."""

from __future__ import annotations

import re

import trio.testing

from escapement import testing
from escapement.console.visit.view import ZONE_COOKIE
from support.console.visitor import visiting
from support.roles import begin, connected, new_token

_MORE = re.compile(r'href="(/audit\?[^"]+)">Older actions')


async def test_audit_page_is_filtered_and_has_older_actions(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B17: by who, what, where and when. The times are those of the browser's zone."""
    async with testing.start() as world:
        root = await begin(world)
        async with connected(world, root) as broker, visiting(world, root.text) as visitor:
            ana = await new_token(broker, "ana")
            await broker.admin("grants.add", role="ana", pattern="shop/eu/*", actions=["admin"])
            await world.clock.advance(hours=1)
            async with connected(world, ana) as hers:
                acting = hers.because("ticket 4711")
                for number in range(101):
                    await acting.admin("topics.create", topic=f"shop/eu/t{number}")
                await acting.admin("topics.delete", topic="shop/eu/t7")
            await world.clock.advance(hours=1)
            await broker.admin("topics.create", topic="shop/us/last")

            visitor.http.cookies.set(ZONE_COOKIE, "Asia/Tokyo")

            async def count(path: str) -> int:
                return (await visitor.get(path)).text.count("<code>topics.")

            assert await count("/audit?role=root&verb=topics.") == 1
            assert await count("/audit?verb=topics.delete") == 1
            assert await count("/audit?object=shop/us/*") == 1
            assert await count("/audit?since=2026-12-24+22:30&until=2026-12-24+23:30") == 1
            assert await count("/audit?until=2026-12-24+21:30") == 0
            first = await visitor.text("/audit?role=ana&verb=topics.")
            assert "ticket 4711 done" in first
            assert "shop/eu/t0 " not in first
            found = _MORE.search((await visitor.get("/audit?role=ana&verb=topics.")).text)
            assert found is not None
            older = found[1].replace("&amp;", "&")
            assert await count(older) == 2
            assert "shop/eu/t0 " in await visitor.text(older)
