"""Replace keys: a pending message is replaced, kept or put off by one with the same key (B11)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, MessageId, Receipt, Replace, Settings, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    Busy,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    StorageUnavailable,
)
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.faults.dying_brokers import DiesAt
from support.faults.held_calls import COMMIT, Held
from support.storage.commit_pipelines import FaultyEngine, Once, no_fault

HOUR = timedelta(hours=1)
HURRIED = Settings(heartbeat_s=None, close_timeout_s=0)
PATIENT = BrokerConfig(ack_wait_ms=86_400_000, seed=0)


def id(offset: int) -> MessageId:
    return MessageId("public/default/t", offset)


async def subscribe(broker: escapement.Broker, *names: str, **options: Any) -> None:
    for name in names:
        await broker.admin("subscriptions.create", topic="t", subscription=name, **options)


async def deliveries(broker: escapement.Broker, name: str = "s") -> list[bytes]:
    """Return the values that a subscription gets now, and acknowledge them."""
    async with broker.consumer("t", name) as inbox:
        messages = await arrived(inbox)
        await inbox.ack([message.id for message in messages], durable=True)
        return [message.value for message in messages]


async def stored_parts(world: World) -> int:
    """Return the number of rows in the table of replace keys."""
    connection = world._engine.connect()
    try:
        return len(connection.execute("SELECT part FROM replace_keys").rows)
    finally:
        connection.close()


def _dies_after_commit(engine: FaultyEngine) -> Callable[[str], None]:
    """Return a fault of a broker that dies when its COMMIT has taken effect."""

    def after(step: str) -> None:
        engine.before = DiesAt(0)
        raise OutcomeUnknown("the broker's process has ended")

    return after


# -- the modes ---------------------------------------------------------------------------------


async def test_latest_message_replaces_the_pending_one(mock_clock: MockClock) -> None:
    """B11: the old one is never delivered, and messages of other keys stay."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        assert await producer.send(b"a", delay="5m", replace="k") == Receipt(id(0))
        assert await producer.send(b"x", delay="5m", replace="other") == Receipt(id(1))
        assert await producer.send(b"y", delay="5m") == Receipt(id(2))
        assert await producer.message(b"b").delay_at(9, "minutes").replace("k").send() == Receipt(
            id(3), replaced=id(0)
        )
        third = await producer.send(b"c", delay="7m", replace=Replace.latest("k"))
        assert third == Receipt(id(4), replaced=id(3))
        await world.clock.advance(minutes=5)
        assert await deliveries(broker) == [b"x", b"y"]
        await world.clock.advance(minutes=2)
        assert await deliveries(broker) == [b"c"]
        await world.clock.advance(hours=1)
        assert await deliveries(broker) == []


async def test_first_message_is_kept_until_it_is_delivered(mock_clock: MockClock) -> None:
    """B11: the receipt has the id of the kept message, and a later message is published as new."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        first = Replace.first("k")
        assert await producer.send(b"a", delay="5m", replace=first) == Receipt(id(0))
        assert await producer.send(b"b", replace=first) == Receipt(id(0), kept=True)
        assert await deliveries(broker) == []
        await world.clock.advance(minutes=5)
        assert await producer.send(b"c", replace=first) == Receipt(id(0), kept=True)
        assert await deliveries(broker) == [b"a"]
        assert await producer.send(b"d", replace=first) == Receipt(id(3))
        assert await deliveries(broker) == [b"d"]


async def test_debounced_message_is_put_off_up_to_the_maximum_wait(mock_clock: MockClock) -> None:
    """B11: with the newest payload. After the delivery a new chain begins."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        debounce = Replace.debounce("k", max_wait="10m")
        for minute in range(9):
            await producer.send(b"%d" % minute, delay="2m", replace=debounce)
            assert await deliveries(broker) == []
            await world.clock.advance(minutes=1)
        await producer.send(b"last", delay="2m", replace=debounce)
        await world.clock.advance(seconds=59)
        assert await deliveries(broker) == []
        await world.clock.advance(seconds=1)
        assert await deliveries(broker) == [b"last"]
        assert (await producer.send(b"new", delay="2m", replace=debounce)).replaced is None
        await world.clock.advance(minutes=1, seconds=59)
        assert await deliveries(broker) == []
        await world.clock.advance(seconds=1)
        assert await deliveries(broker) == [b"new"]


async def test_messages_of_a_batch_meet_each_other_in_order(mock_clock: MockClock) -> None:
    """B11: the last wins for latest, the first for first, and receipts tell it row by row."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        await producer.send_many([b"A", b"B"], delay=HOUR, replace=["a", Replace.first("b")])
        receipts = await producer.send_many(
            [b"a1", b"b1", b"c1", b"plain", b"a2", b"c2", b"d1", b"d2"],
            delay=HOUR,
            replace=[
                "a",
                Replace.first("b"),
                Replace.first("c"),
                None,
                "a",
                Replace.first("c"),
                "d",
                Replace.debounce("d", max_wait="10m"),
            ],
        )
        assert receipts.replaced is not None
        assert receipts.kept is not None
        assert receipts.replaced.tolist() == [0, -1, -1, -1, 2, -1, -1, 8]
        assert receipts.kept.tolist() == [False, True, False, False, False, True, False, False]
        assert receipts.offsets.tolist() == [2, 1, 4, 5, 6, 4, 8, 9]
        await world.clock.advance(minutes=10)
        assert await deliveries(broker) == [b"d2"]
        await world.clock.advance(hours=1)
        assert sorted(await deliveries(broker)) == [b"B", b"a2", b"c1", b"plain"]


async def test_single_sends_of_two_producers_form_one_chain(mock_clock: MockClock) -> None:
    """B11: in the same group commit and in different ones, one message is left."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        await subscribe(broker, "s")
        one, two = await broker.producer("t"), await broker.producer("t")
        with held.hold(COMMIT):
            pending = [await one.submit(b"first", delay=HOUR, replace="k")]
            await held.reached()  # the others share the next groups
            for n in range(20):
                for producer in (one, two):
                    pending.append(await producer.submit(b"%d" % n, delay=HOUR, replace="k"))
                await world.clock.settle()
        receipts = [await waiting for waiting in pending]
        ids = {receipt.id for receipt in receipts}
        replaced = [receipt.replaced for receipt in receipts if receipt.replaced is not None]
        assert len(ids) == 41
        assert len(replaced) == len(set(replaced)) == 40
        (last,) = ids - set(replaced)
        assert [message.id async for message in broker.peek("t")] == [last]
        await world.clock.advance(hours=1)
        assert len(await deliveries(broker)) == 1


# -- pending messages -------------------------------------------------------------------------


async def test_message_in_flight_is_not_replaced(mock_clock: MockClock) -> None:
    """B11, B1: nor one in retry, nor one that only one of two subscriptions has got."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await subscribe(broker, "s", "other")
        producer = await broker.producer("t")
        async with broker.consumer("t", "s") as inbox:
            await producer.send(b"a", replace="k")
            (message,) = await arrived(inbox)
            assert await producer.send(b"b", delay=HOUR, replace="k") == Receipt(id(1))
            await message.nack(delay=timedelta(minutes=1))
            first = await producer.send(b"c", delay=HOUR, replace=Replace.first("k"))
            assert first == Receipt(id(1), kept=True)
            await world.clock.advance(minutes=1)
            (again,) = await arrived(inbox)
            assert (again.value, again.attempt) == (b"a", 2)
        assert await deliveries(broker, "other") == [b"a"]


async def test_cancelled_expired_or_moved_message(mock_clock: MockClock) -> None:
    """B11: a cancelled or expired message is not pending, and a rescheduled one still is."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        first = Replace.first("k")
        await broker.cancel(await producer.send(b"a", delay=HOUR, replace=first))
        b = await producer.send(b"b", delay=HOUR, replace=first)
        assert b == Receipt(id(1))
        await broker.reschedule(b, delay=timedelta(hours=3))
        await world.clock.advance(hours=2)
        assert await producer.send(b"c", replace=first) == Receipt(id(1), kept=True)
        assert await producer.send(b"d", delay=HOUR, replace="k") == Receipt(id(3), replaced=id(1))
        (outcome,) = await broker.cancel(id(1))
        assert outcome.status is AmendStatus.DONE
        await broker.admin("topics.update", topic="t", policy={"ttl_ms": "10m"})
        await world.clock.advance(hours=3)
        assert await producer.send(b"e", replace=first) == Receipt(id(4))
        assert await deliveries(broker) == [b"e"]


async def test_message_without_a_subscription_is_pending_until_it_is_due(
    mock_clock: MockClock,
) -> None:
    """B11: it is delivered to no later subscription, so it does not hold up new ones."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("t")
        first = Replace.first("k")
        await producer.send(b"a", delay="5m", replace=first)
        assert (await producer.send(b"b", replace=first)).kept
        await world.clock.advance(minutes=5)
        await subscribe(broker, "s")
        assert await producer.send(b"c", replace=first) == Receipt(id(2))
        assert await deliveries(broker) == [b"c"]


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_subscription_in_arrival_order_gets_no_replaced_message(
    mock_clock: MockClock, kind: str
) -> None:
    """B11: an exclusive subscription ignores due times, so it may get the message at once."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await subscribe(broker, "e", kind=kind)
        producer = await broker.producer("t")
        await producer.send(b"a", delay=HOUR, replace="k")
        assert (await producer.send(b"b", delay=HOUR, replace="k")).replaced == id(0)
        async with broker.consumer("t", "e", kind=kind) as inbox:
            assert [message.value for message in await arrived(inbox)] == [b"b"]
            assert await producer.send(b"c", replace="k") == Receipt(id(2))
            assert [message.value for message in await arrived(inbox)] == [b"c"]


async def test_delivered_message_is_not_pending_again_after_a_seek(mock_clock: MockClock) -> None:
    """B11: nor after the only subscription that got it is deleted."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s", "other")
        producer = await broker.producer("t")
        await producer.send_many([b"a", b"b"], replace=["k", "l"])
        assert await deliveries(broker) == [b"a", b"b"]
        await broker.admin("subscriptions.seek", topic="t", subscription="s", position="earliest")
        assert await producer.send(b"c", replace="k") == Receipt(id(2))
        assert await deliveries(broker) == [b"a", b"b", b"c"]
        await broker.admin("subscriptions.delete", topic="t", subscription="s")
        assert await producer.send(b"d", replace=Replace.first("l")) == Receipt(id(3))
        assert await deliveries(broker, "other") == [b"a", b"b", b"c", b"d"]


# -- exactly once ------------------------------------------------------------------------------


async def test_repeated_send_does_not_replace_its_own_message(mock_clock: MockClock) -> None:
    """B11, B3: by dedup key or by the sequence of a named producer."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t", name="p")
        debounce = Replace.debounce("k", max_wait="1h")
        await producer.send(b"a", delay="10m", dedup="a", replace=debounce)
        await world.clock.advance(minutes=5)
        again = await producer.send(b"a", delay="10m", dedup="a", replace=debounce)
        assert again == Receipt(id(0), True)
        kept = await producer.send(b"b", dedup="b", replace=Replace.first("k"))
        assert kept == Receipt(id(0), kept=True)
        await producer.aclose()
        async with await broker.producer("t", name="p") as second:
            assert (await second.send(b"a", sequence=0, replace="k")).duplicate
            await world.clock.advance(minutes=5)
            assert await deliveries(broker) == [b"a"]
            # A send that was dropped stays dropped.
            assert (await second.send(b"b", dedup="b", replace=Replace.first("k"))).duplicate
            mixed = await second.send_many(
                [b"b", b"c", b"d"], dedup=["b", "c", "d"], replace=["k", "k", "k"]
            )
            assert mixed.replaced is not None
            assert mixed.duplicates.tolist() == [True, False, False]
            assert mixed.replaced.tolist() == [-1, -1, mixed.offsets[1]]
            assert await deliveries(broker) == [b"d"]


@pytest.mark.parametrize("committed", [True, False])
async def test_commit_whose_reply_is_lost_replaces_once(
    mock_clock: MockClock, committed: bool
) -> None:
    """B11: the connection to the database breaks during the COMMIT of the new message."""
    lost = Once("commit", OutcomeUnknown("the reply was lost"))
    engine = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        await producer.send(b"a", delay=HOUR, replace="k")
        if committed:
            engine.after = lost
        else:
            engine.before = lost
        lost.arm()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(producer.send, b"b", delay=HOUR, replace="k"))
            await world.clock.advance(seconds=5)
        third = await producer.send(b"c", delay=HOUR, replace="k")
        assert third.replaced is not None
        await world.clock.advance(hours=1)
        assert await deliveries(broker) == [b"c"]


async def test_crash_at_any_step_of_the_commit_leaves_one_message(mock_clock: MockClock) -> None:
    """B11: before each call to the database, and after the COMMIT but before its effect."""
    for number in range(13):
        engine = FaultyEngine(SqliteEngine.in_memory())
        async with testing.start(engine=engine) as world:
            async with world.connect(settings=HURRIED) as broker:
                await subscribe(broker, "s")
                producer = await broker.producer("t")
                await producer.send(b"a", delay=HOUR, replace="k")
                if number:
                    engine.before = DiesAt(number)
                else:
                    engine.after = _dies_after_commit(engine)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(producer.send, b"b", delay=HOUR, replace="k"))
                    await world.clock.settle()
                    await world.crash()
                    nursery.cancel_scope.cancel()
            engine.before = engine.after = no_fault
            await world.restart()
            async with world.connect() as broker:
                left = [message.id.offset async for message in broker.peek("t")]
                assert len(left) == 1
                assert left == [1] or number
                again = await (await broker.producer("t")).send(b"c", delay=HOUR, replace="k")
                assert again.replaced == id(left[0])


async def test_refused_message_leaves_the_pending_one_in_its_place(mock_clock: MockClock) -> None:
    """B11: the message falls due while the database refuses the one that would replace it."""
    outage = Outage()
    async with testing.start(engine=outage.engine, config=PATIENT) as world:
        async with world.connect(settings=HURRIED) as broker:
            await subscribe(broker, "s")
            await subscribe(broker, "e", kind="exclusive")
            producer = await broker.producer("t", send_timeout=(2, "s"))
            await producer.send(b"a", delay="5m", replace="k")
            await world.clock.advance(minutes=5)
            outage.unreachable()
            failed = []

            async def refused() -> None:
                try:
                    await producer.send(b"b", delay=HOUR, replace="k")
                except escapement.EscapementError as error:
                    failed.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused)
                await world.clock.advance(seconds=10)
            assert failed
            outage.over()
            await world.clock.advance(seconds=10)
            for name, kind in (("s", "shared"), ("e", "exclusive")):
                async with broker.consumer("t", name, kind=kind) as inbox:
                    assert [message.value for message in await arrived(inbox)] == [b"a"]


async def test_cancel_of_a_message_that_is_being_replaced_is_final(mock_clock: MockClock) -> None:
    """B1, B11: even if the new message is refused. A reschedule waits for the outcome."""
    held, outage = Held(), Outage()
    async with testing.start(engine=outage.engine, run=held) as world:
        async with world.connect(settings=HURRIED) as broker:
            await subscribe(broker, "s")
            producer = await broker.producer("t", send_timeout=(2, "s"))
            await producer.send_many([b"a", b"b"], delay=HOUR, replace=["k", "l"])
            found: list[AmendStatus] = []
            repaired = trio.Event()

            async def cancel() -> None:
                (outcome,) = await broker.cancel(id(0))
                found.append(outcome.status)

            async def move() -> None:
                with pytest.raises(StorageUnavailable):  # it waited, and then found the outage
                    await broker.reschedule(id(1), delay=timedelta(minutes=30))
                await repaired.wait()
                (outcome,) = await broker.reschedule(id(1), delay=timedelta(minutes=30))
                found.append(outcome.status)

            async def refused() -> None:
                with pytest.raises(escapement.EscapementError):
                    await producer.send_many([b"c", b"d"], delay=HOUR, replace=["k", "l"])

            async with trio.open_nursery() as nursery:
                with held.hold(COMMIT):
                    nursery.start_soon(refused)
                    await held.reached()
                    nursery.start_soon(cancel)
                    nursery.start_soon(move)
                    await world.clock.settle()
                    assert found == []
                    outage.unreachable()
                await world.clock.advance(seconds=3)
                outage.over()
                await world.clock.advance(seconds=10)
                repaired.set()
            assert sorted(found) == [AmendStatus.DONE, AmendStatus.DONE]
            await world.clock.advance(minutes=30)
            assert await deliveries(broker) == [b"b"]
            await world.clock.advance(hours=1)
            assert await deliveries(broker) == []


async def test_message_that_is_cancelled_while_it_is_replaced_counts_as_cancelled_once(
    mock_clock: MockClock,
) -> None:
    """O4: the replacement waits for its commit when the cancel arrives."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        await producer.send(b"a", delay=HOUR, replace="k")

        async def replace() -> None:
            receipt = await producer.send(b"b", delay=HOUR, replace="k")
            assert receipt.replaced == id(0)

        async def cancel() -> None:
            (outcome,) = await broker.cancel(id(0))
            assert outcome.status == AmendStatus.DONE

        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(replace)
                await held.reached()
                nursery.start_soon(cancel)
                await world.clock.settle()
        assert world.server.services.totals.cancelled == 1


# -- restarts, bounds and deletion -------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", ["none", "before", "between", "after"])
async def test_replace_keys_survive_a_crash(
    mock_clock: MockClock, checkpoints: str, engine: Engine
) -> None:
    """B11: keys from the journal, the checkpoint or both, and the start of a debounce."""
    debounce = Replace.debounce("d", max_wait="30m")
    async with testing.start(engine=engine) as world:
        async with world.connect(settings=HURRIED) as broker:
            await subscribe(broker, "s")
            producer = await broker.producer("t")
            if checkpoints == "before":
                await world.checkpoint()
            await producer.send_many(
                [b"0", b"1", b"2"], delay=HOUR, replace=["a", Replace.first("b"), debounce]
            )
            if checkpoints == "between":
                await world.checkpoint()
            await producer.send(b"3", delay=HOUR, replace="a")
            if checkpoints == "after":
                await world.checkpoint()
        for _ in range(2):
            await world.crash()
            await world.restart()
        await world.clock.advance(minutes=20)
        async with world.connect() as broker:
            receipts = await (await broker.producer("t")).send_many(
                [b"4", b"5", b"6"], delay=HOUR, replace=["a", Replace.first("b"), debounce]
            )
            assert receipts.replaced is not None
            assert receipts.kept is not None
            assert receipts.replaced.tolist() == [3, -1, 2]
            assert receipts.kept.tolist() == [False, True, False]
            await world.clock.advance(minutes=9)
            assert await deliveries(broker) == []
            await world.clock.advance(minutes=1)
            assert await deliveries(broker) == [b"6"]
            await world.clock.advance(hours=2)
            assert await deliveries(broker) == [b"1", b"4"]


async def test_message_that_may_have_been_delivered_before_a_crash_is_not_replaced(
    mock_clock: MockClock,
) -> None:
    """B1, B11: a due message may have been in flight, so the new one is published beside it."""
    async with testing.start() as world:
        async with world.connect(settings=HURRIED) as broker:
            await subscribe(broker, "s")
            producer = await broker.producer("t")
            await producer.send_many(
                [b"a", b"b"], delay=[timedelta(minutes=1), HOUR], replace=["k", "l"]
            )
            await world.clock.advance(minutes=2)
        await world.crash()
        await world.restart()
        async with world.connect() as broker:
            receipts = await (await broker.producer("t")).send_many(
                [b"c", b"d"], replace=[Replace.first("k"), "l"]
            )
            assert receipts.replaced is not None
            assert receipts.kept is not None
            assert receipts.replaced.tolist() == [-1, 1]
            assert not receipts.kept.any()
            assert sorted(await deliveries(broker)) == [b"a", b"c", b"d"]


async def test_entries_of_delivered_messages_free_memory_and_rows(mock_clock: MockClock) -> None:
    """Invariant 9: a checkpoint removes them, and the topic may become passive again."""
    async with testing.start() as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t")
        await producer.send_many([b"x"] * 50, replace=[f"{n}" for n in range(50)])
        topic = next(iter(world.server.registry.active.values()))
        await world.checkpoint()
        assert await stored_parts(world) == 1
        assert len(await deliveries(broker)) == 50
        await world.checkpoint()
        assert len(topic.replace_keys) == 0
        assert not topic.replace_keys.is_used
        assert topic.replace_keys._budget.used == 0
        assert await stored_parts(world) == 0


async def test_bound_of_pending_messages_with_replace_keys(mock_clock: MockClock) -> None:
    """Invariant 9: messages that replace, and plain ones, are accepted again after deliveries."""
    config = BrokerConfig(limits=BrokerLimits(replace_keys=3), seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        await subscribe(broker, "s")
        producer = await broker.producer("t", send_timeout=(2, "s"))
        await producer.send_many([b"a", b"b", b"c"], replace=["a", "b", "c"])
        assert (await producer.send(b"plain")).id == id(3)
        failed: list[escapement.EscapementError] = []

        async def refused() -> None:
            try:
                await producer.send(b"d", replace="d")
            except Busy as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await world.clock.advance(seconds=5)
        assert failed
        with pytest.raises(LimitExceeded):
            await producer.send_many([b"x"] * 4, replace=["e", "f", "g", "h"])
        assert len(await deliveries(broker)) == 4
        assert (await producer.send(b"d", replace="d")).replaced is None


async def test_topic_deletion_frees_its_replace_keys(mock_clock: MockClock) -> None:
    """B11: a new topic of the same name begins without keys."""
    async with testing.start() as world, world.connect() as broker:
        async with await broker.producer("t") as producer:
            await producer.send(b"x", delay=HOUR, replace="k")
        budget = next(iter(world.server.registry.active.values())).replace_keys._budget
        await world.checkpoint()
        await broker.admin("topics.delete", topic="t")
        for _ in range(20):  # the housekeeper deletes in steps
            await world.clock.advance(seconds=1)
        await world.checkpoint()
        assert budget.used == 0
        assert await stored_parts(world) == 0
        async with await broker.producer("t") as producer:
            assert (await producer.send(b"x", delay=HOUR, replace="k")).replaced is None


async def test_invalid_replace_keys_are_refused(mock_clock: MockClock) -> None:
    """B11: the client refuses before it sends anything."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("t")
        for wrong in ("", 7):
            with pytest.raises(InvalidRequest):
                await producer.send(b"x", replace=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            Replace.debounce("k", max_wait="0s")
        with pytest.raises(InvalidRequest):
            await producer.send_many([b"x"], replace=["a", "b"])
        with pytest.raises(InvalidRequest):
            await producer.send_many([b"x"], replace="a")  # type: ignore[arg-type]
        assert (await producer.send(b"x")).id == id(0)
