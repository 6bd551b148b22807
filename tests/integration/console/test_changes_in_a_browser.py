"""Changes that a user makes with a real browser."""

from __future__ import annotations

from datetime import timedelta

import trio.testing

from escapement import testing
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.console.chromium import Chromium
from support.console.tab import at_the_console, browsing, serving
from support.roles import begin, connected


async def test_keys_select_messages_that_are_then_cancelled(
    mock_clock: trio.testing.MockClock, engine: Engine, chromium: Chromium
) -> None:
    """B14: the audit log has who, and why."""
    async with (
        testing.start(engine=engine) as world,
        serving(world) as url,
        connected(world, root := await begin(world)) as broker,
        browsing(chromium, url, token=root.text) as tab,
    ):
        producer = await broker.producer("mails")
        keys = ["a", "b", "c", "d"]
        hours = [timedelta(hours=hour) for hour in (1, 2, 3, 4)]
        await producer.send_many([b"m"] * 4, delay=hours, keys=keys)
        await tab.open("/find?where=mails")
        await tab.press("j", "j", "x", "j", "j", "x", "k", "x", "x")
        await tab.shows("2", "[data-chosen]")
        await tab.press("Enter")
        await tab.shows("public/default/mails@2", "h1")
        await tab.open("/find?where=mails")
        await tab.press("j", "j", "x", "j", "j", "x")
        await tab.click("button:has-text('Cancel…') >> nth=0")
        await tab.shows("Cancel 2 messages", "h1")
        await tab.fill("Reason", "ticket 7")
        await tab.click("text=I want to cancel")
        await tab.click("main button:has-text('Cancel')")
        await tab.shows("Cancelled: 2", "main")

        pending = await broker.admin("topics.peek", topic="mails", count=10)
        assert [row["key"] for row in pending["messages"]] == ["a", "c"]
        action, *_ = (await broker.admin("audit.list"))["actions"]
        assert (action["verb"], action["role"]) == ("messages.cancel", "root")
        assert action["reason"] == "ticket 7"


async def test_job_shows_its_progress_until_it_has_ended(
    mock_clock: trio.testing.MockClock, engine: Engine, chromium: Chromium
) -> None:
    """B14: it begins with a count of the messages that match."""
    async with at_the_console(chromium, engine=engine) as (world, broker, tab):
        producer = await broker.producer("mails")
        await producer.send_many([b"m"] * 50, delay=timedelta(hours=1))
        await tab.open("/find?where=mails")
        await tab.click("form:not([data-selection]) button:has-text('Run now…')")
        await tab.shows("Run now 50 messages", "h1")
        await tab.click("text=Run them now")
        await tab.follows()
        await tab.shows("Run now (job 1)", "h1")
        await tab.fill("Reason", "ticket 7")
        await tab.click("h1")
        for _ in range(5):
            await world.clock.advance(seconds=2)
        await tab.shows("50 of 50 messages")
        await tab.shows("done", ".state")
        # The live part was replaced meanwhile, but not what the user has typed.
        assert await tab.evaluate("document.querySelector('[name=reason]').value") == "ticket 7"
        (job,) = await broker.bulk.list()
        assert (job.state, job.done) == ("done", 50)


async def test_open_page_of_a_message_shows_that_it_became_a_dead_letter(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: the link on it leads to the dead letter, which may be sent back there."""
    async with at_the_console(chromium) as (world, broker, tab):
        names = {"topic": "mails", "subscription": "s"}
        await broker.admin("subscriptions.create", **names, policy={"max_deliveries": 1})
        await (await broker.producer("mails")).send(b"m")
        await tab.open("/messages/public/default/mails@0")
        await tab.follows()
        async with broker.consumer("mails", "s") as inbox:
            (message,) = await arrived(inbox)
            await message.reject("no such customer")
            for _ in range(5):
                await world.clock.advance(seconds=2)
        await tab.shows("a consumer rejected it: no such customer")
        await tab.click("text=Dead letter 0")
        await tab.shows("Send back", "main")


async def test_new_message_has_the_time_that_the_page_showed_before(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: in the zone of the browser, and in UTC."""
    async with at_the_console(chromium, zone="America/New_York") as (_, broker, tab):
        await broker.admin("topics.create", topic="mails")
        await tab.open("/produce")
        await tab.fill("Topic", "mails")
        await tab.fill("Payload", '{"a": "ü"}')
        await tab.click("text=At a time")
        await tab.fill("Time in America/New_York", "2026-12-25T08:30:00")
        await tab.shows("Fri 25 Dec 2026 08:30:00 in America/New_York")
        await tab.shows("2026-12-25T13:30:00.000Z in UTC")
        await tab.click("main button:has-text('Send')")
        await tab.click("main a:has-text('mails@0')")
        await tab.shows("Fri 25 Dec 2026 08:30:00")
        pending = await broker.admin("topics.peek", topic="mails", count=1)
        (row,) = pending["messages"]
        assert (row["payload"], row["due_in_ms"]) == ('{"a": "ü"}'.encode(), 91_800_000)


async def test_form_is_sent_once(mock_clock: trio.testing.MockClock, chromium: Chromium) -> None:
    """B14: a double click does not begin two jobs."""
    async with testing.start() as world, serving(world) as url, browsing(chromium, url) as tab:
        await tab.open("/produce")
        twice = await tab.does(
            lambda page: page.evaluate(
                """() => {
                    const form = document.querySelector("main form[method=post]");
                    const options = {bubbles: true, cancelable: true};
                    const send = () => form.dispatchEvent(new SubmitEvent("submit", options));
                    return [send(), send()];
                }"""
            )
        )
        assert twice == [True, False]
