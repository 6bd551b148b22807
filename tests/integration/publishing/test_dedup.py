"""Tests of dedup keys: a message is stored once within its dedup window (B3)."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, MessageId, Settings, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    BacklogFull,
    Busy,
    DelaysDisabled,
    EscapementError,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
)
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World, arrived
from support.faults.held_calls import COMMIT, Held
from support.messages.received_messages import in_log
from support.storage.commit_pipelines import FaultyEngine, Once

TOPIC = "public/default/t"
HURRIED = Settings(heartbeat_s=None, close_timeout_s=0)


def offsets(receipts: escapement.Receipts) -> list[int]:
    return receipts.offsets.tolist()


def repeats(receipts: escapement.Receipts) -> list[bool]:
    return receipts.duplicates.tolist()


async def kept_keys(world: World) -> int:
    """Return the number of rows in the table of dedup keys."""
    connection = world._engine.connect()
    try:
        return len(connection.execute("SELECT part FROM dedup_keys").rows)
    finally:
        connection.close()


# -- stored messages and receipts -------------------------------------------------------


async def test_a_second_message_with_a_dedup_key_is_not_stored(mock_clock: MockClock) -> None:
    """B3: also from another connection. Its receipt has the id of the first message."""
    async with testing.start() as world, world.connect() as broker, world.connect() as other:
        async with await broker.producer("t") as producer, await other.producer("t") as second:
            first = await producer.send(b"pay", dedup="order-7")
            again = await second.message(b"pay again").dedup("order-7").send()
            third = await second.send(b"else", dedup="order-8")
            plain = await second.send(b"pay")
        assert first == escapement.Receipt(MessageId(TOPIC, 0), False)
        assert again == escapement.Receipt(MessageId(TOPIC, 0), True)
        assert third == escapement.Receipt(MessageId(TOPIC, 1), False)
        assert plain == escapement.Receipt(MessageId(TOPIC, 2), False)
        assert await in_log(broker, "t") == [b"pay", b"else", b"pay"]


async def test_republishing_does_not_restore_a_cancelled_message(mock_clock: MockClock) -> None:
    """B3, B1: a dedup key outlives its message."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            first = await producer.send(b"", delay=(1, "s"), dedup="order-7")
            assert (await broker.cancel(first)).done.all()
            again = await producer.send(b"", dedup="order-7")
            assert (again.id, again.duplicate) == (first.id, True)
            await world.clock.advance(seconds=5)
            assert await arrived(inbox) == []


async def test_batch_is_stored_without_its_duplicates(
    mock_clock: MockClock,
) -> None:
    """B3: each row has its own receipt, and the due times stay with their rows."""
    config = BrokerConfig(ack_wait_ms=86_400_000, seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer:
            await producer.send_many([b"0", b"1"], dedup=["a", "b"])
            receipts = await producer.send_many(
                [b"x", b"2", b"3", b"y", b"4", b"5"],
                dedup=["b", None, "c", "c", "d", None],
                delay=[timedelta(hours=n) for n in (9, 1, 2, 9, 3, 4)],
            )
            all_known = await producer.send_many([b"z", b"z"], dedup=["d", "a"])
            after = await producer.send(b"6")
        assert offsets(receipts) == [1, 2, 3, 3, 4, 5]
        assert repeats(receipts) == [True, False, False, True, False, False]
        assert offsets(all_known) == [4, 0]
        assert repeats(all_known) == [True, True]
        assert after.id == MessageId(TOPIC, 6)
        assert await in_log(broker, "t") == [b"%d" % n for n in range(7)]
        async with broker.consumer("t", "s") as inbox:
            assert [m.value for m in await arrived(inbox)] == [b"0", b"1", b"6"]
            for number in (2, 3, 4, 5):
                await world.clock.advance(hours=1)
                assert [m.value for m in await arrived(inbox)] == [b"%d" % number]


@pytest.mark.parametrize("refusal", [BacklogFull, DelaysDisabled])
async def test_stored_batch_is_confirmed_although_its_topic_would_refuse_it_now(
    mock_clock: MockClock, refusal: type[EscapementError]
) -> None:
    """B3: the producer got no receipt, and sends the batch again after a change of the policy."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        by_name = await broker.producer("t", name="p")
        await by_name.send_many([b"a"], delay="1h", sequence=0)
        await (await broker.producer("t")).send_many([b"b"], delay="1h", dedup=["k"])
        if refusal is BacklogFull:
            policy = {"quota_messages": 1, "quota_counts": "all"}
            await broker.admin("topics.update", topic="t", policy=policy)
        else:
            await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
        again = await by_name.send_many([b"a"], delay="1h", sequence=0)
        assert repeats(again) == [True]
        other = await broker.producer("t", send_timeout="100ms")
        assert repeats(await other.send_many([b"b"], delay="1h", dedup=["k"])) == [True]

        refused = trio.Event()

        async def send_a_new_one() -> None:
            with pytest.raises(refusal):
                await other.send_many([b"b", b"c"], delay="1h", dedup=["k", "new"])
            refused.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_a_new_one)
            while not refused.is_set():
                await world.clock.advance(seconds=1)
        assert await in_log(broker, "t") == [b"a", b"b"]


async def test_single_sends_with_keys_travel_as_one_batch(mock_clock: MockClock) -> None:
    """B3: a thousand sends at once, each key twice."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("t")
        pending = [await producer.submit(b"%d" % n, dedup=f"k{n % 500}") for n in range(1000)]
        receipts = [await one for one in pending]
        assert [r.duplicate for r in receipts] == [False] * 500 + [True] * 500
        assert [r.id for r in receipts[500:]] == [r.id for r in receipts[:500]]
        assert len(await in_log(broker, "t")) == 500


async def test_invalid_dedup_keys_are_refused(mock_clock: MockClock) -> None:
    """B3: the client refuses before it sends anything."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("t")
        for wrong in ("", 7):
            with pytest.raises(InvalidRequest):
                await producer.send(b"x", dedup=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await producer.send_many([b"x"], dedup=["a", "b"])
        assert await in_log(broker, "t") == []


# -- the window --------------------------------------------------------------------------


async def test_a_key_is_forgotten_when_its_window_has_passed(mock_clock: MockClock) -> None:
    """B3: ten minutes after publishing by default. A changed policy takes effect at once."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("t")
        await producer.send(b"a", dedup="k", delay=timedelta(days=1))
        await world.clock.advance(seconds=599)
        assert (await producer.send(b"b", dedup="k")).duplicate
        await world.clock.advance(seconds=1)
        assert (await producer.send(b"c", dedup="k")).id == MessageId(TOPIC, 1)
        assert (await producer.send(b"d", dedup="k")).id == MessageId(TOPIC, 1)
        await broker.admin("topics.update", topic="t", policy={"dedup_window_ms": "1h"})
        await world.clock.advance(minutes=59)
        assert (await producer.send(b"e", dedup="k")).id == MessageId(TOPIC, 1)
        await broker.admin("topics.update", topic="t", policy={"dedup_window_ms": 0})
        assert not (await producer.send(b"f", dedup="k")).duplicate
        assert await broker.find("t", ["k"]) == [None]


async def test_expired_dedup_keys_free_memory_and_rows(mock_clock: MockClock) -> None:
    """Invariant 9: also for a topic without further publishes."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("t")
        await producer.send_many([b"x"] * 50, dedup=[f"{n}" for n in range(50)])
        topic = next(iter(world.server.registry.active.values()))
        await world.checkpoint()
        assert await kept_keys(world) == 1
        await world.clock.advance(minutes=11)
        assert len(topic.dedup) == 50
        await world.checkpoint()
        assert len(topic.dedup) == 0
        assert await kept_keys(world) == 0
        assert topic.dedup._budget.used == 0


async def test_new_keys_are_refused_at_the_bound_until_others_expire(
    mock_clock: MockClock,
) -> None:
    """B3: no key expires early. Messages without a key or with a known key are still accepted."""
    config = BrokerConfig(limits=BrokerLimits(dedup_keys=3), seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        producer = await broker.producer("t", send_timeout=(5, "s"))
        await producer.send_many([b"x"] * 3, dedup=["a", "b", "c"])
        failed: list[escapement.EscapementError] = []

        async def refused() -> None:
            try:
                await producer.send(b"y", dedup="d")
            except Busy as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await world.clock.advance(seconds=6)
        assert len(failed) == 1
        assert (await producer.send(b"y", dedup="b")).duplicate
        assert (await producer.send(b"y")).id == MessageId(TOPIC, 3)
        with pytest.raises(LimitExceeded):
            await producer.send_many([b"y"] * 4, dedup=["e", "f", "g", "h"])
        await world.clock.advance(minutes=11)
        assert (await producer.send(b"z", dedup="d")).id == MessageId(TOPIC, 4)


async def test_topic_deletion_frees_its_dedup_keys(mock_clock: MockClock) -> None:
    """B3: a new topic of the same name begins without keys."""
    async with testing.start() as world, world.connect() as broker:
        async with await broker.producer("t") as producer:
            await producer.send(b"x", dedup="k")
        topic = next(iter(world.server.registry.active.values()))
        budget = topic.dedup._budget
        await world.checkpoint()
        await broker.admin("topics.delete", topic="t")
        for _ in range(20):  # the housekeeper deletes in steps
            await world.clock.advance(seconds=1)
        await world.checkpoint()
        assert budget.used == 0
        assert await kept_keys(world) == 0
        async with await broker.producer("t") as producer:
            assert not (await producer.send(b"x", dedup="k")).duplicate


# -- races and crashes -----------------------------------------------------------------------


async def test_duplicate_is_answered_only_when_the_first_message_is_durable(
    mock_clock: MockClock,
) -> None:
    """Invariant 1: the duplicate waits for the commit of the first message, and gets its id."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        one, two = await broker.producer("t"), await broker.producer("t")
        receipts: list[escapement.Receipt] = []

        async def send(producer: escapement.Producer) -> None:
            receipts.append(await producer.send(b"x", dedup="k"))

        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(send, one)
                await held.reached()
                nursery.start_soon(send, two)
                await world.clock.settle()
                assert await broker.find("t", ["k"]) == [None]
                assert receipts == []
        assert sorted(receipts, key=lambda receipt: receipt.duplicate) == [
            escapement.Receipt(MessageId(TOPIC, 0), False),
            escapement.Receipt(MessageId(TOPIC, 0), True),
        ]
        assert await in_log(broker, "t") == [b"x"]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_commit_whose_reply_is_lost_stores_a_key_once(
    mock_clock: MockClock, committed: bool
) -> None:
    """B3: two producers send one key, and the database connection breaks during COMMIT."""
    lost = Once("commit", OutcomeUnknown("the reply was lost"))
    engine = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=engine) as world, world.connect() as broker:
        one, two = await broker.producer("t"), await broker.producer("t")
        if committed:
            engine.after = lost
        else:
            engine.before = lost
        lost.arm()
        receipts: list[escapement.Receipt] = []

        async def send(producer: escapement.Producer) -> None:
            receipts.append(await producer.send(b"x", dedup="k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, one)
            nursery.start_soon(send, two)
            await world.clock.advance(seconds=5)
        assert [r.id for r in receipts] == [MessageId(TOPIC, 0)] * 2
        assert sorted(r.duplicate for r in receipts) == [False, True]
        assert await in_log(broker, "t") == [b"x"]


@pytest.mark.parametrize("checkpoints", ["none", "before", "between", "after"])
async def test_dedup_keys_survive_a_crash(
    mock_clock: MockClock, checkpoints: str, engine: Engine
) -> None:
    """B3: keys from the journal, the checkpoint or both, also after a second crash."""
    async with testing.start(engine=engine) as world:
        async with world.connect(settings=HURRIED) as broker:
            producer = await broker.producer("t")
            if checkpoints == "before":
                await world.checkpoint()
            first = await producer.send_many([b"0", b"1"], dedup=["a", "b"])
            if checkpoints == "between":
                await world.checkpoint()
            await producer.send_many([b"2", b"3"], dedup=["c", "b"])
            if checkpoints == "after":
                await world.checkpoint()
        assert offsets(first) == [0, 1]
        for _ in range(2):
            await world.crash()
            await world.restart()
            topic = next(iter(world.server.registry.active.values()))
            assert len(topic.dedup) == 3
            async with world.connect() as broker:
                again = await (await broker.producer("t")).send_many(
                    [b"x"] * 4, dedup=["c", "a", "b", "b"]
                )
                assert offsets(again) == [2, 0, 1, 1]
                assert repeats(again) == [True] * 4
                assert await in_log(broker, "t") == [b"0", b"1", b"2"]
            await world.checkpoint()
        await world.clock.advance(minutes=10)
        async with world.connect() as broker:
            new = await (await broker.producer("t")).send(b"3", dedup="a")
            assert not new.duplicate


async def test_a_broker_that_dies_in_the_commit_stores_each_key_once(
    mock_clock: MockClock,
) -> None:
    """B3: a new producer sends the same keys again after the restart."""
    for steps in range(1, 40, 2):
        async with testing.start() as world:

            async def send(world: World = world) -> None:
                async with world.connect(settings=HURRIED) as broker:
                    producer = await broker.producer("t")
                    await producer.send_many([b"a", b"b"], dedup=["a", "b"])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await world.crash()
            await world.restart()
            async with world.connect() as broker:
                producer = await broker.producer("t")
                receipts = await producer.send_many([b"b", b"c", b"a"], dedup=["b", "c", "a"])
                assert sorted(offsets(receipts)) == [0, 1, 2]
                assert sorted(await in_log(broker, "t")) == [b"a", b"b", b"c"]


async def test_sequence_of_a_named_producer_counts_duplicates(mock_clock: MockClock) -> None:
    """B3: also across a crash."""
    async with testing.start() as world:
        async with world.connect(settings=HURRIED) as broker:
            producer = await broker.producer("t", name="p")
            await producer.send_many([b"0", b"1"], dedup=["a", "b"])
            known = await producer.send_many([b"0", b"1", b"1"], dedup=["a", "b", "b"])
            assert repeats(known) == [True] * 3
            assert producer.next_sequence == 5
        await world.crash()
        await world.restart()
        async with world.connect() as broker:
            producer = await broker.producer("t", name="p")
            assert producer.next_sequence == 5
            assert (await producer.send(b"2")).id == MessageId(TOPIC, 2)


# -- finding and amending --------------------------------------------------------------------


async def test_messages_are_found_and_changed_by_their_dedup_keys(
    mock_clock: MockClock,
) -> None:
    """B1, B3: within the dedup window. An unknown key has status UNKNOWN."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        producer = await broker.producer("t")
        keys = ["a", "b", "c-3"]
        await producer.send_many([b"0", b"1", b"2"], dedup=keys, delay=timedelta(hours=1))
        assert await broker.find("t", "c-3") == [MessageId(TOPIC, 2)]
        assert await broker.find("t", ["c-3", "x", "a"]) == [
            MessageId(TOPIC, 2),
            None,
            MessageId(TOPIC, 0),
        ]
        outcomes = await broker.cancel(topic="t", dedup=["b", "x", "c-3"])
        assert [one.status for one in outcomes] == [
            AmendStatus.DONE,
            AmendStatus.UNKNOWN,
            AmendStatus.DONE,
        ]
        assert outcomes.offsets.tolist() == [1, -1, 2]
        moved = await broker.reschedule(topic="t", dedup=["x", "a"], delay=timedelta(minutes=30))
        assert [one.status for one in moved] == [AmendStatus.UNKNOWN, AmendStatus.DONE]
        (unknown,) = await broker.run_now(topic="t", dedup="y")
        assert not unknown.done
        for what, topic, dedup in [(None, None, "a"), (0, "t", "a"), (None, "t", None)]:
            with pytest.raises(InvalidRequest):
                await broker.cancel(what, topic=topic, dedup=dedup)
        await world.clock.advance(minutes=30)
        async with broker.consumer("t", "s") as inbox:
            assert [m.value for m in await arrived(inbox)] == [b"0"]
        assert await broker.find("t", keys) == [None] * 3
