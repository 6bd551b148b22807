"""The facade of the sync client, over real sockets to a test peer in another thread."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial

import anyio
import msgpack
import pytest
from anyio.from_thread import start_blocking_portal

import escapement
from escapement.errors import Disconnected, InvalidRequest, LimitExceeded, NotFound
from escapement.field import Field
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as wire
from escapement.protocol.limits import (
    LIMIT_DETAIL,
    LIMIT_REJECTS,
    MAX_DETAIL_CHARS,
    MAX_FRAME_BYTES,
)
from escapement.sync import connect
from escapement.sync.loop import MAX_POSTED, MAX_POSTED_BYTES, Loop
from support.listening_peer import busy, listening, until


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_sync_client_produces_and_consumes(backend: str) -> None:
    with (
        listening() as (peer, portal, url),
        connect(url, backend=backend) as broker,
    ):
        assert broker.name == "peer"
        assert broker.connected
        assert broker.admin("echo", a=1) == {"a": 1}
        with broker.producer("t", serializer=str) as producer:
            receipt = producer.send("a", delay=(1, "s"), key="k")
            assert receipt.id == ("public/default/t", 0)
            assert producer.submit("b").result().id.offset == 1
            assert producer.send_many(["c", "d"]).offsets.tolist() == [2, 3]
            assert producer.send_batch(MessageBatch(Blobs.of([b"e"]))).offsets.tolist() == [4]
            producer.message("f").delay_at(2, "s").send()
            assert producer.next_sequence == 6
            with pytest.raises(InvalidRequest):
                producer.send("x", delay=5)
        assert [row[0] for row in peer.log] == [b"a", b"b", b"c", b"d", b"e", b"f"]

        with broker.consumer("t", "s", serializer=str) as inbox:
            portal.call(peer.deliver, [b"a", b"b", b"c", b"d"], [0, 1, 2, 3])
            with inbox.receive() as message:
                assert (message.value, message.offset, message.attempt) == ("a", 0, 1)
            with pytest.raises(KeyError), next(iter(inbox)):
                raise KeyError("handler")
            rest = inbox.next_batch()
            assert rest is not None
            assert rest.values() == ["c", "d"]
            assert inbox.next_batch(timeout_s=0.01) is None
            portal.call(peer.deliver, [b"c", b"d"], [2, 3])
            batch = next(inbox.batches())
            assert batch.values() == ["c", "d"]
            assert batch.ack(durable=True) == 2
            assert [m.offset for m in batch] == [2, 3]
            assert inbox.receive(timeout_s=0.01) is None
            assert inbox.ack([7, 8], durable=True) == 2
            assert inbox.ack_range(8, 9, durable=True) == 1
            inbox.nack(5, (1, "s"))
            batch[0].release()
            assert batch[1].extend("1m")
            assert batch.extend("1m") == inbox.extend([2, 3], "1m") == 2
            batch.release((1, "s"))
            inbox.flush_acks()
            assert sorted(peer.acked) == [0, 2, 3, 7, 8, 9]
        released = [(r.offsets.tolist(), r.delay_ms) for r in peer.heard_of(wire.Release)]
        assert released == [([2], 0), ([2, 3], 1000)]
        nacked = [o for nack in peer.heard_of(wire.Nack) for o in nack.offsets.tolist()]
        assert nacked == [1, 5]


def test_rejects_have_a_detail() -> None:
    """V1: of a message, a batch, and messages by offset."""
    with listening() as (peer, portal, url):
        peer.limits = {LIMIT_REJECTS: 1, LIMIT_DETAIL: MAX_DETAIL_CHARS}
        with connect(url) as broker, broker.consumer("t", "s") as inbox:
            portal.call(peer.deliver, [b"a", b"b"], [0, 1])
            batch = inbox.next_batch()
            assert batch is not None
            batch[0].reject("of a message")
            batch.reject("of a batch")
            inbox.reject([7], "by offset")
            inbox.reject(8)
            with pytest.raises(InvalidRequest, match="200 characters"):
                inbox.reject(9, "x" * 201)
        sent = {one.detail: one.offsets.tolist() for one in peer.heard_of(wire.Reject)}
    assert sent == {"of a message": [0], "of a batch": [0, 1], "by offset": [7], "": [8]}


def test_objects_show_the_names_of_the_async_client() -> None:
    def names(of: object) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    with listening() as (peer, portal, url), connect(url) as broker:
        assert names(broker) == names(broker._broker)
        with broker.producer("t") as producer, broker.consumer("t", "s") as inbox:
            portal.call(peer.deliver, [b"a"], [0])
            batch = inbox.next_batch()
            assert batch is not None
            assert names(producer) == names(producer._producer) - {"aclose"} | {"close"}
            assert names(inbox) == names(inbox._inbox) - {"aclose"} | {"close"}
            assert names(batch) == names(escapement.Batch)
            assert names(batch[0]) == names(escapement.Message)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_closed_inbox_has_sent_its_acks_and_ends_the_iteration_of_all_threads(backend: str) -> None:
    """Messages that no thread has received are released."""
    with listening() as (peer, portal, url), connect(url, backend=backend) as broker:
        with broker.consumer("t", "s") as inbox:
            portal.call(peer.deliver, [b"a", b"b", b"c"], [0, 1, 2])
            for message in inbox:
                message.ack()
                inbox.close()
            assert peer.acked == [0]
            assert [r.offsets.tolist() for r in peer.heard_of(wire.Release)] == [[1, 2]]
            assert type(peer.heard[-1]) is wire.CloseConsumer
            assert inbox.receive() is None
            assert inbox.next_batch() is None
            inbox.close()
            with pytest.raises(InvalidRequest, match="closed"):
                message.ack()
        with broker.consumer("t", "s") as inbox, ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(list, inbox), pool.submit(list, inbox.batches())]
            until(broker, lambda: inbox._receiving)
            inbox.close()
            assert [future.result(60) for future in waiting] == [[], []]


def test_threads_share_an_inbox_and_a_producer() -> None:
    with listening() as (peer, portal, url), connect(url) as broker:
        producer = broker.producer("t")
        with ThreadPoolExecutor(8) as pool:
            receipts = list(pool.map(producer.send, [b"%d" % n for n in range(200)]))
        assert sorted(r.id.offset for r in receipts if r.id) == list(range(200))
        with broker.consumer("t", "s", permits=100) as inbox:
            portal.call(peer.deliver, [b""] * 90, list(range(90)))

            taken: list[int] = []
            timeout_until_s = time.monotonic() + 60

            def work() -> None:
                while len(taken) < 90 and time.monotonic() < timeout_until_s:
                    if (message := inbox.receive(timeout_s=0.05)) is not None:
                        with message:
                            taken.append(message.offset)

            with ThreadPoolExecutor(4) as pool:
                for future in [pool.submit(work) for _ in range(4)]:
                    future.result()
        assert sorted(peer.acked) == list(range(90))


def test_messages_submitted_while_the_loop_is_busy_share_a_batch() -> None:
    with listening() as (peer, _, url), connect(url) as broker:
        producer = broker.producer("t")
        with busy(broker):
            futures = [producer.submit(b"%d" % n) for n in range(500)]
        receipts = [future.result(60) for future in futures]
        assert [r.id.offset for r in receipts if r.id] == list(range(500))
        assert [row[0] for row in peer.log] == [b"%d" % n for n in range(500)]
        assert len(peer.heard_of(wire.Publish)) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_submitted_messages_are_sent_before_later_calls(backend: str) -> None:
    with listening() as (peer, _, url), connect(url, backend=backend) as broker:
        producer = broker.producer("t")
        for n in range(0, 200, 2):
            with busy(broker):
                producer.submit(b"%d" % n)
            producer.send_many([b"%d" % (n + 1)])
        assert [row[0] for row in peer.log] == [b"%d" % n for n in range(200)]


def test_message_with_an_invalid_sequence_leaves_other_producers_alone() -> None:
    """The event loop takes the messages of all threads together."""
    with listening() as (_, _, url), connect(url) as broker:
        good, bad = broker.producer("t"), broker.producer("u")
        with busy(broker):
            failed = bad.submit(b"x", sequence="7")
            futures = [good.submit(b"x") for _ in range(10)]
        with pytest.raises(TypeError):
            failed.result(60)
        assert len([future.result(60) for future in futures]) == 10
        assert good.submit(b"later").result(60)


def test_cancelled_message_is_not_sent() -> None:
    with listening() as (peer, _, url), connect(url) as broker:
        producer = broker.producer("t")
        with busy(broker):
            first, second = producer.submit(b"first"), producer.submit(b"second")
            assert first.cancel()
        second.result(60)
        assert not second.cancel()
        assert [row[0] for row in peer.log] == [b"second"]


@pytest.mark.parametrize(("size_bytes", "fitting"), [(MAX_POSTED_BYTES // 4, 4), (0, MAX_POSTED)])
def test_submit_waits_while_the_loop_has_too_much_to_take(size_bytes: int, fitting: int) -> None:
    with listening() as (peer, _, url), connect(url) as broker, ThreadPoolExecutor(1) as pool:
        producer = broker.producer("t")
        with busy(broker):
            posted = 0
            while posted <= fitting and not broker._loop.crowded:
                producer.submit(bytes(size_bytes))
                posted += 1
            assert posted == fitting
            waiting = pool.submit(producer.submit, b"last")
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
        waiting.result(60).result(60)
        assert len(peer.log) == fitting + 1


def test_submit_waits_while_too_many_messages_have_no_receipt() -> None:
    with listening() as (peer, portal, url), connect(url) as broker, ThreadPoolExecutor(1) as pool:
        producer = broker.producer("t", max_in_flight_messages=2)
        peer.hold_receipts = True
        futures = [producer.submit(b"a"), producer.submit(b"b")]
        broker.admin("echo")  # the loop has taken both
        waiting = pool.submit(producer.submit, b"c")
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        portal.call(peer.release)
        for future in [*futures, waiting.result(60)]:
            future.result(60)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_messages_submitted_last_are_sent_when_the_block_ends(backend: str) -> None:
    with listening() as (_, _, url):
        for n in range(20):
            with connect(url, backend=backend) as broker:
                producer = broker.producer("t")
                with busy(broker):
                    future = producer.submit(b"")
            receipt = future.result(0)
            assert receipt.id == ("public/default/t", n)
        with pytest.raises(Disconnected):
            producer.submit(b"late")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_messages_acknowledged_last_are_acknowledged_when_the_block_ends(backend: str) -> None:
    with listening() as (peer, portal, url), connect(url, backend=backend) as broker:
        for n in range(20):
            with broker.consumer("t", "s") as inbox:
                portal.call(peer.deliver, [b""], [n])
                message = inbox.receive()
                assert message is not None
                with busy(broker):
                    message.ack()
            assert peer.acked == list(range(n + 1))


def test_errors_of_submitted_messages() -> None:
    with listening() as (peer, _, url), connect(url) as broker:
        producer = broker.producer("t")
        with pytest.raises(InvalidRequest):
            producer.submit(b"x", priority=256)
        with pytest.raises(LimitExceeded):
            producer.submit(bytes(MAX_FRAME_BYTES)).result(60)
        peer.refusals.append(NotFound("gone"))
        with busy(broker):
            refused = [producer.submit(b"a"), producer.submit(b"b")]
        for future in refused:
            with pytest.raises(NotFound, match="gone"):
                future.result(60)
        assert producer.submit(b"c", sequence=9).result(60).id
        assert producer.submit(b"c", sequence=9).result(60).duplicate
        producer.close()
        with pytest.raises(InvalidRequest, match="closed"):
            producer.submit(b"d").result(60)


def test_batch_larger_than_the_buffer_of_the_socket_arrives_whole() -> None:
    with listening() as (peer, portal, url), connect(url, backend="trio") as broker:
        producer = broker.producer("t")
        payloads = [bytes([n]) * 1024 * 1024 for n in range(24)]
        resume = threading.Event()
        hold = portal.start_task_soon(_hold, resume)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(producer.send_many, payloads)
            until(broker, lambda: broker._broker._lines.first.link._outgoing)  # the socket is full
            resume.set()
            assert len(sent.result(60)) == 24
        hold.result()
        assert [row[0] for row in peer.log] == payloads
        assert len(peer.heard_of(wire.Hello)) == 1, "the client had to connect again"


async def _hold(resume: threading.Event) -> None:
    """Keep the peer's event loop busy, so that it reads nothing."""
    resume.wait()


def test_timeout_includes_the_wait_for_another_thread_that_is_receiving() -> None:
    with listening() as (peer, portal, url), connect(url) as broker:
        with ThreadPoolExecutor(2) as pool, broker.consumer("t", "s") as inbox:
            other = pool.submit(inbox.receive)
            until(broker, lambda: inbox._receiving)
            for take in (inbox.receive, inbox.next_batch):
                assert pool.submit(take, timeout_s=0.01).result(60) is None
            assert not other.done()
            portal.call(peer.deliver, [b"a"], [0])
            message = other.result()
            assert message is not None
            assert message.offset == 0
            assert inbox.receive(timeout_s=0) is None


def test_errors_are_raised_unchanged() -> None:
    with listening() as (peer, _, url):
        with connect(url) as broker:
            peer.open_refusals.append(NotFound("no topic"))
            with pytest.raises(NotFound, match="no topic"):
                broker.producer("t")
        with pytest.raises(KeyError), connect(url):
            raise KeyError("mine")
    with pytest.raises(Disconnected) as unreachable, connect(url):
        pass
    assert str(unreachable.value) == (
        f"cannot connect to {url}: Connection refused; "
        "start a broker with `escapement serve`, or check the address"
    )


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_and_system_exit_leave_all_blocks(
    end: type[BaseException], backend: str
) -> None:
    """Ctrl-C and ``sys.exit`` are raised as themselves, not as an exception group."""
    with listening() as (_, _, url):
        with pytest.raises(end), connect(url, backend=backend) as broker:
            with broker.producer("t"), broker.consumer("t", "s"):
                raise end


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_wait_interrupted_by_ctrl_c_is_cancelled_in_the_loop(backend: str) -> None:
    """Otherwise it would take the next message, which would then be lost."""
    began, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    def interrupt() -> None:
        began.wait()
        # Python misses an interrupt that arrives just as the main thread starts to wait.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while not ended.wait(1):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with start_blocking_portal(backend) as portal:
        threading.Thread(target=interrupt).start()
        loop = Loop(portal)
        with pytest.raises(KeyboardInterrupt):
            loop.call(wait)
        assert ended.wait(10)
        loop.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_rows_of_a_table_have_their_fields(backend: str) -> None:
    """V11: typed values by the names of the columns."""
    fields = (Field("id", "bigint"), Field("price", "decimal"))
    payloads = [msgpack.packb([b"1", b"2.50"]), msgpack.packb([b"2", None])]
    with listening() as (peer, portal, url), connect(url, backend=backend) as broker:
        with broker.consumer("t", "s") as inbox:
            assert inbox.fields is None
            portal.call(peer.sessions[-1].say, wire.Fields.of(inbox._inbox._id, fields))
            portal.call(peer.deliver, payloads, [0, 1])
            message = next(iter(inbox))
            assert inbox.fields == fields
            assert message.row == {"id": 1, "price": Decimal("2.50")}
            batch = inbox.next_batch()
            assert batch is not None
            assert batch.values() == [{"id": 2, "price": None}]


def test_blocking_consumer_discards_messages_that_waited_for_longer_than_their_ack_wait() -> None:
    """V6: also those of the batch from which the thread receives single messages."""
    now_s = [1000.0]
    with listening() as (peer, portal, url), connect(url, clock_s=lambda: now_s[0]) as broker:
        with broker.consumer("t", "s") as inbox:
            portal.call(
                partial(
                    peer.deliver,
                    [b"a", b"late", b"b", b"c"],
                    [0, 1, 2, 3],
                    wait_ms=10_000,
                    waits_ms=[10_000, 10_000, 20_000, 20_000],
                )
            )
            messages = iter(inbox)
            assert next(messages).payload == b"a"
            now_s[0] += 11
            assert next(messages).payload == b"b"
            now_s[0] += 10
            assert inbox.receive(timeout_s=0) is None
            portal.call(partial(peer.deliver, [b"d", b"e"], [4, 5], wait_ms=10_000))
            assert next(messages).payload == b"d"
            now_s[0] += 11
            assert inbox.next_batch(timeout_s=0) is None
            portal.call(partial(peer.deliver, [b"f"], [6], wait_ms=10_000))
            assert next(messages).payload == b"f"
