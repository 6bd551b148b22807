"""The pages Find and Act in a real browser: more rows, selections, saved views, and keys."""

from __future__ import annotations

from typing import Final

import trio.testing
from playwright.sync_api import Page

from support.console.chromium import Chromium
from support.console.tab import at_the_console

ORDERS: Final = "public/default/orders"
ROWS: Final = "main tbody tr"


async def test_rows_of_several_pages_are_selected_and_cancelled(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: "More" adds rows to the list, so a selection may have messages of several pages."""
    async with at_the_console(chromium) as (_, broker, tab):
        producer = await broker.producer("orders")
        await producer.send_many([b""] * 70, delay="1h")
        await tab.open("/find?where=orders")
        assert await tab.count(ROWS) == 51  # the last one loads more
        await tab.press("j", "x", "j", "x", "x")
        await tab.shows("(1)", "[data-chosen]")
        await tab.click("#more a")
        await tab.has(f"a[href='/messages/{ORDERS}@69']")
        assert await tab.count(ROWS) == 70
        assert await tab.count("#more") == 0
        await tab.shows("(1)", "[data-chosen]")
        await tab.click("[data-all]")
        await tab.shows("(70)", "[data-chosen]")
        await tab.click("form[data-selection] button[value=cancel]")
        await tab.shows("Cancel 70 messages")
        await tab.shows("and 50 more")
        await tab.fill("Reason", "ticket 4711")
        await tab.click("text=I want to cancel these messages.")
        await tab.click("button:text('Cancel them')")
        await tab.shows("Cancelled: 70.")
        assert (await broker.show(f"{ORDERS}@69")).state == "cancelled"
        await tab.click("text=Back to the list")
        await tab.goes("/find?where=orders")
        await tab.shows("No message matches.")


async def test_view_is_kept_by_the_browser_until_it_is_deleted(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: a view is a name for a filter. Its name is a text, whatever characters it has."""
    name = "Berlin <b>late</b>"
    async with at_the_console(chromium) as (_, broker, tab):
        await broker.admin("topics.create", topic="orders")
        await tab.open("/find?where=orders&property=shop%3Dberlin&state=overdue")
        await tab.click("text=Saved views")
        await tab.fill("Name of the view", name)
        await tab.press("Enter")
        await tab.open("/find")
        await tab.shows(name, "[data-view-list]")
        await tab.does(lambda page: page.get_by_role("link", name=name, exact=True).click())
        await tab.goes("/find?where=orders&property=shop%3Dberlin&state=overdue")

        def delete(page: Page) -> None:
            page.get_by_role("button", name=f"Delete the view {name}").click()

        await tab.does(delete)
        await tab.open("/find")
        assert await tab.count("[data-view-list] li") == 0
