"""Push targets at the broker: stored, changed, shown without secrets, and deleted."""

from __future__ import annotations

from typing import Any, Final

import pytest
import trio.testing

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from escapement.storage.engine.base import Engine
from support.database.rows import rows
from support.roles import begin, connected, new_token

NAMES: Final = {"topic": "x", "subscription": "s"}
URL: Final = "https://shop.example/hooks?to=orders"


async def test_target_is_stored_changed_and_deleted(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B16: it survives a crash and a seek. Only its creation and a rotation show a secret."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        ask = broker.admin
        await ask("subscriptions.create", **NAMES)
        made = await ask("push.create", **NAMES, url=URL, policy={"timeout_ms": "3s"})
        secret = made.pop("secret")
        assert secret.startswith("whsec_")
        assert made == {
            "topic": "public/default/x",
            "subscription": "s",
            "created_at_ms": world.clock.now_ms(),
            "old_secret_until_ms": None,
            "url": URL,
            "timeout_ms": 3_000,
            "concurrency": 10,
            "paused": False,
        }
        with pytest.raises(AlreadyExists):
            await ask("push.create", **NAMES, url=URL)
        await world.crash()
        await world.restart()
        await world.clock.advance(seconds=60)
        await ask("subscriptions.seek", **NAMES, position="earliest")
        assert await ask("push.show", **NAMES) == made
        assert await ask("push.list") == [made]
        (work,) = await ask("push.secrets")
        assert (work["url"], work["secrets"]) == (URL, [secret])
        assert work["timeout_ms"] < work["ack_wait_ms"]

        rotated = await ask("push.rotate", **NAMES, keep_ms=60_000)
        assert rotated["old_secret_until_ms"] == world.clock.now_ms() + 60_000
        (work,) = await ask("push.secrets")
        assert work["secrets"] == [rotated["secret"], secret]
        await world.clock.advance(seconds=60)
        (work,) = await ask("push.secrets")
        assert work["secrets"] == [rotated["secret"]]

        assert (await ask("push.pause", **NAMES))["paused"]
        assert await ask("push.secrets") == []
        assert not (await ask("push.resume", **NAMES))["paused"]
        changed = await ask("push.update", **NAMES, policy={"concurrency": 3, "timeout_ms": None})
        assert (changed["concurrency"], changed["timeout_ms"], changed["url"]) == (3, 10_000, URL)
        assert (await ask("push.delete", **NAMES)) == {"deleted": "s"}
        for verb in ("show", "delete", "rotate", "pause"):
            with pytest.raises(NotFound):
                await ask(f"push.{verb}", **NAMES)


async def test_target_goes_with_its_subscription(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B16: a later subscription or topic of the same name has none."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        for doomed in ("subscriptions.delete", "topics.delete"):
            await broker.admin("subscriptions.create", **NAMES)
            await broker.admin("push.create", **NAMES, url=URL)
            of = NAMES if doomed.startswith("sub") else {"topic": "x"}
            await broker.admin(doomed, **of, force=True)
            assert rows(engine)["push_targets"] == 0
            await broker.admin("subscriptions.create", **NAMES)
            assert await broker.admin("push.list") == []
            with pytest.raises(NotFound):
                await broker.admin("push.show", **NAMES)
            await broker.admin("subscriptions.delete", **NAMES)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://user@shop.example/"},
        {"url": ""},
        {"url": 7},
        {"timeout_ms": 99},
        {"timeout_ms": "61s"},
        {"concurrency": 0},
        {"concurrency": 101},
        {"paused": "perhaps"},
        {"secret": "whsec_mine"},
    ],
)
async def test_setting_that_is_not_valid_is_refused(
    settings: dict[str, Any], mock_clock: trio.testing.MockClock
) -> None:
    """B16"""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        url = settings.pop("url", URL)
        with pytest.raises(InvalidRequest):
            await broker.admin("push.create", **NAMES, url=url, policy=settings)
        await broker.admin("push.create", **NAMES, url=URL)
        before = await broker.admin("push.show", **NAMES)
        with pytest.raises(InvalidRequest):
            await broker.admin("push.update", **NAMES, policy=settings or {"url": url})
        assert await broker.admin("push.show", **NAMES) == before


async def test_subscription_must_exist_be_shared_and_allow_the_ack_wait(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B16: a post never takes longer than the ack wait. The number of targets is bounded."""
    config = BrokerConfig(seed=0, limits=BrokerLimits(push_targets=1))
    async with testing.start(config=config) as world, world.connect() as broker:
        ask = broker.admin
        await ask("subscriptions.create", **NAMES, kind="exclusive")
        with pytest.raises(NotFound):
            await ask("push.create", topic="x", subscription="none", url=URL)
        with pytest.raises(InvalidRequest, match="shared"):
            await ask("push.create", **NAMES, url=URL)
        narrow = {"topic": "x", "subscription": "narrow"}
        await ask("subscriptions.create", **narrow, policy={"max_backoff_ms": "12s"})
        with pytest.raises(InvalidRequest, match="max_backoff"):
            await ask("push.create", **narrow, url=URL)
        await ask("push.create", **narrow, url=URL, policy={"timeout_ms": "2s"})
        with pytest.raises(InvalidRequest, match="max_backoff"):
            await ask("push.update", **narrow, policy={"timeout_ms": "3s"})
        await ask("subscriptions.create", topic="x", subscription="more")
        with pytest.raises(LimitExceeded):
            await ask("push.create", topic="x", subscription="more", url=URL)


async def test_only_administrators_of_a_topic_see_and_set_its_target(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B16, O1"""
    async with testing.start() as world:
        async with connected(world, await begin(world)) as broker:
            for topic in ("a/b/x", "a/c/x"):
                await broker.admin("subscriptions.create", topic=topic, subscription="s")
                await broker.admin("push.create", topic=topic, subscription="s", url=URL)
            tokens = [await new_token(broker, role) for role in ("user", "keeper")]
            actions = {"user": ["produce", "consume", "peek", "cancel"], "keeper": ["admin"]}
            for role, some in actions.items():
                await broker.admin("grants.add", role=role, pattern="a/b/*", actions=some)
        async with connected(world, tokens[0]) as broker:
            given: dict[str, dict[str, Any]] = {
                "create": {"url": URL}, "update": {"policy": {"paused": True}}, "rotate": {},
                "delete": {}, "show": {}, "pause": {}, "resume": {},
            }  # fmt: skip
            for verb, arguments in given.items():
                with pytest.raises(AccessDenied):
                    await broker.admin(f"push.{verb}", topic="a/b/x", subscription="s", **arguments)
            for verb in ("list", "secrets"):
                with pytest.raises(AccessDenied):
                    await broker.admin(f"push.{verb}")
        async with connected(world, tokens[1]) as broker:
            for verb in ("list", "secrets"):
                assert [row["topic"] for row in await broker.admin(f"push.{verb}")] == ["a/b/x"]
