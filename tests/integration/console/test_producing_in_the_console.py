"""The page Produce: a message from scratch or like another one, with a delay or at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import trio.testing

from escapement import testing
from escapement.clock import unix_ms
from escapement.console.text.payload_fields import fields_of
from support.console.forms import form_of
from support.console.visitor import text_of, visiting
from support.roles import begin, connected, new_token

# Friday. The clocks of Berlin go forward on Sunday.
START_MS = unix_ms(datetime(2027, 3, 26, 12, tzinfo=UTC))


async def test_message_is_due_after_a_delay_or_at_a_time_of_the_browser(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the page shows the time in both zones before the message is sent, and then the id."""
    async with testing.start(start_ms=START_MS) as world, visiting(world) as visitor:
        visitor.http.cookies.set("escapement_zone", "Europe/Berlin")
        at = {"when": "at", "at": "2027-03-29T09:00"}
        shown = text_of(await visitor.get("/produce/preview?when=at&at=2027-03-29T09:00"))
        due = "Mon 29 Mar 2027 09:00:00 in Europe/Berlin, 2027-03-29T07:00:00.000Z in UTC"
        assert f"Due {due} , in 2 d 19 h." in shown.replace("UTC,", "UTC ,")
        skipped = text_of(await visitor.get("/produce/preview?when=at&at=2027-03-28T02:30"))
        assert "The clocks skip this time of day." in skipped
        assert "in 3 min" in text_of(await visitor.get("/produce/preview?when=delay&delay=3m"))
        assert "such as 500ms" in text_of(await visitor.get("/produce/preview?when=delay&delay=3"))
        past = text_of(await visitor.get("/produce/preview?when=at&at=2027-03-01T02:30"))
        assert "This time has passed." in past

        sent = {"topic": "shop/eu/a", "create": "shop/eu/a", "payload": "x", **at}
        answer = await visitor.send("/produce", sent)
        assert 'href="/messages/shop/eu/a@0"' in answer.text
        assert "Its topic has no subscription." in text_of(answer)
        await visitor.send("/produce", {"topic": "shop/eu/a", "when": "delay", "delay": "3m"})
        async with world.connect() as broker:
            assert (await broker.show("shop/eu/a@0")).due_at == datetime(2027, 3, 29, 7, tzinfo=UTC)
            now = world.clock.now_ms()
            assert unix_ms((await broker.show("shop/eu/a@1")).due_at) == now + 180_000


async def test_copy_of_a_message_is_equal(mock_clock: trio.testing.MockClock) -> None:
    """B14: payload, key, properties, priority and group, whatever the bytes of the payload."""
    payloads = [bytes(range(256)), b'{"a":  [1]}', "Grüße\nan alle".encode(), b"a\r\nb", b""]
    properties = {"shop": "berlin", "n": 3, "x": 1.5, "on": True, "none": None, "list": [1, "a"]}
    async with testing.start(start_ms=START_MS) as world, world.connect() as broker:
        producer = await broker.producer("copies")
        for payload in payloads:
            await producer.send(
                payload,
                key="k",
                properties=properties,
                priority=3,
                group="g",
                delay=timedelta(days=1),
            )
        async with visiting(world) as visitor:
            for offset, payload in enumerate(payloads):
                page = (await visitor.get(f"/produce?from=copies@{offset}")).text
                kind, text = fields_of(payload)
                assert f'<option value="{kind}" selected>' in page
                assert '<input type="radio" name="when" value="at" checked>' in page
                fields = {
                    "topic": "copies", "kind": kind, "key": "k", "priority": "3", "group": "g",
                    # Browsers send the lines of a text field so.
                    "payload": text.replace("\n", "\r\n"),
                    "properties": '{"shop": "berlin", "n": 3, "x": 1.5, "on": true, "none": null,'
                    ' "list": [1, "a"]}',
                    "when": "at", "at": "2027-03-27T12:00:00",
                }  # fmt: skip
                await visitor.send("/produce", fields)
        found = [one async for page in broker.read("copies") for one in page]
        plain = [
            (one.payload, one.key, one.properties, one.priority, one.group, one.due_ms)
            for one in found
        ]
        assert len(plain) == 2 * len(payloads)
        assert plain[len(payloads) :] == plain[: len(payloads)]


async def test_refused_message_stays_in_the_form(mock_clock: trio.testing.MockClock) -> None:
    """B14: the page names the field to correct, and nothing is sent."""
    async with testing.start() as world, visiting(world) as visitor:
        for wrong, told in (
            ({"kind": "json", "payload": '{"a": 1,}'}, "not JSON: Expecting property name"),
            ({"kind": "hex", "payload": "0g"}, "not hexadecimal"),
            ({"properties": "[1]"}, "not a JSON object"),
            ({"when": "delay"}, "Enter a delay"),
            ({"priority": "256"}, "from 0 to 255"),
            ({"topic": "a b"}, "cannot be a topic name"),
        ):
            answer = await visitor.send("/produce", {"topic": "t", "key": "kept", **wrong})
            assert answer.status_code == 400
            assert told in text_of(answer)
            assert 'name="key" value="kept"' in answer.text
        sent = {"topic": "t", "create": "public/default/t", "dedup": "once", "payload": "x"}
        assert "is stored" in text_of(await visitor.send("/produce", sent))
        again = text_of(await visitor.send("/produce", sent))
        assert "already has a message with this dedup key. Nothing was stored." in again
        assert "Its id is public/default/t@0 ." in again
        async with world.connect() as broker:
            assert (await broker.admin("topics.stats", topic="t"))["next_offset"] == 1


async def test_mistyped_topic_is_created_only_if_the_user_wants_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the page asks, with what was typed, and for the very name that it will create."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        sent = {"topic": "shop/eu/ordrs", "key": "kept", "payload": "x", "when": "now"}
        ticked = sent | {"create": "shop/eu/ordrs"}
        for fields, missing, is_ticked in (
            (sent, "shop/eu/ordrs", False),
            (ticked | {"topic": "shop/eu/odrers"}, "shop/eu/odrers", False),
            (ticked | {"delay": "soon", "when": "delay"}, "shop/eu/ordrs", True),
        ):
            answer = await visitor.send("/produce", fields)
            assert answer.status_code == (400 if is_ticked else 404)
            assert is_ticked or f"There is no topic {missing}." in text_of(answer)
            form = form_of(answer, "/produce")
            assert (form["key"], form["payload"]) == (["kept"], ["x"])
            box = f'name="create" value="{missing}"'
            assert box in answer.text
            assert form.get("create") == ([missing] if is_ticked else None)
        assert (await broker.admin("topics.list"))["topics"] == []

        assert 'name="create"' not in (await visitor.get("/produce?topic=shop/eu/odrers")).text
        assert "is stored" in text_of(await visitor.send("/produce", ticked))
        assert (await broker.admin("topics.list"))["topics"] == ["shop/eu/ordrs"]
        assert "is stored" in text_of(await visitor.send("/produce", sent))


async def test_user_who_may_not_look_is_not_asked_about_topics(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the console does not know whether the topic exists."""
    async with testing.start() as world:
        async with connected(world, await begin(world)) as root:
            token = await new_token(root, "nora")
            await root.admin("grants.add", role="nora", pattern="shop/*", actions=["produce"])
            async with visiting(world, token.text) as visitor:
                sent = {"topic": "shop/eu/a", "payload": "x"}
                assert "is stored" in text_of(await visitor.send("/produce", sent))
            assert (await root.admin("topics.list"))["topics"] == ["shop/eu/a"]


async def test_large_payload_is_not_put_into_a_form(mock_clock: trio.testing.MockClock) -> None:
    """B14: the form could not be sent."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("large")
        await producer.send(b"\xff" * (1 << 20))
        await producer.send(b"\xff" * ((1 << 20) + 1))
        async with visiting(world) as visitor:
            text = fields_of(b"\xff" * (1 << 20))[1].replace("\n", "\r\n")
            assert (await visitor.get("/produce?from=large@0")).status_code == 200
            sent = {"topic": "large", "kind": "hex", "payload": text}
            assert "The message is stored." in text_of(await visitor.send("/produce", sent))
            answer = await visitor.get("/produce?from=large@1")
            assert "has more than 1048576 bytes" in text_of(answer)
