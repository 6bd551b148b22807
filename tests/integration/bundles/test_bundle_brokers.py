"""What the broker of a bundle refuses, and what brokers of several bundles share."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from escapement.broker.broker import BrokerConfig
from escapement.errors import Conflict, NotFound, WrongBundle
from escapement.protocol import commands as wire
from escapement.storage.bundles import set_bundle_count
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.storage.bundle_brokers import BUNDLES, brokers, full, home, names
from support.storage.inbox_entries import inbox_entry, post
from support.wire_peer import wire_peer

CONFIG = BrokerConfig(seed=0)


async def test_every_bundle_creates_namespaces_and_bundle_0_changes_and_deletes_them(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """All bundles share the namespaces. None is deleted while another bundle has topics in it."""
    space = {"namespace": "a/b"}
    async with brokers(engine, tmp_path, CONFIG) as worlds:
        (there,) = names("a/b/x", 1, 1)
        (here,) = names("a/b/x", 0, 1)
        async with worlds[1].connect() as other, worlds[0].connect() as first:
            await other.admin("topics.create", topic=there)
            await first.admin("topics.create", topic=here)  # in the same namespace
            for verb, more in (
                ("namespaces.update", {"policy": {"retention_ms": "0s"}}),
                ("namespaces.delete", {"force": True}),
            ):
                with pytest.raises(WrongBundle, match="owns bundle 0"):
                    await other.admin(verb, **space, **more)
            await first.admin("namespaces.update", **space, policy={"retention_ms": "0s"})
            with pytest.raises(Conflict, match="still has topics"):
                await first.admin("namespaces.delete", **space)
            await first.admin("topics.create", topic=names("a/b/y", 0, 1)[0])
            await other.admin("topics.delete", topic=there)
            await first.admin("namespaces.delete", **space, force=True)
            with pytest.raises(NotFound, match="deleted"):
                await other.admin("topics.create", topic=there)
            with pytest.raises(WrongBundle, match="owns bundle 0"):
                await other.admin("grants.add", role="r", pattern="*", actions=["consume"])


async def test_a_broker_creates_and_discards_nothing_of_another_bundle(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """Neither one by one, nor many at once, nor for entries of the inbox."""
    async with brokers(engine, tmp_path, CONFIG) as worlds, worlds[0].connect() as broker:
        own, (foreign,) = names("x", 0, 2), names("x", 2, 1)
        with pytest.raises(WrongBundle, match="belongs to bundle 2"):
            await broker.admin("topics.create", topic=foreign)
        with pytest.raises(WrongBundle, match="belongs to bundle 2"):
            await broker.admin("topics.create_many", topics=[*own, foreign])
        assert (await broker.admin("topics.list"))["total"] == 0
        with pytest.raises(WrongBundle, match="belongs to bundle 2"):
            await broker.admin("inbox.discard", target=f"public/default/{foreign}")
        async with wire_peer(worlds[0]) as peer:
            (refused,) = await peer.say(wire.OpenProducer(1, 1, foreign, "p", -1))
            assert isinstance(refused, wire.Refused)
            assert (refused.code, refused.retryable) == ("wrong_bundle", True)


async def test_a_broker_that_started_before_bundles_were_added_places_topics_by_the_new_number(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """Its relay leaves the entries for topics of the new bundles to their relays, too."""
    async with brokers(engine, tmp_path, CONFIG, 1) as (old,), old.connect() as broker:
        (own,), (foreign,), (stays,) = names("x", 0, 1), names("x", 1, 1), names("y", 1, 1)
        await broker.admin("subscriptions.create", topic=stays, subscription="s")
        set_bundle_count(engine, BUNDLES)
        await broker.admin("topics.create", topic=own)
        with pytest.raises(WrongBundle, match="belongs to bundle 1"):
            await broker.admin("topics.create", topic=foreign)
        await post(old, [inbox_entry(full(target), "entry") for target in (foreign, stays)])
        await old.clock.advance(seconds=5)
        async with broker.consumer(stays, "s") as messages:
            assert [one.payload for one in await arrived(messages)] == [b"entry"]
        waiting = await broker.admin("inbox.list")
        assert {one["target"]: one["entries"] for one in waiting} == {full(foreign): 1}
        assert home(stays) == 1  # by its hash: topics stay where they were created
