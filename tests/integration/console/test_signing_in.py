"""Signing in to the console with a token, and forms that other sites send."""

from __future__ import annotations

import httpx
import pytest
import trio
import trio.testing

from escapement import testing
from escapement.access.token import Token
from escapement.console import app as console_app
from escapement.console.app import LONGEST_PAGE_S, MOST_LIVE_OF_SESSION, MOST_LOGIN_BYTES
from support.console.tab import serving
from support.console.visitor import Visitor, text_of, visiting
from support.roles import begin


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


async def test_another_token_ends_the_session_of_the_one_before(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the id of the session before opens nothing any more."""
    async with testing.start() as world:
        root = await begin(world)
        async with visiting(world, root.text) as visitor:
            old = dict(visitor.http.cookies)
            origin = {"origin": "http://127.0.0.1:7653"}
            await visitor.http.post("/login", data={"token": root.text}, headers=origin)
            assert dict(visitor.http.cookies) != old
            assert "root · admin" in await visitor.text("/")
            visitor.http.cookies.update(old)
            assert (await visitor.get("/")).status_code == 303


async def test_page_stops_following_the_brokers_when_the_user_signs_out(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: in another tab too. A page without a session is told to sign in."""
    async with testing.start() as world:
        root = await begin(world)
        async with visiting(world, root.text) as visitor, trio.open_nursery() as nursery:
            answers = []

            async def follow() -> None:
                answers.append(await visitor.get("/live/brokers"))

            nursery.start_soon(follow)
            await world.clock.advance(seconds=20)
            assert not answers
            await visitor.send("/logout", {})
            await world.clock.advance(seconds=3)
            (answer,) = answers
            assert "event: part" in answer.text
            assert "event: trouble\ndata: The session has ended." in answer.text
            again = await visitor.get("/live/brokers")
            assert again.text.startswith("retry: 5000\nevent: trouble\n")


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
            for origin in (
                "http://evil.example",
                "null",
                "http://127.0.0.1:7654",
                "http://[",
                None,
            ):
                headers = {} if origin is None else {"origin": origin}
                answer = await visitor.http.post("/logout", data={"csrf": secret}, headers=headers)
                assert (answer.status_code, "Another site" in text_of(answer)) == (403, True)
            for wrong in ("", "x", secret[:-1]):
                assert "too old" in text_of(await visitor.send("/logout", {}, secret=wrong))
            assert "root · admin" in await visitor.text("/")


async def test_malformed_addresses_are_refused_and_no_bug(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: of hosts, and of pages with numbers."""
    async with testing.start() as world, visiting(world) as visitor:
        for host in ("[", "[::1", "evil.example"):
            answer = await visitor.http.get("/", headers={"host": host})
            assert (answer.status_code, "names the host" in text_of(answer)) == (403, True)
        for number in ("9" * 5000, "9" * 19, "x", "-1"):
            for path in ("/jobs/shop/eu/orders", "/dead-letters/shop/eu/orders/work"):
                assert (await visitor.get(f"{path}/{number}")).status_code == 404
        too_large = str(1 << 63)
        for path, fields in (
            ("/brokers/move", {"bundle": too_large}),
            ("/jobs/stop", {"topic": "shop/eu/orders", "id": too_large}),
            ("/dead-letters/shop/eu/orders/work/redrive", {"id": too_large}),
        ):
            assert (await visitor.send(path, fields)).status_code == 400
        answer = await visitor.get("/lateness?target=0")
        assert "The field target is not valid" in text_of(answer)
        answer = await visitor.get("/subscription?topic=shop/eu/orders")
        assert "A field is missing: Object missing required field `subscription`" in text_of(answer)
        assert (await visitor.get(f"/audit?before={too_large},1")).status_code == 400
        assert (await visitor.get("/schedules", part=True)).status_code == 200


async def test_form_to_sign_in_has_a_bound(mock_clock: trio.testing.MockClock) -> None:
    """B14: everybody may send it, so it must not fill the memory of the console."""
    async with testing.start() as world:
        await begin(world)
        async with serving(world) as url, httpx.AsyncClient() as http:
            body = b"token=" + b"x" * MOST_LOGIN_BYTES
            answer = await http.post(f"{url}/login", content=body, headers={"origin": url})
            assert (answer.status_code, "more than" in text_of(answer)) == (400, True)


async def test_forms_have_a_bound_together(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: many large forms at once must not fill the memory of the console."""
    monkeypatch.setattr(console_app, "MOST_BYTES", 1000)
    async with testing.start() as world, serving(world) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            headers = {"origin": url, "x-csrf-token": await Visitor(http).secret()}
            form = {"topic": "x" * 1000, "id": "1"}
            answer = await http.post("/jobs/stop", data=form, headers=headers)
            assert (answer.status_code, "too large" in text_of(answer)) == (503, True)
            answer = await http.post("/jobs/stop", data=form | {"topic": "x"}, headers=headers)
            assert answer.status_code == 404


async def test_user_cannot_take_all_live_pages(mock_clock: trio.testing.MockClock) -> None:
    """B14: of those that follow the brokers at once, each session has a share."""
    async with testing.start() as world:
        root = await begin(world)
        async with visiting(world, root.text) as visitor, trio.open_nursery() as nursery:
            for _ in range(MOST_LIVE_OF_SESSION):
                nursery.start_soon(visitor.get, "/live/jobs")
            await world.clock.advance(seconds=3)
            refused = await visitor.get("/live/jobs")
            assert "of your pages follow the brokers" in refused.text
            async with visiting(world, root.text) as other:
                answers = []

                async def follow() -> None:
                    answers.append(await other.get("/live/jobs"))

                nursery.start_soon(follow)
                await world.clock.advance(seconds=3)
                assert not answers
                nursery.cancel_scope.cancel()


async def test_page_does_not_wait_long_for_brokers_that_are_down(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: it says so within ten seconds, and works again when a broker is back."""
    async with testing.start() as world, visiting(world) as visitor:
        assert "No subscription matches" in await visitor.text("/subscriptions")
        await world.crash()
        answers = []

        async def load() -> None:
            answers.append(await visitor.get("/subscriptions"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await trio.testing.wait_all_tasks_blocked()
            assert not answers
            mock_clock.jump(LONGEST_PAGE_S)
        assert answers[0].status_code == 504
        assert "The brokers have not answered for 10 s." in text_of(answers[0])
        await world.restart()
        mock_clock.jump(60)  # the wait before the client connects again
        await trio.testing.wait_all_tasks_blocked()
        assert (await visitor.get("/subscriptions")).status_code == 200
