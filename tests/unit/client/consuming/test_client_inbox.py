"""The consumer with a test peer: delivery, permits, acknowledgements, reconnection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from types import coroutine
from typing import Any, TypeVar

import anyio
import msgpack
import numpy as np
import pytest

import escapement
from escapement.client.consuming.ack_queue import LINGER_S
from escapement.client.consuming.inbox import OWN_CLAIM_S
from escapement.errors import (
    Busy,
    Conflict,
    Disconnected,
    InvalidRequest,
    NotFound,
    StorageUnavailable,
)
from escapement.message import Blobs, MessageBatch, MessageId
from escapement.protocol import commands as wire
from escapement.protocol.limits import LIMIT_DETAIL, LIMIT_REJECTS, MAX_DETAIL_CHARS
from support.client_peer import Peer, connect, on_both

TOPIC = "public/default/t"
T = TypeVar("T")


async def take(inbox: escapement.Inbox, count: int) -> list[escapement.Message]:
    return [await anext(inbox) for _ in range(count)]


@on_both
async def test_messages_arrive_with_all_their_fields() -> None:
    batch = MessageBatch(
        Blobs.of([b'{"a":1}', b"null"]),
        Blobs.of([b"k", b""]),
        Blobs.of([msgpack.packb({"n": [1]}), b""]),
        np.array([3, 50], np.uint8),
    )
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer(
            "t", "s", serializer=escapement.JSON, ack_wait="90s", position="earliest", name="c"
        ) as inbox:
            await peer.deliver([], [7, 5], attempts=[1, 3], redelivered=[0, 1], batch=batch)
            one, two = await take(inbox, 2)
            assert (one.value, one.key, one.properties, one.priority) == (
                {"a": 1},
                "k",
                {"n": [1]},
                3,
            )
            assert (one.id, one.attempt, one.redelivered) == (MessageId(TOPIC, 7), 1, False)
            assert one.deliver_at == datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
            assert one.due_ms == 7000
            assert (two.value, two.key, two.properties, two.priority) == (None, None, {}, 50)
            assert (two.offset, two.attempt, two.redelivered) == (5, 3, True)
            assert two.payload == b"null"
        (subscribe,) = peer.heard_of(wire.Subscribe)
        assert subscribe.ack_wait_ms == 90_000
        assert (subscribe.position, subscribe.consumer_name) == ("earliest", "c")


@on_both
async def test_message_block_acks_on_success_and_nacks_on_failure() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"good", b"bad", b"cut"], [0, 1, 2])
            async with await anext(inbox) as message:
                assert message.payload == b"good"
            with pytest.raises(KeyError):
                async with await anext(inbox):
                    raise KeyError("handler")
            with anyio.CancelScope() as scope:
                async with await anext(inbox):
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
            await inbox.flush_acks()
            assert peer.acked == [0]
        nacked = [o for nack in peer.heard_of(wire.Nack) for o in nack.offsets.tolist()]
        assert nacked == [1, 2]
        assert peer.heard_of(wire.Nack)[0].delay_ms == -1
        assert type(peer.heard[-1]) is wire.CloseConsumer


@on_both
async def test_broker_that_does_not_know_rejects_gets_nacks() -> None:
    """V4: an unknown command would end the connection."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"bad"], [0])
            await (await anext(inbox)).reject()
        assert [(n.offsets.tolist(), n.delay_ms) for n in peer.heard_of(wire.Nack)] == [([0], -1)]
        assert not peer.heard_of(wire.Reject)


@on_both
async def test_detail_of_a_reject_is_sent_only_to_a_broker_that_knows_it() -> None:
    """V4: a broker of an earlier version would end the connection."""
    for limits in ({LIMIT_REJECTS: 1}, {LIMIT_REJECTS: 1, LIMIT_DETAIL: MAX_DETAIL_CHARS}):
        async with Peer.running() as peer:
            peer.limits = limits
            async with connect(peer) as broker, broker.consumer("t", "s") as inbox:
                await peer.deliver([b""] * 3, [0, 1, 2])
                for message in await take(inbox, 2):
                    await message.reject("HTTP 410")
                await (await anext(inbox)).reject()
        sent = [(one.offsets.tolist(), one.detail) for one in peer.heard_of(wire.Reject)]
        knows = LIMIT_DETAIL in limits
        assert sent == [([0, 1], "HTTP 410" if knows else ""), ([2], "")]


@on_both
async def test_nacks_are_batched_while_acks_are_under_way() -> None:
    """V4: many small nacks cost the broker more than a large one, and the wait is short."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", permits=20) as inbox:
            await peer.deliver([b""] * 6, [0, 1, 2, 3, 4, 5])
            peer.silent = True  # the first ack stays under way
            await inbox.ack(0)
            await anyio.sleep(0.001)
            for offset in (1, 2):
                await inbox.nack(offset, (1, "s"))
                await inbox.ack(offset + 2)
                await anyio.sleep(0.001)
            assert not peer.heard_of(wire.Nack)
            await anyio.sleep(0.01)
            assert [nack.offsets.tolist() for nack in peer.heard_of(wire.Nack)] == [[1, 2]]
            await inbox.nack(5, (1, "s"))
            await anyio.sleep(0.001)
            assert peer.heard_of(wire.Nack)[-1].offsets.tolist() == [5]


@on_both
async def test_untried_messages_are_released_and_ack_waits_are_extended() -> None:
    """V4: messages still in the delivery buffer when the consumer closes are released too."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", permits=20) as inbox:
            await peer.deliver([b""] * 9, list(range(9)))
            first, second, third, fourth = await take(inbox, 4)
            await first.release()
            await inbox.release([second.id], (1, "m"))
            assert await third.extend((5, "m"))
            peer.lapsed = {3}
            assert not await fourth.extend("1s")
            assert await inbox.extend([2, 3], "1s") == 1
            await peer.deliver([b""] * 3, [20, 21, 22])
            await inbox.ack(2, durable=True)  # when it is answered, the delivery has arrived
        released = {r.delay_ms: r.offsets.tolist() for r in peer.heard_of(wire.Release)}
        assert released == {0: [0], 60_000: [1]}
        extended = [(e.offsets.tolist(), e.wait_ms) for e in peer.heard_of(wire.Extend)]
        assert extended == [([2], 300_000), ([3], 1000), ([2, 3], 1000)]
        untried = peer.heard_of(wire.CloseConsumer)[-1].untried
        assert sorted(untried.tolist()) == [4, 5, 6, 7, 8, 20, 21, 22]
        assert await inbox.extend([2], "1s") == 0


@on_both
async def test_extend_without_an_answer_is_an_error_unless_the_connection_is_lost() -> None:
    """V4: after a lost connection the message is in flight at this consumer no more."""

    async def cut(peer: Peer) -> None:
        await anyio.sleep(1)
        await peer.cut()

    async with Peer.running() as peer:
        async with connect(peer, request_timeout_s=5, heartbeat_s=None) as broker:
            async with broker.consumer("t", "s") as inbox:
                await peer.deliver([b""], [0])
                message = await anext(inbox)
                peer.silent = True
                with pytest.raises(Disconnected, match="within 5 s"):
                    await message.extend("1m")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cut, peer)
                    assert not await message.extend("1m")


@on_both
async def test_acks_are_batched_and_all_are_answered_at_the_end() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", permits=1000) as inbox:
            await peer.deliver([b""] * 500, list(range(500)))
            for message in await take(inbox, 500):
                await message.ack()
        assert sorted(peer.acked) == list(range(500))
        assert len(peer.heard_of(wire.Ack)) < 20


@on_both
async def test_acks_name_a_message_of_this_or_of_another_consumer() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"", b""], [0, 1])
            first, second = await take(inbox, 2)
            await inbox.ack(first)
            await inbox.flush_acks()
            assert peer.acked == [0]
        async with broker.consumer("t", "s") as inbox, broker.consumer("other", "s") as other:
            await inbox.ack(second)
            await inbox.flush_acks()
            assert peer.acked == [0, 1]
            with pytest.raises(InvalidRequest):
                await other.ack(second)


@on_both
async def test_answer_to_an_ack_lets_the_next_one_go_at_once() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await inbox.ack(0)
            while not inbox._acks._pending_acks:
                await anyio.lowlevel.checkpoint()
            await inbox.ack(1)
            began_s = anyio.current_time()
            await inbox.flush_acks()
            assert anyio.current_time() - began_s < LINGER_S
            assert peer.acked == [0, 1]


@on_both
async def test_permits_and_acks_of_one_turn_are_written_together() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", permits=1) as inbox:
            await peer.deliver([b""], [0])
            message = await anext(inbox)
            await message.ack()
            await inbox.flush_acks()
            flow, ack = peer.heard[-2:]
            assert isinstance(flow, wire.Flow)
            assert isinstance(ack, wire.Ack)
            assert peer.reads[-1] == 2


@on_both
async def test_durable_acks_return_how_many_messages_they_acknowledged() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            assert await inbox.ack([1, 2, 3], durable=True) == 3
            assert await inbox.ack(np.array([3, 4]), durable=True) == 1
            assert await inbox.ack(MessageId(TOPIC, 9), durable=True) == 1
            assert await inbox.ack_range(0, 9, durable=True) == 5
            assert await inbox.ack(7) is None
            await inbox.ack_range(10, 12)
            await inbox.flush_acks()
            assert peer.acked[-3:] == [10, 11, 12]
            await peer.deliver([b""] * 4, [20, 21, 22, 23])
            batch = await anext(inbox.batches())
            assert await batch.ack(durable=True) == 4
            ack = peer.heard_of(wire.Ack)[-1]
            assert ack.offsets is None
            assert (ack.firsts.tolist(), ack.lasts.tolist()) == ([20], [24])
            await peer.deliver([b""], [30])
            message = await anext(inbox)
            await message.ack(durable=True)
            assert peer.acked[-1] == 30
            for bad in ([-1], np.array([1.5]), np.zeros((2, 2), int)):
                with pytest.raises(InvalidRequest):
                    await inbox.ack(bad)
            with pytest.raises(InvalidRequest):
                await inbox.ack_range(3, 2)


@on_both
async def test_batches_are_columns_and_mix_with_single_messages() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", serializer=str) as inbox:
            await peer.deliver([b"a", b"b", b"c"], [4, 9, 6], attempts=[1, 2, 3])
            assert (await anext(inbox)).value == "a"
            batch = await anext(inbox.batches())
            assert batch.offsets.tolist() == [9, 6]
            assert batch.due_ms.tolist() == [9000, 6000]
            assert batch.attempts.tolist() == [2, 3]
            assert batch.redelivered.tolist() == [False, False]
            assert batch.payloads.to_list() == [b"b", b"c"]
            assert batch.values() == ["b", "c"]
            assert [m.value for m in batch] == ["b", "c"]
            assert batch[-1].offset == 6
            with pytest.raises(IndexError):
                batch[2]
            await batch.nack(delay=timedelta(seconds=2))
            await inbox.nack(4, (1, "s"))
            await inbox.nack(MessageId(TOPIC, 5), (1, "s"))
            await anyio.sleep(0.01)
            nacks = {n.delay_ms: n.offsets.tolist() for n in peer.heard_of(wire.Nack)}
            assert nacks == {2000: [9, 6], 1000: [4, 5]}


@on_both
async def test_empty_delivery_is_ignored() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([], [])
            assert await inbox.receive(timeout_s=1) is None
            await peer.deliver([b"a"], [0])
            assert [message.offset for message in await take(inbox, 1)] == [0]
            assert await inbox.next_batch(timeout_s=1) is None


@on_both
async def test_permits_are_renewed_when_half_of_them_are_used() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", permits=10) as inbox:
            await peer.deliver([b""] * 10, list(range(10)))
            await anyio.sleep(0.01)
            assert [flow.permits for flow in peer.heard_of(wire.Flow)] == [10]
            await take(inbox, 4)
            await anyio.sleep(0.01)
            assert len(peer.heard_of(wire.Flow)) == 1
            await take(inbox, 1)
            await anyio.sleep(0.01)
            assert [flow.permits for flow in peer.heard_of(wire.Flow)] == [10, 5]
            await take(inbox, 5)
            await anyio.sleep(0.01)
            assert sum(peer.sessions[-1].credit.values()) == 10


@on_both
async def test_no_message_is_lost_to_a_timeout_or_a_cancellation() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b""] * 200, list(range(200)))
            await anyio.sleep(0.01)
            found = []
            for _ in range(190):
                message = await inbox.receive(timeout_s=0)
                assert message is not None
                found.append(message.offset)
            for _ in range(5):
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    async for message in inbox:
                        found.append(message.offset)
                        await anyio.lowlevel.checkpoint()
            with anyio.CancelScope() as scope:
                scope.cancel()
                found += (await anext(inbox.batches())).offsets.tolist()
            found += (await anext(inbox.batches())).offsets.tolist()
            assert found == list(range(200))


@on_both
async def test_receiving_buffered_messages_lets_other_tasks_run() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b""] * 400, list(range(400)))
            await anyio.sleep(0.01)
            for receive in (inbox.receive, inbox.__anext__):
                ran: list[bool] = []

                async def other(ran: list[bool] = ran) -> None:
                    ran.append(True)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(other)
                    for _ in range(200):
                        await receive()
                    assert ran


@on_both
async def test_client_reconnects_if_the_broker_sends_without_permits() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", permits=2) as inbox:
            await peer.deliver([b""] * 3, [0, 1, 2])
            await anyio.sleep(5)
            assert len(peer.heard_of(wire.Hello)) == 2
            await peer.deliver([b"x"], [0])
            assert (await anext(inbox)).payload == b"x"


@on_both
async def test_consumer_resubscribes_after_reconnecting_and_old_acks_count() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"taken", b"waiting"], [0, 1])
            message = await anext(inbox)
            await peer.cut()
            await anyio.sleep(1)
            assert len(peer.heard_of(wire.Subscribe)) == 2
            await message.ack(durable=True)
            assert peer.acked == [0]
            await peer.deliver([b"waiting"], [1], redelivered=[1])
            again = await anext(inbox)
            assert (again.payload, again.redelivered) == (b"waiting", True)


@coroutine
def interrupted(call: Coroutine[Any, Any, T], act: Callable[[], None]) -> Generator[Any, Any, T]:
    """Run a call, and ``act`` while it waits for the first time."""
    sent: Any = None
    while True:
        try:
            trap = call.send(sent)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        act()
        act = _nothing
        sent = yield trap


def _nothing() -> None:
    pass


@on_both
async def test_iteration_goes_on_if_the_connection_is_lost_while_messages_are_taken() -> None:
    """P6: messages that had arrived are dropped, and the broker sends them again."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"first"], [0])
            await anyio.sleep(0.1)

            def lose() -> None:
                inbox._unlinked()
                inbox._linked()

            async def deliver_again() -> None:
                await anyio.sleep(1)
                await peer.deliver([b"again"], [0], redelivered=[1])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(deliver_again)
                batch = await interrupted(inbox.next_batch(), lose)
            assert batch is not None
            assert list(batch.values()) == [b"again"]


@on_both
async def test_acks_whose_answer_was_lost_are_sent_again() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            peer.silent = True
            await inbox.ack([1, 2])
            await anyio.sleep(0.1)
            await inbox.ack([3])
            assert peer.acked == []
            peer.silent = False
            await peer.cut()
            await inbox.flush_acks()
            assert sorted(peer.acked) == [1, 2, 3]


@on_both
async def test_retryable_ack_refusals_are_retried_and_others_raised() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            peer.ack_refusals.extend([StorageUnavailable("away"), StorageUnavailable("away")])
            assert await inbox.ack([1], durable=True) == 1
            peer.ack_refusals.append(Conflict("not yours"))
            with pytest.raises(Conflict, match="not yours"):
                await inbox.ack([2], durable=True)
            peer.ack_refusals.append(Conflict("nor this"))
            await inbox.ack([3])
            with pytest.raises(Conflict, match="nor this"):
                await inbox.flush_acks()
            assert peer.acked == [1]


@on_both
async def test_iteration_ends_with_the_consumer_or_raises_the_brokers_error() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            session = peer.sessions[-1]
            session.credit.clear()
            await session.say(wire.ConsumerClosed(inbox._id, "not_found", "deleted", False))
            with pytest.raises(NotFound, match="deleted"):
                await anext(inbox)
            with pytest.raises(NotFound, match="deleted"):
                await inbox.ack([1])
        async with broker.consumer("t", "s") as inbox:
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    assert [m async for m in inbox] == []

                tasks.start_soon(read)
                await anyio.sleep(1)
                await inbox.aclose()
        async with broker.consumer("t", "s") as inbox:
            assert await inbox.receive(timeout_s=3) is None
            peer.sessions[-1].credit.clear()
            await peer.sessions[-1].say(wire.ConsumerClosed(inbox._id, "busy", "moving", True))
            await peer.deliver([b"still"], [0])
            message = await inbox.receive()
            assert message is not None
            assert message.payload == b"still"


@on_both
async def test_closing_the_connection_ends_waiting_consumers() -> None:
    async with Peer.running() as peer:
        async with connect(peer) as broker:
            context = broker.consumer("t", "s")
            inbox = await context.__aenter__()
        with pytest.raises(Disconnected, match="by this side"):
            await anext(inbox)
        await context.__aexit__(None, None, None)


@on_both
async def test_failover_consumer_knows_whether_it_is_active() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", kind="failover") as inbox:
            assert not inbox.active
            await peer.sessions[-1].say(wire.ConsumerActive(inbox._id, True))
            await anyio.sleep(0.1)
            assert inbox.active
            await peer.cut()
            await anyio.sleep(1)
            assert not inbox.active


@on_both
async def test_refused_subscription_is_raised_and_cancelled_one_is_closed() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        peer.open_refusals.extend([Busy("later"), Conflict("exclusive")])
        with pytest.raises(Conflict, match="exclusive"):
            async with broker.consumer("t", "s", kind="exclusive"):
                pass
        for arguments in ({"kind": "queue"}, {"position": "middle"}, {"permits": -1}):
            with pytest.raises(InvalidRequest):
                async with broker.consumer("t", "s", **arguments):
                    pass
        peer.silent = True
        with anyio.move_on_after(1):
            async with broker.consumer("t", "late"):
                pass
        peer.silent = False
        late = peer.heard_of(wire.Subscribe)[-1]
        await peer.sessions[-1].say(
            wire.ConsumerReady(late.request_id, late.consumer_id, TOPIC, "shared", bytes(16), 1)
        )
        await anyio.sleep(0.1)
        assert peer.heard_of(wire.CloseConsumer)[-1].consumer_id == late.consumer_id


@on_both
async def test_consumer_waits_until_the_broker_notices_its_lost_connection() -> None:
    """An exclusive consumer is not refused for good because of itself."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", kind="exclusive") as inbox:
            peer.open_refusals.extend([Conflict("has a consumer already")] * 20)
            await peer.cut()
            await anyio.sleep(60)
            assert not peer.open_refusals
            await peer.deliver([b"again"], [0])
            assert (await anext(inbox)).payload == b"again"


@on_both
async def test_consumer_that_may_be_open_on_a_lost_connection_waits() -> None:
    """The broker may have opened it, and only the answer was lost."""
    async with Peer.running() as peer, connect(peer) as broker, anyio.create_task_group() as tasks:

        async def cut_while_opening() -> None:
            await anyio.sleep(1)
            peer.silent = False
            peer.open_refusals.extend([Conflict("has a consumer already")] * 3)
            await peer.cut()

        claims: list[dict[str, Any]] = [{"kind": "exclusive"}, {"key_range": (0, 9)}]
        for claim in claims:
            peer.silent = True
            tasks.start_soon(cut_while_opening)
            async with broker.consumer("t", "s", **claim):
                assert not peer.open_refusals


@on_both
async def test_consumer_without_a_claim_is_refused_at_once_after_a_lost_connection() -> None:
    """The subscription is of another kind now, which no wait changes."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            peer.open_refusals.extend([Conflict("the subscription is exclusive")] * 10_000)
            began_s = anyio.current_time()
            await peer.cut()
            with pytest.raises(Conflict, match="is exclusive"):
                await anext(inbox)
            assert anyio.current_time() - began_s < 5


@on_both
async def test_consumer_that_the_broker_has_closed_is_refused_at_once() -> None:
    """No lost connection has the claim, so another consumer has it."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", kind="exclusive") as inbox:
            peer.open_refusals.extend([Conflict("has a consumer already")] * 10_000)
            began_s = anyio.current_time()
            moved = wire.error_fields(Busy("moved"))
            await peer.sessions[-1].say(wire.ConsumerClosed(inbox._id, *moved))
            with pytest.raises(Conflict, match="already"):
                await anext(inbox)
            assert anyio.current_time() - began_s < 5


@on_both
async def test_consumer_whose_claim_another_one_has_taken_fails_after_some_time() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s", kind="exclusive") as inbox:
            peer.open_refusals.extend([Conflict("has a consumer already")] * 10_000)
            began_s = anyio.current_time()
            await peer.cut()
            with pytest.raises(Conflict, match="already"):
                await anext(inbox)
            waited_s = anyio.current_time() - began_s
            assert OWN_CLAIM_S <= waited_s < OWN_CLAIM_S + 5


@on_both
async def test_pull_that_ends_late_returns_no_late_message_of_any_batch() -> None:
    """B15: the broker waits longer for messages that it delivers again."""
    async with Peer.running() as peer:
        async with (
            connect(peer, anyio.current_time, heartbeat_s=None) as broker,
            broker.consumer("t", "s", permits=0) as inbox,
            anyio.create_task_group() as tasks,
        ):

            async def deliver_and_stop_late() -> None:
                await anyio.sleep(1)
                peer.silent = True
                await peer.deliver([b"again"], [0], attempts=[2], wait_ms=20_000)
                waits_ms = [10_000, 20_000]
                await peer.deliver([b"late", b"c"], [1, 2], wait_ms=10_000, waits_ms=waits_ms)
                await peer.deliver([b"late"], [3], wait_ms=10_000)
                await anyio.sleep(15)
                peer.silent = False
                (halt,) = peer.heard_of(wire.Halt)
                await peer.sessions[-1].say(wire.Done(halt.request_id))

            tasks.start_soon(deliver_and_stop_late)
            pulled = await inbox.pull(5)
            assert [batch.offsets.tolist() for batch in pulled] == [[0], [2]]


@on_both
async def test_invalid_message_ids_are_refused_and_nothing_is_acknowledged() -> None:
    wrong: list[Any] = [
        [MessageId("other/x/y", 0)],
        MessageId("other/x/y", 0),
        "12",
        b"12",
        ["4"],
        ["other@0"],
        [3.7],
        3.7,
        [True],
        None,
        [2**70],
        2**63,
        -1,
        [0, -1],
        np.array([0.5]),
        np.array([[1]]),
    ]
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            for what in wrong:
                with pytest.raises(InvalidRequest):
                    await inbox.ack(what)
                with pytest.raises(InvalidRequest):
                    await inbox.nack(what)
                with pytest.raises(InvalidRequest):
                    await inbox.release(what)
                with pytest.raises(InvalidRequest):
                    await inbox.extend(what, (1, "s"))
                with pytest.raises(InvalidRequest):
                    await broker.cancel(what, topic="t")
        assert not peer.heard_of(wire.Ack)
        assert not peer.heard_of(wire.Nack)


@on_both
async def test_messages_batches_ids_and_offsets_can_be_acknowledged() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"a", b"b"], [0, 10])
            messages = await take(inbox, 2)
            await peer.deliver([b"c", b"d"], [20, 30])
            batch = await inbox.next_batch()
            await inbox.ack(messages)
            await inbox.ack(batch)
            await inbox.ack([np.int64(40), MessageId("persistent://public/default/t", 50), 60])
            await inbox.ack(np.array([70], np.uint16))
            await inbox.ack([])
            await inbox.flush_acks()
        acked = np.concatenate([ack.offsets for ack in peer.heard_of(wire.Ack)])
        assert sorted(acked.tolist()) == list(range(0, 80, 10))


@on_both
async def test_wait_for_durable_acks_ends_at_the_request_timeout() -> None:
    """The broker hangs. Unanswered acks are sent again later, and can be waited for again."""
    async with Peer.running() as peer, connect(peer, request_timeout_s=0.2) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b""] * 3, [0, 1, 2])
            batch = await inbox.next_batch()
            assert batch is not None
            peer.deaf_to_acks = True
            for wait in (
                lambda: inbox.ack([7], durable=True),
                lambda: inbox.ack_range(8, 9, durable=True),
                lambda: batch[0].ack(durable=True),
                lambda: batch.ack(durable=True),
                inbox.flush_acks,
                lambda: inbox.seek("earliest"),
            ):
                with pytest.raises(Disconnected, match="no answer within"):
                    await wait()
            peer.deaf_to_acks = False
            await peer.cut()
            await inbox.flush_acks()
            assert sorted(set(peer.acked)) == [0, 1, 2, 7, 8, 9]


class Hands:
    """A clock that a test moves by hand, while the event loop stands still."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def granted(peer: Peer) -> int:
    return sum(flow.permits for flow in peer.heard_of(wire.Flow))


@on_both
async def test_message_that_waited_for_longer_than_its_ack_wait_is_discarded() -> None:
    """V6: another consumer may have it. The other messages come, each with its permit."""
    hands = Hands()
    async with Peer.running() as peer, connect(peer, hands) as broker:
        async with broker.consumer("t", "s", permits=4) as inbox:
            await peer.deliver([b"a", b"b", b"late"], [0, 1, 2], wait_ms=10_000)
            assert (await anext(inbox)).payload == b"a"
            hands.now_s += 10
            assert (await anext(inbox)).payload == b"b"
            await peer.deliver([b"in time"], [3], wait_ms=10_000)
            await anyio.sleep(0.1)
            hands.now_s += 0.001
            assert (await anext(inbox)).payload == b"in time"
            await anyio.sleep(0.1)
            assert granted(peer) == 8
            await peer.deliver([b"again"], [2], wait_ms=10_000, redelivered=[1])
            assert (await anext(inbox)).redelivered


@on_both
async def test_each_message_of_a_delivery_is_discarded_after_its_own_wait() -> None:
    """V6: the broker may wait longer for messages that it delivers again."""
    hands = Hands()
    async with Peer.running() as peer, connect(peer, hands) as broker:
        async with broker.consumer("t", "s", permits=4) as inbox:
            waits_ms = [10_000, 25_000, 5_000, 20_000]
            payloads = [b"a", b"b", b"c", b"d"]
            await peer.deliver(
                payloads, [0, 1, 2, 3], attempts=[1, 4, 1, 3], wait_ms=5_000, waits_ms=waits_ms
            )
            await anyio.sleep(0.1)
            hands.now_s += 15
            batch = await inbox.next_batch()
            assert batch is not None
            assert [(one.payload, one.attempt, one.due_ms) for one in batch] == [
                (b"b", 4, 1000),
                (b"d", 3, 3000),
            ]
            await anyio.sleep(0.1)
            assert granted(peer) == 8


@on_both
async def test_consumer_whose_messages_are_all_late_waits_for_others() -> None:
    """V3: the permits of discarded messages return, so the broker can send others."""
    hands = Hands()
    async with Peer.running() as peer, connect(peer, hands) as broker:
        async with broker.consumer("t", "s", permits=2) as inbox:
            for receive in (inbox.receive, inbox.next_batch):
                await peer.deliver([b"x", b"y"], [0, 1], wait_ms=10_000)
                await anyio.sleep(0.1)
                hands.now_s += 11
                assert await receive(timeout_s=1) is None
                await peer.deliver([b"z"], [2], wait_ms=10_000)
                assert await receive() is not None


@on_both
async def test_messages_without_an_ack_wait_are_never_late() -> None:
    """V6: an ordered subscription may have no ack wait, and an earlier broker tells none."""
    hands = Hands()
    async with Peer.running() as peer, connect(peer, hands) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([b"x", b"y"], [0, 1])
            await anyio.sleep(0.1)
            hands.now_s += 1_000_000
            assert [message.payload for message in await take(inbox, 2)] == [b"x", b"y"]
