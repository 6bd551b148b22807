"""The page of the audit log."""

from __future__ import annotations

import re
from typing import Any

import trio.testing

from escapement import testing
from escapement.console.visit.view import ZONE_COOKIE
from escapement.storage.engine.base import Engine
from support.console.forms import form_of
from support.console.visitor import text_of, visiting, visiting_at
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


async def test_message_of_the_page_produce_is_on_the_audit_page(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B17: with who, when, the topic and why; a message without a reason too."""
    async with testing.start(engine=engine) as world:
        root = (await begin(world)).text

        def connect(token: str) -> Any:
            return world.connect(name="console", token=token)

        async with visiting_at(connect, world.clock, root) as visitor:
            sent = {"topic": "shop/eu/a", "create": "shop/eu/a", "payload": "x"}
            refused = await visitor.send("/produce", sent | {"delay": "?", "when": "delay"})
            form = form_of(await visitor.get("/produce"), "/produce")
            assert form["reason"] == [""]
            assert "messages.produce" not in await visitor.text("/audit")
            assert refused.status_code == 400
            assert "is stored" in text_of(
                await visitor.send("/produce", sent | {"reason": "ticket 4711"})
            )
            await world.clock.advance(seconds=1)
            assert "is stored" in text_of(await visitor.send("/produce", sent))
            text = await visitor.text("/audit?verb=messages.produce&role=root&object=shop/eu/a")
            assert text.count("root console messages.produce 1 argument producer") == 2
            assert text.count("shop/eu/a ticket 4711 done") == 1
            assert text.count("shop/eu/a – done") == 1
