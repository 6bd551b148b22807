"""The pages of users whose grants cover only a part of the topics."""

from __future__ import annotations

import trio.testing

from escapement import testing
from support.console.visitor import text_of, visiting
from support.roles import begin, connected, new_token


async def test_user_of_one_namespace_sees_its_pages_and_no_other_numbers(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14, O1: refused pages keep the frame, so the user can go on, or sign out."""
    async with testing.start() as world:
        async with connected(world, await begin(world)) as root:
            for topic in ("shop/eu/orders", "shop/us/orders", "shop/us/mails"):
                await root.admin("subscriptions.create", topic=topic, subscription="s")
                async with await root.producer(topic) as producer:
                    await producer.send(b"", delay="1h")
            token = await new_token(root, "eve")
            await root.admin("grants.add", role="eve", pattern="shop/eu/*", actions=["peek"])
        async with visiting(world, token.text) as visitor:
            timeline = await visitor.text("/")
            assert "1 fall due in this time" in timeline
            assert "Only namespaces that your grants cover" in timeline
            assert 'href="/brokers"' not in (await visitor.get("/")).text
            for path in ("/find", "/subscriptions", "/lateness", "/schedules", "/jobs"):
                assert "shop/us" not in await visitor.text(path), path
            assert "shop/eu/orders" in await visitor.text("/subscriptions")
            for path in ("/brokers", "/audit", "/?where=shop/us", "/find?where=shop/us/orders"):
                refused = await visitor.get(path)
                assert refused.status_code == 403, path
                assert "lacks the right" in text_of(refused)
                assert "Sign out" in text_of(refused)


async def test_user_of_single_topics_chooses_one(mock_clock: trio.testing.MockClock) -> None:
    """B14: a count of a namespace would tell about topics that the user does not see."""
    async with testing.start() as world:
        async with connected(world, await begin(world)) as root:
            for topic in ("shop/eu/orders", "shop/us/orders", "shop/us/mails"):
                await root.admin("topics.create", topic=topic)
            tokens = {role: await new_token(root, role) for role in ("tina", "nora")}
            for pattern in ("shop/eu/orders", "shop/us/mails"):
                await root.admin("grants.add", role="tina", pattern=pattern, actions=["peek"])
            await root.admin("grants.add", role="nora", pattern="bank/b/*", actions=["produce"])
        async with visiting(world, tokens["tina"].text) as visitor:
            page = await visitor.text("/")
            assert "shop/eu/orders shop/us/mails" in page
            assert "shop/us/orders" not in page
        async with visiting(world, tokens["nora"].text) as visitor:
            assert (await visitor.get("/")).status_code == 403
