"""The cookie with the session, and what a session keeps."""

from __future__ import annotations

import re

import pytest
import trio.testing

from escapement import testing
from escapement.console.visit.sessions import MOST_NOTICES
from support.console.visitor import text_of, visiting
from support.roles import begin


async def test_consoles_on_one_machine_keep_their_sessions_apart(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: browsers send the cookies of a host to all of its ports."""
    async with testing.start() as world:
        root = await begin(world)
        async with visiting(world, root.text) as visitor:
            other = {"host": "127.0.0.1:7654", "origin": "http://127.0.0.1:7654"}
            assert (await visitor.http.get("/", headers=other)).status_code == 303
            form = {"token": root.text}
            assert (await visitor.http.post("/login", data=form, headers=other)).is_redirect
            assert "root · admin" in await visitor.text("/")
            assert "root · admin" in text_of(await visitor.http.get("/", headers=other))


@pytest.mark.parametrize(
    ("origin", "secure"),
    [("http://127.0.0.1:7653", False), ("https://127.0.0.1:7653", True)],
)
async def test_browser_sends_the_cookie_over_tls_only_if_it_came_so(
    mock_clock: trio.testing.MockClock, origin: str, secure: bool
) -> None:
    """B14: also if a proxy ends TLS."""
    async with testing.start() as world:
        root = await begin(world)
        async with visiting(world) as visitor:
            form, headers = {"token": root.text}, {"origin": origin}
            answer = await visitor.http.post("/login", data=form, headers=headers)
            said = answer.headers["set-cookie"]
            assert said.startswith("escapement_console_7653=")
            assert bool(re.search("; Secure", said)) == secure


async def test_notices_that_nobody_reads_have_a_bound(mock_clock: trio.testing.MockClock) -> None:
    """B14: a program may send forms and load no page."""
    async with testing.start() as world, visiting(world) as visitor, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        secret = await visitor.secret()
        headers = {"origin": "http://127.0.0.1:7653", "x-csrf-token": secret}
        for number in range(2 * MOST_NOTICES):
            form = {"topic": "t", "payload": str(number)}
            answer = await visitor.http.post("/produce", data=form, headers=headers)
            assert answer.is_redirect
        assert (await visitor.text("/")).count("The message is stored.") == MOST_NOTICES
