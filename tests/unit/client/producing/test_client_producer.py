"""The producer with a test peer: batches, receipts, no loss and no duplicates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import anyio
import msgpack
import numpy as np
import pytest

from escapement.errors import (
    Busy,
    DelayTooLong,
    Disconnected,
    InvalidRequest,
    LimitExceeded,
    NaiveDatetime,
    NotFound,
    ProducerFenced,
    StorageUnavailable,
)
from escapement.message import Blobs, MessageBatch, Times
from escapement.protocol import commands as wire
from support.client_peer import Peer, connect, on_both

TOPIC = "public/default/t"


@on_both
async def test_error_names_the_property_that_cannot_be_encoded() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        with pytest.raises(InvalidRequest, match="property 'price' of type Decimal"):
            await producer.send(b"one", properties={"name": "tea", "price": Decimal("1.20")})


@on_both
async def test_receipt_names_the_message_and_exit_waits_for_pending_messages() -> None:
    async with Peer.running() as peer:
        async with connect(peer) as broker:
            producer = await broker.producer("t")
            receipt = await producer.send(b"one")
            assert receipt.id == (TOPIC, 0)
            assert not receipt.duplicate
            await producer.submit(b"two")
        assert [row[0] for row in peer.log] == [b"one", b"two"]
        assert type(peer.heard[-1]) is wire.Goodbye


@on_both
async def test_concurrent_sends_become_few_batches_with_correct_offsets() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        found: dict[int, int] = {}

        async def send(number: int) -> None:
            receipt = await producer.send(b"%d" % number)
            assert receipt.id is not None
            found[number] = receipt.id.offset

        async with anyio.create_task_group() as tasks:
            for number in range(500):
                tasks.start_soon(send, number)
        assert all(peer.log[offset][0] == b"%d" % number for number, offset in found.items())
        assert sorted(found.values()) == list(range(500))
        assert len(peer.heard_of(wire.Publish)) < 10


@on_both
async def test_batch_is_sent_when_a_receipt_arrives_or_the_linger_ends() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t", linger=timedelta(seconds=2))
        peer.hold_receipts = True
        first = await producer.submit(b"first")
        await anyio.sleep(0.01)
        began_s = anyio.current_time()
        second = await producer.submit(b"second")
        await anyio.sleep(1)
        assert len(peer.heard_of(wire.Publish)) == 1
        third = await producer.submit(b"third")
        await anyio.sleep(1.1)
        assert len(peer.heard_of(wire.Publish)) == 2
        assert anyio.current_time() - began_s < 2.2
        fourth = await producer.submit(b"fourth")
        await peer.release()
        offsets = [(await p).id.offset for p in (first, second, third, fourth)]
        assert offsets == [0, 1, 2, 3]
        assert anyio.current_time() - began_s < 2.2


@on_both
async def test_sending_waits_while_too_many_messages_are_in_flight() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t", max_in_flight_messages=3)
        peer.hold_receipts = True
        for number in range(3):
            await producer.submit(b"%d" % number)
        with anyio.move_on_after(5) as scope:
            await producer.submit(b"too many")
        assert scope.cancelled_caught
        await peer.release()
        await producer.send(b"now")
        assert [row[0] for row in peer.log] == [b"0", b"1", b"2", b"now"]


@on_both
async def test_times_keys_properties_and_priorities_are_sent() -> None:
    at = datetime(2026, 12, 24, 18, tzinfo=UTC)
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t", serializer=str)
        await producer.send("a", delay=(3, "minutes"), key="k", properties={"n": 1}, priority=7)
        await producer.message("b").schedule_at(at).key("z").property("p", [1]).priority(9).send()
        await producer.message("c").delay_at(1.5, "s").send()
        await producer.send("d", delay="2h")
        await producer.send("e", at=datetime(1960, 1, 1, tzinfo=UTC))
    at_ms = int(at.timestamp() * 1000)
    assert peer.log == [
        (b"a", 180_000, -1),
        (b"b", -1, at_ms),
        (b"c", 1500, -1),
        (b"d", 7_200_000, -1),
        (b"e", -1, 0),
    ]
    first = peer.bodies[0]
    assert first.keys is not None
    assert first.keys.to_list() == [b"k"]
    assert first.properties is not None
    assert msgpack.unpackb(first.properties.to_list()[0]) == {"n": 1}
    assert first.priorities is not None
    assert first.priorities.tolist() == [7]
    assert peer.bodies[2].keys is None


@on_both
async def test_invalid_arguments_are_refused_before_anything_is_sent() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        naive = datetime(2026, 1, 1)
        aware = naive.replace(tzinfo=UTC)
        with pytest.raises(NaiveDatetime):
            await producer.send(b"x", at=naive)
        with pytest.raises(NaiveDatetime):
            await producer.send_many([b"x"], at=[naive])
        bad: list[dict[str, Any]] = [
            {"delay": timedelta(seconds=-1)},
            {"delay": (-3, "minutes")},
            {"delay": 5},
            {"delay": (1, "minutes"), "at": aware},
            {"priority": 256},
            {"priority": True},
            {"key": 7},
            {"properties": {1: 2}},
            {"properties": {"a": object()}},
            {"sequence": -1},
        ]
        for arguments in bad:
            with pytest.raises(InvalidRequest):
                await producer.send(b"x", **arguments)
        with pytest.raises(InvalidRequest):
            await producer.send("text")
        for arguments in (
            {"delay": [(1, "s")]},
            {"at": np.array([-2, 5])},
            {"at": np.array([1.5, 2])},
            {"keys": ["only one"]},
            {"keys": ["k", 0]},
            {"priorities": [1, 300]},
        ):
            with pytest.raises(InvalidRequest):
                await producer.send_many([b"x", b"y"], **arguments)
        for topic in ("a/b", "no such/n/t", ""):
            with pytest.raises(InvalidRequest):
                await broker.producer(topic)
        for bound in ("batch_messages", "batch_bytes", "in_flight_messages", "in_flight_bytes"):
            with pytest.raises(InvalidRequest, match="at least 1"):
                await broker.producer("t", **{f"max_{bound}": 0})
        assert peer.heard_of(wire.Publish) == []


@on_both
async def test_send_many_is_one_batch_with_a_time_for_each_message() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        receipts = await producer.send_many(
            [b"a", b"b", b"c"],
            delay=[timedelta(seconds=1), None, (2, "s")],
            keys=["k", None, "m"],
            priorities=3,
        )
        assert receipts.offsets.tolist() == [0, 1, 2]
        assert [r.id.offset for r in receipts] == [0, 1, 2]
        at = np.array([1000, 2000], np.int64)
        await producer.send_batch(MessageBatch(Blobs.of([b"d", b"e"])), Times(at_ms=at))
        assert len(await producer.send_many([])) == 0
        assert peer.log == [
            (b"a", 1000, -1),
            (b"b", -1, -1),
            (b"c", 2000, -1),
            (b"d", -1, 1000),
            (b"e", -1, 2000),
        ]
        assert len(peer.heard_of(wire.Publish)) == 2


@on_both
async def test_batch_over_the_brokers_limits_is_split_and_has_one_result() -> None:
    async with Peer.running() as peer:
        peer.limits = {"max_batch_messages": 100, "max_batch_bytes": 5000}
        async with connect(peer) as broker:
            producer = await broker.producer("t")
            values = [b"x" * (n % 90) for n in range(1050)]
            receipts = await producer.send_many(values, at=np.arange(1050))
            assert receipts.offsets.tolist() == list(range(1050))
            assert [row[0] for row in peer.log] == values
            assert [row[2] for row in peer.log] == list(range(1050))
            for publish in peer.heard_of(wire.Publish):
                assert len(publish.body) <= 5000
                assert len(publish.decode()[0]) <= 100
            with pytest.raises(LimitExceeded):
                await producer.send(bytes(5000))
            with pytest.raises(LimitExceeded):
                await producer.send_many([b"", bytes(5000)])
            assert producer.next_sequence == 1050


@on_both
async def test_lost_receipt_creates_no_duplicate() -> None:
    """B3."""
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        await producer.send(b"first")
        peer.cut_before_receipt = 1
        receipt = await producer.send(b"second")
        assert receipt.duplicate
        assert receipt.id is None
        third = await producer.send(b"third")
        assert third.id is not None
        assert third.id.offset == 2
        assert [row[0] for row in peer.log] == [b"first", b"second", b"third"]


@on_both
async def test_messages_that_were_not_stored_are_sent_again_in_order() -> None:
    """B3."""
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t", linger=(0, "ms"))
        await producer.send(b"0")
        peer.silent = True
        pending = []
        for number in range(1, 6):
            pending.append(await producer.submit(b"%d" % number))
            await anyio.sleep(0.01)
        assert len(peer.heard_of(wire.Publish)) == 6
        peer.silent = False
        await peer.cut()
        offsets = [(await p).id.offset for p in pending]
        assert offsets == [1, 2, 3, 4, 5]
        assert [row[0] for row in peer.log] == [b"%d" % n for n in range(6)]


@on_both
async def test_resent_batch_is_trimmed_if_a_part_was_stored() -> None:
    """B3."""
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t", name="p")
        peer.silent = True
        found = []

        async def send() -> None:
            found.append(await producer.send_many([b"a", b"b", b"c"], delay=np.arange(3)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.sleep(1)
            peer.silent = False
            peer.log.append((b"a", 0, -1))
            peer.producers["p"].last_sequence = 0
            await peer.cut()
        (receipts,) = found
        assert receipts.offsets.tolist() == [-1, 1, 2]
        assert receipts.duplicates.tolist() == [True, False, False]
        assert peer.log == [(b"a", 0, -1), (b"b", 1, -1), (b"c", 2, -1)]


@on_both
async def test_retryable_refusal_is_retried_and_order_is_kept() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t", linger=(0, "ms"))
        peer.refusals.extend([StorageUnavailable("away"), None, None, StorageUnavailable("away")])
        pending = []
        for number in range(8):
            pending.append(await producer.submit(b"%d" % number))
            await anyio.sleep(0.001)
        offsets = [(await p).id.offset for p in pending]
        assert offsets == list(range(8))
        assert [row[0] for row in peer.log] == [b"%d" % n for n in range(8)]


@on_both
async def test_permanent_refusal_fails_only_its_batch() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t", linger=(0, "ms"))
        peer.refusals.append(DelayTooLong("in a thousand years"))
        refused = await producer.submit(b"refused")
        await anyio.sleep(0.001)
        after = [await producer.submit(b"%d" % number) for number in range(3)]
        with pytest.raises(DelayTooLong, match="thousand"):
            await refused
        for pending in after:
            await pending
        assert [row[0] for row in peer.log] == [b"0", b"1", b"2"]


@on_both
async def test_send_fails_at_its_timeout_and_reports_what_is_known() -> None:
    async with Peer.running() as peer, connect(peer, heartbeat_s=None) as broker:
        producer = await broker.producer("t", send_timeout=(5, "s"))
        peer.silent = True
        began_s = anyio.current_time()
        with pytest.raises(Disconnected, match="not known"):
            await producer.send(b"x")
        assert 5 <= anyio.current_time() - began_s < 6
        peer.silent = False
        peer.refusals.extend([StorageUnavailable("away")] * 100)
        with pytest.raises(StorageUnavailable, match="gave up after 5 s"):
            await producer.send(b"y")
        peer.refusals.clear()
        assert await producer.send(b"z")


@on_both
async def test_newer_producer_of_a_name_fences_the_older() -> None:
    """B3."""
    async with Peer.running() as peer, connect(peer) as one, connect(peer) as two:
        older = await one.producer("t", name="p")
        await older.send(b"a")
        newer = await two.producer("t", name="p")
        assert newer.next_sequence == 1
        with pytest.raises(ProducerFenced):
            await older.send(b"b")
        with pytest.raises(ProducerFenced):
            await older.send(b"c")
        await newer.send(b"d")
        assert [row[0] for row in peer.log] == [b"a", b"d"]


@on_both
async def test_reconnecting_older_producer_does_not_fence_the_newer() -> None:
    """B3."""
    async with Peer.running() as peer, connect(peer) as one:
        older = await one.producer("t", name="p")
        async with connect(peer) as two:
            newer = await two.producer("t", name="p")
            await peer.cut()
            await newer.send(b"n")
            with pytest.raises(ProducerFenced):
                await older.send(b"o")
            assert await newer.send(b"n")


@on_both
async def test_restarted_producer_continues_its_sequence() -> None:
    """B3."""
    async with Peer.running() as peer:
        async with connect(peer) as broker:
            producer = await broker.producer("t", name="p")
            await producer.send_many([b"a", b"b"])
        async with connect(peer) as broker:
            producer = await broker.producer("t", name="p")
            assert producer.next_sequence == 2
            replayed = await producer.send(b"b", sequence=1)
            assert replayed.duplicate
            await producer.send(b"c", sequence=2)
            await producer.send(b"later", sequence=10)
            with pytest.raises(InvalidRequest, match="used"):
                await producer.send_many([b"x", b"y"], sequence=10)
        assert [row[0] for row in peer.log] == [b"a", b"b", b"c", b"later"]
        assert peer.producers["p"].last_sequence == 10


@on_both
async def test_opening_is_retried_until_a_timeout_and_refusals_are_raised() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        peer.open_refusals.extend([Busy("later"), Busy("later"), None, NotFound("no topic")])
        await broker.producer("t")
        with pytest.raises(NotFound, match="no topic"):
            await broker.producer("u")
        peer.open_refusals.extend([Busy("still not")] * 1000)
        with pytest.raises(Busy, match="gave up after 30 s: still not"):
            await broker.producer("v")


@on_both
async def test_open_error_says_whether_broker_is_unreachable_or_silent() -> None:
    """Q8: while its database accepts no writes, a broker is connected but does not answer."""
    async with Peer.running() as peer, connect(peer, heartbeat_s=None) as broker:
        peer.silent = True
        with pytest.raises(Disconnected, match=r"after 30 s: .* is connected and does not answer"):
            await broker.producer("t")
        peer.refuses_connections = True
        await peer.cut()
        with pytest.raises(
            Disconnected, match="after 30 s: cannot connect to the broker: the peer"
        ):
            await broker.producer("t")


@on_both
async def test_producer_closed_by_the_broker_fails_or_is_reopened() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        session = peer.sessions[-1]
        await session.say(wire.ProducerClosed(producer._id, "busy", "moving", True))
        await anyio.sleep(0.01)
        await producer.send(b"a")
        assert len(peer.heard_of(wire.OpenProducer)) == 2
        await session.say(wire.ProducerClosed(producer._id, "not_found", "deleted", False))
        await anyio.sleep(0.1)
        with pytest.raises(NotFound, match="deleted"):
            await producer.send(b"b")


@on_both
async def test_closed_producer_sends_no_more() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with await broker.producer("t") as producer:
            await producer.submit(b"a")
        assert len(peer.log) == 1
        assert len(peer.heard_of(wire.CloseProducer)) == 1
        with pytest.raises(InvalidRequest, match="closed"):
            await producer.send(b"b")


@on_both
async def test_refused_properties_name_the_remedy() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        with pytest.raises(
            InvalidRequest, match=r"'n' of type int .* from -2\*\*63 to 2\*\*64 - 1"
        ):
            await producer.send(b"", properties={"n": 2**70})
        with pytest.raises(InvalidRequest, match="must be a list with one item per message, not"):
            await producer.send_many([b"x"], properties={"a": 1})  # type: ignore[arg-type]
        assert not peer.log
