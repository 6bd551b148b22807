"""The pages about dead letters: by reason, sent back, sent again with changes, or deleted."""

from __future__ import annotations

import re

import trio.testing

import escapement
from escapement import testing
from escapement.testing import World, arrived
from support.console.chromium import Chromium
from support.console.filled import MAILS, filled
from support.console.tab import browsing, serving
from support.console.visitor import text_of, visiting

TOPIC = "shop/eu/orders"
DLQ = "shop/eu/orders-billing-DLQ"
PATH = "/dead-letters/shop/eu/orders/billing"


async def _die(world: World, broker: escapement.Broker, count: int) -> None:
    """Let orders become dead letters of billing: half of them returned, half timed out."""
    policy = {"max_deliveries": 1}
    await broker.admin("subscriptions.create", topic=TOPIC, subscription="billing", policy=policy)
    producer = await broker.producer(TOPIC)
    await producer.send_many(
        [f"order {n}".encode() for n in range(count)],
        keys=[f"key-{n}" for n in range(count)],
        properties=[{"shop": "berlin", "number": n} for n in range(count)],
        priorities=7,
    )
    async with broker.consumer(TOPIC, "billing") as inbox:
        await inbox.nack((await arrived(inbox))[: count // 2])
        await world.clock.advance(minutes=2)
    await world.clock.advance(seconds=3)


async def _left(broker: escapement.Broker) -> int:
    answer = await broker.admin("dlq.count", topic=TOPIC, subscription="billing")
    return int(answer["dead_letters"])


async def test_selected_dead_letters_are_sent_back_or_deleted(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: by reason, with a spread; a deletion is confirmed by the number."""
    async with testing.start() as world, world.connect() as broker:
        await _die(world, broker, 8)
        async with visiting(world) as visitor:
            shown = await visitor.text(PATH)
            assert "8 in all 4 nack 4 timeout" in shown
            assert "timeout: a consumer did not acknowledge the last attempt in time" in shown
            assert "timeout:" not in await visitor.text(f"{PATH}?cause=nack")
            assert f'href="/messages/{TOPIC}@3"' in (await visitor.get(PATH)).text

            sent = {"id": ["0", "1", "77"], "spread": "10m", "reason": "ticket 4711"}
            shown = text_of(await visitor.send(f"{PATH}/redrive", sent))
            assert "2 dead letters are sent back. The others were not there any more." in shown
            await world.clock.advance(seconds=1)
            pending = [one async for one in broker.peek(TOPIC)]
            assert {one.key for one in pending} == {"key-0", "key-1"}
            assert len({one.due_at for one in pending}) == 2, "they are all due together"

            answer = await visitor.send(f"{PATH}/purge", {"id": ["2", "3"], "typed": "1"})
            assert "Nothing was deleted. Type 2" in text_of(answer)
            assert await _left(broker) == 6
            answer = await visitor.send(f"{PATH}/purge", {"id": ["2", "3"], "typed": "2"})
            assert "2 dead letters are deleted." in text_of(answer)
            assert await _left(broker) == 4

            nothing = await visitor.send(f"{PATH}/redrive", {})
            assert "Select at least one" in text_of(nothing)
            answer = await visitor.send(f"{PATH}/purge-all", {"typed": "bill"})
            assert "Nothing was deleted." in text_of(answer)
            assert await _left(broker) == 4
            await visitor.send(f"{PATH}/purge-all", {"typed": "billing", "in": DLQ})
            assert await _left(broker) == 0
            assert "has no dead letters" in await visitor.text(f"{PATH}?in={DLQ}")


async def test_detail_of_a_reject_is_shown(mock_clock: trio.testing.MockClock) -> None:
    """B14: in the list, and on the pages of the dead letter; only if there is one."""
    async with testing.start() as world, world.connect() as broker:
        await _die(world, broker, 2)
        async with visiting(world) as visitor:
            assert "Detail" not in await visitor.text(PATH)
            producer = await broker.producer(TOPIC)
            await producer.send_many([b"3", b"4"])
            async with broker.consumer(TOPIC, "billing") as inbox:
                gone, other = await arrived(inbox)
                await gone.reject("HTTP 410 <i>")
                await other.reject()
                await world.clock.advance(seconds=3)
            shown = await visitor.text(f"{PATH}?cause=rejected")
            assert "Dead letter Original message Detail Key" in shown
            assert f"{TOPIC}@2 HTTP 410 <i>" in shown
            assert "Detail" not in await visitor.text(f"{PATH}?cause=nack")
            assert "Detail HTTP 410 <i>" in await visitor.text(f"{PATH}/2")
            assert "Detail HTTP 410 <i>" in await visitor.text(f"/messages/{DLQ}@2")
            assert "Detail" not in await visitor.text(f"/messages/{DLQ}@3")


async def test_dead_letter_is_edited_and_sent_again(mock_clock: trio.testing.MockClock) -> None:
    """B14: the new message has what the original had; the dead letter is deleted if ticked."""
    async with testing.start() as world, world.connect() as broker:
        await _die(world, broker, 4)
        async with visiting(world) as visitor:
            page = (await visitor.get(f"{PATH}/2")).text
            link = re.search(r'href="(/produce\?from=[^"]+)"', page)
            assert link is not None
            form = (await visitor.get(link[1])).text
            assert f'name="topic" value="{TOPIC}"' in form
            assert "order 2" in form
            assert "dead_letter_" not in form
            fields = {
                "from": f"{DLQ}@2", "topic": TOPIC, "payload": "order 2, corrected", "key": "key-2",
                "properties": '{"number": 2}', "priority": "7",
            }  # fmt: skip
            shown = text_of(await visitor.send("/produce", fields))
            assert "The message is stored." in shown
            assert "deleted" not in shown
            assert await _left(broker) == 4
            both = {"purge": "true", "reason": "ticket 4711"}
            shown = text_of(await visitor.send("/produce", fields | both))
            assert "The dead letter is deleted." in shown
            assert await _left(broker) == 3
            again = [one async for page in broker.read(TOPIC, 4) for one in page]
            assert [one.payload for one in again] == [b"order 2, corrected"] * 2
            assert again[0].properties == {"number": 2}
            assert again[0].priority == 7
            found = (await broker.admin("audit.list", count=2))["actions"]
            assert [(one["verb"], one["object"], one["reason"]) for one in found] == [
                ("dlq.purge", TOPIC, "ticket 4711"),
                ("messages.produce", TOPIC, "ticket 4711"),
            ]


async def test_all_dead_letters_are_sent_back_by_a_job(mock_clock: trio.testing.MockClock) -> None:
    """B14: the page has their number before the job begins."""
    async with testing.start() as world, world.connect() as broker:
        await _die(world, broker, 6)
        async with visiting(world) as visitor:
            page = (await visitor.get(f"{PATH}?cause=timeout")).text
            form = page[page.index('<form id="redrive-all"') :]
            fields = dict(
                re.findall(r'name="(\w+)" value="([^"]*)"', form[: form.index("</form>")])
            )
            del fields["csrf"]
            assert " 3 " in text_of(await visitor.send("/act", fields))
            assert await _left(broker) == 6
            await visitor.send("/act/now", fields | {"spread": "5m"})
            for _ in range(5):
                await world.clock.advance(seconds=1)
            assert await _left(broker) == 3
            assert "nack" in await visitor.text(PATH)
            assert "timeout" not in await visitor.text(PATH)


async def test_forged_properties_break_no_page(mock_clock: trio.testing.MockClock) -> None:
    """B14: a publisher may choose the properties of a dead letter."""
    async with testing.start() as world, world.connect() as broker:
        await _die(world, broker, 2)
        producer = await broker.producer(DLQ)
        forged = {
            "dead_letter_topic": TOPIC, "dead_letter_subscription": "billing",
            "dead_letter_reason": "<i>", "dead_letter_died_at_ms": 10**18,
            "dead_letter_offset": -1, "dead_letter_due_at_ms": -(10**18),
        }  # fmt: skip
        await producer.send(b"x", properties=forged)
        await producer.send(b"x", properties=forged | {"dead_letter_subscription": '"><i>'})
        async with visiting(world) as visitor:
            for path in ("/dead-letters", PATH, f"{PATH}/2", f"/produce?from={DLQ}@3"):
                answer = await visitor.get(path)
                assert answer.status_code == 200, (path, text_of(answer))
                assert "<i>" not in answer.text


async def test_viewer_sees_dead_letters_without_payloads(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the overview lists the subscriptions, and no action is offered."""
    async with filled() as shop, visiting(shop.world, shop.viewer.text) as visitor:
        page = (await visitor.get("/dead-letters")).text
        link = re.search(rf'href="(/dead-letters/{MAILS}/sender\?in=[^"]+)"', page)
        assert link is not None
        shown = await visitor.text(link[1])
        assert "rejected" in shown
        assert "timeout" in shown
        assert "Send back" not in shown
        assert "checkbox" not in (await visitor.get(link[1])).text
        offset = re.search(
            rf'href="/dead-letters/{MAILS}/sender/(\d+)', (await visitor.get(link[1])).text
        )
        assert offset is not None
        one = f"/dead-letters/{MAILS}/sender/{offset[1]}"
        shown = await visitor.text(one)
        assert "Viewers do not see payloads." in shown
        assert "Thank you" not in shown
        lie_in = f"{MAILS}-sender-DLQ"
        answer = await visitor.get(f"/produce?from={lie_in}@{offset[1]}")
        assert answer.status_code == 403
        assert "Thank you" not in answer.text


async def test_enter_in_a_form_of_several_actions_does_none_of_them(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: Enter after the number that confirms a deletion had sent the dead letters back."""
    async with testing.start() as world, world.connect() as broker:
        await _die(world, broker, 4)
        async with serving(world) as url, browsing(chromium, url) as tab:
            await tab.open(PATH)
            await tab.click("input[name=id]")
            await tab.click("text=Delete the selected >> nth=0")
            await tab.does(lambda page: page.locator("[name=typed]").first.press("1"))
            await tab.press("Enter")
            await tab.click("button:text('Delete the selected')")
            await tab.shows("1 dead letter is deleted.")
            await tab.open(f"{PATH}/3")
            await tab.click("text=Delete the dead letter")
            await tab.click("input[name=typed]")
            await tab.press("Enter")
            await tab.click("button.danger")
            await tab.shows("1 dead letter is deleted.")
        assert await _left(broker) == 2
        assert not [one async for one in broker.peek(TOPIC)]
