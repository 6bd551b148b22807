"""Requests to a broker whose lease has expired: it answers nothing that may be out of date."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.access.token import Token
from escapement.broker.admin.admin import READS, VERBS
from escapement.broker.broker import BrokerConfig
from escapement.broker.front.front import Front
from escapement.dedup import DIGEST
from escapement.errors import AccessDenied, LeaseLost, StorageUnavailable
from escapement.protocol import commands as wire
from escapement.protocol.amend_status import AmendStatus
from escapement.protocol.limits import PROTOCOL_VERSION
from escapement.storage.engine.base import Engine
from escapement.testing import World
from support.database.outages import Outage
from support.roles import begin, connected, new_token
from support.verb_arguments import TAKEN
from support.wire_peer import WirePeer, silent_peer, wire_peer

LEASE_S: Final = 10


async def test_broker_whose_lease_has_expired_refuses_every_read(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B8: another broker may have changed the topics. It answers again after a renewal."""
    outage = Outage(engine)
    async with with_a_lease(outage) as world:
        async with world.connect() as broker, wire_peer(world) as peer:
            await broker.admin("subscriptions.create", topic="t", subscription="s")
            producer = await broker.producer("t")
            await producer.send(b"0", group="g", delay="1h", dedup="d")
            await broker.schedules.create("public/default/again", "t", every="1h")
            held = {name: await answer(peer, request) for name, request in reads().items()}
            refused = {name for name, one in held.items() if isinstance(one, wire.Refused)}
            # They name something that does not exist, or is of another broker.
            assert refused == {
                "dlq.show", "bulk.show", "push.show", "a missing topic", "a missing subscription"
            }  # fmt: skip
            outage.unrenewed()
            await world.clock.advance(seconds=LEASE_S + 1)
            for name, request in reads().items():
                found = await answer(peer, request)
                assert isinstance(found, wire.Refused), name
                assert (found.code, found.retryable) == (LeaseLost.code, True), name
            # The numbers of the process itself are shown.
            stats = await answer(peer, verb("broker.stats", {}))
            assert isinstance(stats, wire.AdminReply)
            assert not stats.result["lease_held"]
            # A change checks the lease in its transaction: no other broker has taken it.
            cancelled = await answer(peer, wire.Cancel(1, "t", np.array([0])))
            assert isinstance(cancelled, wire.Amended)
            assert cancelled.statuses.tolist() == [AmendStatus.DONE]
            outage.over()
            await world.clock.advance(seconds=LEASE_S)
            for name, request in reads().items():
                found = await answer(peer, request)
                assert (name in refused) == isinstance(found, wire.Refused), name


async def test_client_repeats_a_read_until_the_lease_is_renewed(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B8: an application does not see that its broker was stopped for longer than a lease."""
    outage = Outage()
    async with with_a_lease(outage) as world:
        settings = escapement.Settings(heartbeat_s=None, request_timeout_s=3600)
        async with world.connect(settings=settings) as broker, trio.open_nursery() as nursery:
            await broker.admin("topics.create", topic="t")
            outage.unrenewed()
            await world.clock.advance(seconds=LEASE_S + 1)
            listed: list[Any] = []

            async def read() -> None:
                listed.extend((await broker.admin("topics.list"))["topics"])

            nursery.start_soon(read)
            await world.clock.advance(seconds=LEASE_S)
            assert listed == []
            outage.over()
            await world.clock.advance(seconds=LEASE_S)
            assert listed == ["public/default/t"]


async def test_broker_whose_lease_has_expired_refuses_no_token_and_no_right_for_good(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B8: another broker may have created the token or added the grant since."""
    outage = Outage(engine)
    async with with_a_lease(outage) as world:
        root = await begin(world)
        async with connected(world, root) as superuser:
            await superuser.admin("topics.create", topic="t")
            token = await new_token(superuser, "app")
        async with silent_peer(Front.of_broker(world.server)) as peer:
            assert isinstance(await answer(peer, hello_with(token)), wire.Welcome)
            request = reads()["find"]
            denied = await answer(peer, request)
            assert isinstance(denied, wire.Refused)
            assert denied.code == AccessDenied.code
            outage.unrenewed()
            await world.clock.advance(seconds=LEASE_S + 1)
            denied = await answer(peer, request)
            assert isinstance(denied, wire.Refused)
            assert (denied.code, denied.retryable) == (LeaseLost.code, True)
        async with silent_peer(Front.of_broker(world.server)) as peer:
            refused = await answer(peer, hello_with(Token.new()))
            assert isinstance(refused, wire.Refused)
            assert (refused.code, refused.retryable) == (StorageUnavailable.code, True)


async def test_broker_without_tokens_admits_clients_with_a_token_during_an_outage(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """It refuses nobody. A program may have the token of another broker in its environment."""
    outage = Outage(engine)
    async with with_a_lease(outage) as world:
        outage.unrenewed()
        await world.clock.advance(seconds=LEASE_S + 1)
        async with silent_peer(Front.of_broker(world.server)) as peer:
            assert isinstance(await answer(peer, hello_with(Token.new())), wire.Welcome)


def hello_with(token: Token) -> wire.Hello:
    return wire.Hello(PROTOCOL_VERSION, "test", {}, token.text)


@pytest.mark.parametrize(
    "word",
    ["list", "get", "show", "count", "peek", "select", "forecast", "lateness", "overview"],
)
def test_verbs_named_after_reading_are_checked_as_reads(word: str) -> None:
    """The audit log is read from the database, which all brokers write."""
    named = {name for name in VERBS if name.rpartition(".")[2] == word} - {"audit.list"}
    assert named
    assert named <= READS


@asynccontextmanager
async def with_a_lease(outage: Outage) -> AsyncIterator[World]:
    """Start a broker whose lease expires without renewals."""
    async with testing.start(config=BrokerConfig(seed=0), engine=outage.engine) as world:
        limits = replace(world.config.limits, lease_ms=1000 * LEASE_S)
        world.config = replace(world.config, limits=limits)
        await world.stop()
        await world.restart()
        yield world


def reads() -> dict[str, wire.Command]:
    """Return all requests that are answered from the memory of the broker."""
    return {name: verb(name, arguments(name)) for name in sorted(READS)} | {
        "read": wire.Read(1, "t", 0, -1, 10),
        "find": wire.Find(1, "t", np.zeros(1, DIGEST)),
        "cancel": wire.Cancel(1, "t", np.array([7])),
        "reschedule": wire.Reschedule(1, "t", np.array([7]), 1000, -1, 0),
        "a missing topic": wire.Read(1, "missing", 0, -1, 10),
        "a missing subscription": verb(
            "subscriptions.update", {"topic": "t", "subscription": "no", "policy": {"ttl_ms": 9}}
        ),
    }


def arguments(name: str) -> dict[str, Any]:
    return {key: value for key, (value, _) in TAKEN[name].items() if value is not None}


def verb(name: str, given: dict[str, Any]) -> wire.Admin:
    return wire.Admin(1, name, given)


async def answer(peer: WirePeer, request: wire.Command) -> wire.Command:
    """Return the answer to a request."""
    (found,) = await peer.say(request)
    return found
