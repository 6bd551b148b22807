"""Tokens and grants that the owner of bundle 0 has just changed, at brokers of other bundles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import escapement
from escapement.access.token import Token
from escapement.errors import AccessDenied, Unauthenticated
from escapement.storage.engine.base import Engine
from support.storage.cluster import Cluster, cluster, connected, named


@asynccontextmanager
async def passing_time(found: Cluster) -> AsyncIterator[None]:
    """Advance the time in small steps, as requests wait."""

    async def pass_by() -> None:
        while True:
            await trio.testing.wait_all_tasks_blocked()
            await found.clock.advance(seconds=0.05)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_by)
        yield
        nursery.cancel_scope.cancel()


async def superuser(found: Cluster) -> str:
    """Create the first token, as ``escapement admin bootstrap`` does."""
    token = Token.new()
    access = found.nodes["a:7650"].brokers[0].services.access
    await access.bootstrap("root", token.id, token.digest)
    return token.text


async def new_token(root: escapement.Broker, role: str) -> str:
    token = Token.new()
    given = {"role": role, "id": token.id, "digest": token.digest, "expires_at_ms": None}
    await root.admin("tokens.create", **given)
    return token.text


async def test_a_new_token_and_its_grants_are_good_at_brokers_of_all_bundles_at_once(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: these brokers have not read the tables again, and do so before they refuse."""
    async with cluster(engine, tmp_path) as found, passing_time(found):
        (topic,) = named(found, 1)
        async with connected(found, "b", token=await superuser(found)) as root:
            await root.admin("topics.create", topic=topic)
            for role in ("app", "other"):
                text = await new_token(root, role)
                async with connected(found, "b", token=text) as client:
                    with pytest.raises(AccessDenied):
                        await client.producer(topic)
                    await root.admin("grants.add", role=role, pattern=topic, actions=["produce"])
                    await (await client.producer(topic)).send(b"x")
                    with pytest.raises(AccessDenied):
                        await client.find(topic, "key")
                    await root.admin("grants.add", role=role, pattern=topic, actions=["peek"])
                    assert await client.find(topic, "key") == [None]


async def test_a_token_that_nobody_has_created_is_refused_everywhere(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8."""
    async with cluster(sqlite, tmp_path) as found, passing_time(found):
        await superuser(found)
        for address in ("a", "b", "b"):
            with pytest.raises(Unauthenticated, match="does not know the token"):
                async with connected(found, address, token=Token.new().text):
                    pass
