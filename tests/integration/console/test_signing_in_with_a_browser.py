"""Signing in with a real browser, and sites that want to use a session."""

from __future__ import annotations

import trio.testing
from playwright.sync_api import Page

from escapement import testing
from escapement.access.token import Token
from support.console.chromium import Chromium
from support.console.tab import browsing, serving
from support.roles import begin, connected

# On the same machine, so the browser sends its cookies along.
OTHER_SITE = "http://127.0.0.1:1/"


async def test_user_signs_in_gets_the_page_asked_for_and_signs_out(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: a wrong token is refused, with the reason."""
    async with (
        testing.start() as world,
        serving(world) as url,
        browsing(chromium, url) as tab,
    ):
        root = await begin(world)
        await tab.open("/find?where=mails&key=a")
        assert await tab.evaluate("document.activeElement.name") == "token"
        for wrong in ("mistyped", Token.new().text):
            await tab.fill("Token", wrong)
            await tab.press("Enter")
            await tab.shows("token", "[role=alert]")
        assert all("401" in problem for problem in tab.problems)
        tab.problems.clear()
        await tab.fill("Token", root.text)
        await tab.press("Enter")
        await tab.goes("/find?where=mails&key=a")
        # No script can read the session, and no other site gets it.
        cookies = await tab.does(lambda page: page.context.cookies())
        (session,) = [one for one in cookies if one["httpOnly"]]
        assert session["sameSite"] == "Lax"
        assert root.text not in session["value"]
        await tab.click("text=Sign out")
        await tab.goes("/login")
        await tab.open("/jobs")
        assert await tab.path() == "/login?next=/jobs"


async def test_form_of_another_site_changes_nothing(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: although the browser sends the cookie of the session, and although no script runs."""
    async with (
        testing.start() as world,
        serving(world) as url,
        connected(world, root := await begin(world)) as broker,
        browsing(chromium, url, token=root.text) as tab,
    ):
        await (await broker.producer("mails")).send(b"m", delay="1m")
        secret = await tab.evaluate("document.querySelector('[name=csrf]').value")

        def send(page: Page, csrf: str) -> None:
            form = (
                f'<form method="post" action="{url}/act/now"><input name="action" value="cancel">'
                f'<input name="id" value="mails@0"><input name="sure" value="true">'
                f'<input name="csrf" value="{csrf}"><button>Win</button></form>'
            )
            page.route(OTHER_SITE, lambda route: route.fulfill(body=form, content_type="text/html"))
            page.goto(OTHER_SITE)
            page.click("text=Win")
            page.wait_for_url(url + "/act/now")

        for csrf in (secret, ""):
            await tab.does(lambda page, csrf=csrf: send(page, csrf))
            await tab.shows("Another site has sent the request", "main")
        assert len((await broker.admin("topics.peek", topic="mails", count=9))["messages"]) == 1
        assert all("403" in problem for problem in tab.problems)
        tab.problems.clear()
        # The same form of the console itself does it.
        await tab.open("/messages/mails@0")
        await tab.click("main button:has-text('Cancel')")
        await tab.click("text=I want to cancel")
        await tab.click("main button:has-text('Cancel')")
        await tab.shows("Cancelled: 1")
