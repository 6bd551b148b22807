"""Signing in to the console with a token, and forms that other sites send."""

from __future__ import annotations

import trio.testing

from escapement import testing
from escapement.access.token import Token
from support.console.visitor import text_of, visiting
from support.roles import begin, connected, new_token


async def test_token_opens_the_console_until_the_user_signs_out(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the session ends at once, although the browser still has its cookie."""
    async with testing.start() as world:
        root = await begin(world)
        async with visiting(world, root.text) as visitor:
            assert "root · admin" in await visitor.text("/")
            cookies = dict(visitor.http.cookies)
            assert "Token" in text_of(await visitor.send("/logout", {}))
            visitor.http.cookies.update(cookies)
            answer = await visitor.get("/?by=day")
            assert answer.status_code == 303
            assert answer.headers["location"] == "/login?next=/%3Fby%3Dday"


async def test_wrong_or_missing_token_opens_nothing(mock_clock: trio.testing.MockClock) -> None:
    """B14: the form says why, and shows no page."""
    async with testing.start() as world:
        await begin(world)
        origin = {"origin": "http://127.0.0.1:7653"}
        async with visiting(world) as visitor:
            for token in (Token.new().text, "mistyped", ""):
                sent = {"token": token}
                answer = await visitor.http.post("/login", data=sent, headers=origin)
                assert answer.status_code == 401, text_of(answer)
                assert not answer.cookies
                assert "token" in text_of(answer)
            assert (await visitor.get("/")).headers["location"] == "/login?next=/"
            # A part of a page sends the browser to the form as a whole.
            assert (await visitor.get("/", part=True)).headers["hx-redirect"] == "/login?next=/"


async def test_form_of_another_site_or_an_old_page_changes_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: a form must come from a page of this session."""
    async with testing.start() as world:
        root = await begin(world)
        async with visiting(world, root.text) as visitor:
            secret = await visitor.secret()
            for origin in ("http://evil.example", "null", "http://127.0.0.1:7654", None):
                headers = {} if origin is None else {"origin": origin}
                answer = await visitor.http.post("/logout", data={"csrf": secret}, headers=headers)
                assert (answer.status_code, "Another site" in text_of(answer)) == (403, True)
            for wrong in ("", "x", secret[:-1]):
                assert "too old" in text_of(await visitor.send("/logout", {}, secret=wrong))
            assert "root · admin" in await visitor.text("/")


async def test_user_of_one_namespace_sees_its_pages_and_no_other_numbers(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14, O1: each page opens, and counts only what the grants cover."""
    async with testing.start() as world:
        root = await begin(world)
        async with connected(world, root) as broker:
            for topic in ("shop/eu/orders", "shop/us/orders", "shop/us/mails"):
                await broker.admin("subscriptions.create", topic=topic, subscription="s")
                async with await broker.producer(topic) as producer:
                    await producer.send(b"", delay="1h")
            token = await new_token(broker, "eve")
            await broker.admin("grants.add", role="eve", pattern="shop/eu/*", actions=["peek"])
            async with visiting(world, token.text) as visitor:
                timeline = await visitor.text("/")
                assert "1 fall due in this time" in timeline
                assert "Only namespaces that your grants cover" in timeline
                assert 'href="/brokers"' not in (await visitor.get("/")).text
                for path in ("/find", "/subscriptions", "/lateness", "/schedules", "/jobs"):
                    page = await visitor.text(path)
                    assert "shop/us" not in page, path
                assert "shop/eu/orders" in await visitor.text("/subscriptions")
                for path in ("/brokers", "/audit", "/?where=shop/us"):
                    assert (await visitor.get(path)).status_code == 403, path
