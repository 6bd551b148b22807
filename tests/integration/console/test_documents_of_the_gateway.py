"""The page that shows and sends the requests of the gateway, at the port of the console."""

from __future__ import annotations

import httpx
import trio.testing
from playwright.sync_api import Page

from support.console.chromium import Chromium
from support.console.tab import at_the_console


async def test_page_of_the_gateway_sends_a_request(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B15: it lists all of them, and loads nothing from other servers."""
    async with at_the_console(chromium) as (_, broker, tab):
        producer = await broker.producer("shop/eu/orders")
        await producer.send(b"", delay="1h", key="order-7")

        def requests(page: Page) -> int:
            page.wait_for_selector(".opblock")
            return page.locator(".opblock").count()

        def fill(page: Page) -> None:
            names = {"tenant": "shop", "namespace": "eu", "topic": "orders"}
            for name, value in names.items():
                page.locator(f"tr[data-param-name={name}] input").fill(value)

        async with httpx.AsyncClient(base_url=tab.url, trust_env=False) as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
        await tab.open("/docs")
        assert await tab.does(requests) == sum(len(one) for one in paths.values())
        await tab.does(lambda page: page.locator(".opblock-get button").first.click())
        await tab.click("text=Try it out")
        await tab.does(fill)
        await tab.click("button.execute")
        await tab.shows('"key": "order-7"', ".live-responses-table")
