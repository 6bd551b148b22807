"""What users see whose grants cover only a part of the topics."""

from __future__ import annotations

import trio.testing

from escapement import testing
from support.console.visitor import text_of, visiting
from support.roles import begin, connected, new_token


async def test_user_of_one_namespace_begins_at_its_timeline(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: refused pages keep the frame, so the user can go on, or sign out."""
    async with testing.start() as world:
        async with connected(world, await begin(world)) as root:
            for topic in ("shop/eu/orders", "shop/eu/mails", "shop/us/orders"):
                await root.admin("topics.create", topic=topic)
            token = await new_token(root, "olga")
            await root.admin("grants.add", role="olga", pattern="shop/eu/*", actions=["peek"])
        async with visiting(world, token.text) as visitor:
            home = await visitor.get("/")
            assert home.headers["location"] == "/?by=hour&where=shop%2Feu"
            page = await visitor.get(home.headers["location"])
            assert "What falls due" in text_of(page)
            assert "Brokers" not in text_of(page).partition("Audit")[0].partition("Keys")[0]
            refused = await visitor.get("/find?where=shop/us/orders")
            assert refused.status_code == 403
            assert "lacks the right" in text_of(refused)
            assert "Sign out" in text_of(refused)


async def test_user_of_several_places_chooses_one(mock_clock: trio.testing.MockClock) -> None:
    """B14: namespaces, or the topics of a user who may look at no whole namespace."""
    async with testing.start() as world:
        async with connected(world, await begin(world)) as root:
            for topic in ("shop/eu/orders", "shop/us/orders", "shop/us/mails"):
                await root.admin("topics.create", topic=topic)
            tokens = {}
            for role, patterns in {
                "tom": ["shop/*"],
                "tina": ["shop/eu/orders", "shop/us/mails"],
                "nora": ["bank/*"],
            }.items():
                tokens[role] = await new_token(root, role)
                for pattern in patterns:
                    await root.admin("grants.add", role=role, pattern=pattern, actions=["peek"])
        async with visiting(world, tokens["tom"].text) as visitor:
            assert "shop/eu shop/us" in await visitor.text("/")
        async with visiting(world, tokens["tina"].text) as visitor:
            assert "shop/eu/orders shop/us/mails" in await visitor.text("/")
        async with visiting(world, tokens["nora"].text) as visitor:
            assert "no topic yet" in await visitor.text("/")
