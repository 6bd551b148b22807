"""A consumer's ack_wait above the subscription's max_backoff is refused, never shortened."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import Conflict, InvalidRequest
from escapement.testing import arrived
from support.faults.held_calls import COMMIT, Held
from support.unrecorded_verbs import run_verb

CALM = BrokerConfig(seed=0)
NAMES = {"topic": "x", "subscription": "s"}


async def test_consumer_with_an_ack_wait_above_max_backoff_is_refused(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: the error names both durations and what to do."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_backoff_ms": "10s"})
        with pytest.raises(InvalidRequest) as refused:
            async with broker.consumer("x", "s", ack_wait="5m"):
                pass
        assert str(refused.value) == (
            "an ack_wait of 5m is longer than max_backoff, which is 10s for the subscription s of "
            "public/default/x: ask for at most 10s, or raise max_backoff with `escapement admin "
            "subscriptions update public/default/x s --max-backoff 5m`"
        )
        producer = await broker.producer("x")
        await producer.send(b"hard")
        async with broker.consumer("x", "s", ack_wait="10s") as inbox:
            assert [message.payload for message in await arrived(inbox)] == [b"hard"]


async def test_default_ack_wait_is_shortened_to_max_backoff(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: the default of 30 s applies to consumers that do not ask for an ack_wait."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_backoff_ms": "10s"})
        producer = await broker.producer("x")
        await producer.send(b"hard")
        async with broker.consumer("x", "s") as inbox:
            assert [message.attempt for message in await arrived(inbox)] == [1]
            await world.clock.advance(seconds=10)
            assert [message.attempt for message in await arrived(inbox)] == [2]


async def test_ack_wait_above_ten_years_is_refused(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: ten years is the bound without a max_backoff."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        for ack_wait in ("522w", (2**62 - 1, "ms")):
            with pytest.raises(InvalidRequest, match=r"is too long: ask for at most 3650d"):
                async with broker.consumer("x", "s", ack_wait=ack_wait):
                    pass


async def test_max_backoff_cannot_be_lowered_below_the_ack_wait_of_a_connected_consumer(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: the consumer keeps the ack_wait that it was granted."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", ack_wait="1m", name="slow") as inbox:
            with pytest.raises(Conflict) as refused:
                await broker.admin("subscriptions.update", **NAMES, policy={"max_backoff_ms": "9s"})
            assert str(refused.value) == (
                "max_backoff of the subscription s of public/default/x cannot be 9s while the "
                "consumer 'slow' is connected, which asked for an ack_wait of 1m: choose at least "
                "1m, or have the consumer ask for less first"
            )
            assert (await broker.admin("subscriptions.get", **NAMES))["max_backoff_ms"] == 0
            await broker.admin("subscriptions.update", **NAMES, policy={"max_backoff_ms": "1m"})
            # Other fields can be changed.
            await broker.admin("subscriptions.update", **NAMES, policy={"jitter": 0})
            await producer.send(b"hard")
            assert [message.attempt for message in await arrived(inbox)] == [1]
            await world.clock.advance(seconds=59)
            assert await arrived(inbox) == []
        await broker.admin("subscriptions.update", **NAMES, policy={"max_backoff_ms": "9s"})


async def test_consumer_that_joins_while_max_backoff_is_being_lowered_is_refused(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: the consumer waits until the new policy is stored, and is checked against it."""
    held, said = Held(), list[str]()

    async def lower() -> None:
        policy = {"max_backoff_ms": "9s"}
        await run_verb(world, "subscriptions.update", **NAMES, policy=policy)

    async def join(broker: escapement.Broker) -> None:
        try:
            async with broker.consumer("x", "s", ack_wait="1m"):
                said.append("joined")
        except InvalidRequest as error:
            said.append(str(error))

    async with testing.start(config=CALM, run=held) as world:
        async with world.connect() as operator, world.connect() as broker:
            await operator.admin("subscriptions.create", **NAMES)
            async with trio.open_nursery() as nursery:
                with held.hold(COMMIT):
                    nursery.start_soon(lower)
                    await held.reached()
                    nursery.start_soon(join, broker)
                    await trio.testing.wait_all_tasks_blocked()
            assert [one.partition(" for ")[0] for one in said] == [
                "an ack_wait of 1m is longer than max_backoff, which is 9s"
            ]


async def test_reconnecting_consumer_ends_with_an_error_after_max_backoff_was_lowered(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: a reconnect does not shorten the ack_wait."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        async with broker.consumer("x", "s", ack_wait="1m") as inbox:
            await world.crash()
            await world.restart()
            async with world.connect() as operator:
                lowered = {"max_backoff_ms": "9s"}
                await operator.admin("subscriptions.update", **NAMES, policy=lowered)
            await world.clock.advance(seconds=60)
            assert inbox._error is not None
            with pytest.raises(InvalidRequest, match="an ack_wait of 1m is longer than max_back"):
                await inbox.receive()
