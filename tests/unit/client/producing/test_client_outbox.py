"""The outbox with a broker that fails in every possible way: B3."""

from __future__ import annotations

from collections import deque
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.client.connection.retry import Retry
from escapement.client.producing.outbox import Outbox
from escapement.client.producing.producer_bounds import Bounds
from escapement.client.producing.publish_request import NewMessage, PublishRequest
from escapement.errors import DelayTooLong, Disconnected, SequenceGap, StorageUnavailable
from escapement.message import NO_TIMES, Blobs, MessageBatch

BOUNDS = Bounds(
    linger_s=1.0,
    batch_messages=4,
    batch_bytes=10_000,
    message_bytes=10_000,
    in_flight_messages=30,
    in_flight_bytes=1_000_000,
    send_timeout_s=1000.0,
)


def name(number: int) -> bytes:
    return b"m%d" % number


class World:
    """An outbox, a connection that can be cut, and a model of a broker."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.outbox = Outbox(BOUNDS, Retry(chance=lambda: 1.0))
        self.out: deque[tuple[int, int, list[bytes]]] = deque()
        self.back: deque[tuple[int, int | None, bool, Exception | None]] = deque()
        self.log: list[bytes] = []
        self.last_sequence = -1
        self.sent: dict[bytes, tuple[PublishRequest, int]] = {}

    def send_one(self) -> None:
        number = self.outbox.next_sequence
        payload = name(number)
        self.sent[payload] = self.outbox.add(NewMessage(payload), None, lambda: self.now_s)

    def send_batch(self, count: int) -> None:
        first = self.outbox.next_sequence
        payloads = [name(first + i) for i in range(count)]
        batch = MessageBatch(Blobs.of(payloads))
        requests = self.outbox.add_batch(batch, NO_TIMES, None, self.now_s)
        positions = [(request, row) for request in requests for row in range(request.count)]
        self.sent.update(zip(payloads, positions, strict=True))

    def pump(self) -> None:
        requests, _ = self.outbox.take(self.now_s)
        for request, after in requests:
            assert after < request.sequence
            payloads = MessageBatch.decode(request.body).payloads.to_list()
            assert payloads[0] == name(request.sequence)
            self.out.append((request.sequence, after, payloads))

    def broker(self, fault: str) -> None:
        if not self.out:
            return
        sequence, after, payloads = self.out.popleft()
        if after > self.last_sequence:
            error: Exception | None = SequenceGap(f"after {after}")
        elif fault == "later":
            error = StorageUnavailable("away")
        elif fault == "never":
            error = DelayTooLong("no")
        else:
            error = None
        if error is not None:
            self.back.append((sequence, None, False, error))
            return
        known = min(max(self.last_sequence - sequence + 1, 0), len(payloads))
        fresh = payloads[known:]
        if fault == "half":
            fresh = fresh[: len(fresh) // 2]
        base = len(self.log)
        self.log += fresh
        self.last_sequence = max(self.last_sequence, sequence + known + len(fresh) - 1)
        if fault == "half":
            self.cut()
        else:
            self.back.append((sequence, None if known else base, known > 0, None))

    def answer(self) -> None:
        if not self.back:
            return
        sequence, base, duplicate, error = self.back.popleft()
        if error is None:
            self.outbox.receipt(sequence, -1 if base is None else base, duplicate)
        else:
            assert isinstance(error, StorageUnavailable | DelayTooLong | SequenceGap)
            self.outbox.refused(sequence, error, self.now_s)

    def cut(self) -> None:
        self.out.clear()
        self.back.clear()
        self.outbox.lost()
        self.outbox.resume(self.last_sequence)

    def settle(self) -> None:
        for _ in range(500):
            self.now_s += 2
            self.pump()
            while self.out or self.back:
                self.broker("")
                self.answer()
            if self.outbox.empty:
                return
        raise AssertionError("some requests are never settled")


STEPS = st.lists(
    st.one_of(
        st.just(("one",)),
        st.tuples(st.just("batch"), st.integers(1, 12)),
        st.just(("pump",)),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.5, 3.0])),
        st.tuples(st.just("broker"), st.sampled_from(["", "", "", "later", "never", "half"])),
        st.just(("answer",)),
        st.just(("cut",)),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=200)
@given(STEPS)
def test_each_message_is_stored_once_in_order_or_reported_as_refused(
    steps: list[tuple[str, ...]],
) -> None:
    """B3."""
    world = World()
    for step in steps:
        match step:
            case ("one",):
                world.send_one()
            case ("batch", count):
                world.send_batch(int(count))
                world.pump()
            case ("pump",):
                world.pump()
            case ("wait", seconds):
                world.now_s += float(seconds)
            case ("broker", fault):
                world.broker(fault)
            case ("answer",):
                world.answer()
            case ("cut",):
                world.cut()
    world.settle()
    assert world.outbox.messages == 0
    assert world.outbox.size_bytes == 0
    assert world.log == sorted(world.log, key=lambda payload: int(payload[1:]))
    assert len(set(world.log)) == len(world.log)
    stored = set(world.log)
    for payload, (request, row) in world.sent.items():
        assert request.settled
        if request.error is None:
            assert payload in stored
            offset = request.offsets.item(row)
            assert offset == -1 or world.log[offset] == payload
        else:
            assert isinstance(request.error, DelayTooLong)


def test_message_is_sent_at_once_unless_a_request_is_under_way() -> None:
    world = World()
    outbox = world.outbox
    world.send_one()
    (first,), again_s = outbox.take(0.0)
    assert (first[0].sequence, first[1], again_s) == (0, -1, inf)
    world.send_one()
    assert outbox.take(0.5) == ([], 1.0)
    outbox.receipt(0, 0, False)
    (second,), _ = outbox.take(0.6)
    assert (second[0].sequence, second[1]) == (1, 0)


def test_expired_request_fails_and_the_next_follows_the_last_stored() -> None:
    world = World()
    outbox = world.outbox
    world.send_one()
    outbox.take(0.0)
    world.now_s = 500.0
    world.send_one()
    outbox.take(500.9)
    assert outbox.expire(999.0) == 1000.0
    assert outbox.expire(1000.0) == 1500.0
    request, _ = world.sent[name(0)]
    assert isinstance(request.error, Disconnected)
    outbox.lost()
    outbox.resume(-1)
    ((request, after),), _ = outbox.take(1001.0)
    assert (request.sequence, after) == (1, -1)
