"""In-flight messages and their delivery times, acknowledged in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from escapement.broker.subscription.delivery.in_flight import InFlight
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Int64s
from support.seeds import seeds


@dataclass
class Held:
    """One in-flight message of the model."""

    consumer: int
    at_ms: int
    wanted_ms: int
    attempts: int


class Model:
    """A dict of in-flight messages, and the ``InFlight`` compared with it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.real = InFlight()
        self.held: dict[int, Held] = {}
        self.done: set[int] = set()
        self.waiting = list(range(3_000))
        self.sent: set[int] = set()  # the in-flight messages that were sent
        self.tries: dict[int, int] = {}
        self.now_ms = 0

    def deliver(self) -> None:
        count = int(self.rng.integers(1, 200))
        self.rng.shuffle(self.waiting)
        offsets, self.waiting = self.waiting[:count], self.waiting[count:]
        if not offsets:
            return
        cut = int(self.rng.integers(0, len(offsets)))  # to one consumer or to two
        takers = [(int(self.rng.integers(1, 4)), n) for n in (cut, len(offsets) - cut) if n]
        consumers = [consumer for consumer, count in takers for _ in range(count)]
        due = self.rng.integers(0, 50, len(offsets))
        for offset, wanted, consumer in zip(offsets, due.tolist(), consumers, strict=True):
            self.tries[offset] = self.tries.get(offset, 0) + 1
            self.held[offset] = Held(consumer, self.now_ms, wanted, self.tries[offset])
        tries = np.array([self.tries[offset] for offset in offsets])
        deadline = np.full(len(offsets), self.now_ms + 20)
        rows = Rows(due, np.array(offsets), tries)
        made = self.real.deliver(takers, rows, deadline, self.now_ms, due)
        assert np.concatenate([own.offsets for _, own in made]).tolist() == offsets
        for delivery, own in made:
            if self.rng.random() < 0.5:
                self.real.note_sent(delivery)
                self.sent.update(own.offsets.tolist())

    def give_back(self) -> None:
        consumer = int(self.rng.integers(1, 4))
        held = [offset for offset, one in self.held.items() if one.consumer == consumer]
        some = [offset for offset in held if self.rng.random() < 0.1]
        if self.rng.random() < 0.1:
            sent, unsent = self.real.take_back_consumer(consumer)
            assert self.sent.issuperset(sent.offsets.tolist())
            assert self.sent.isdisjoint(unsent.offsets.tolist())
            rows, some = Rows.concat([sent, unsent]), held
        else:
            rows = self.real.take_back(np.array(some, np.int64), consumer)
        assert sorted(rows.offsets.tolist()) == sorted(some)
        for offset in some:
            del self.held[offset]
            self.waiting.append(offset)
        self.sent.difference_update(some)

    def acknowledge(self) -> None:
        """Acknowledge in delivery order, with or without gaps, sorted, or shuffled."""
        held = list(self.held)
        how = int(self.rng.integers(0, 4))
        some = held[: int(self.rng.integers(0, len(held) + 1))]
        if how == 1:
            some = [offset for offset in some if self.rng.random() < 0.8]
        elif how == 2:
            some.sort()
        elif how == 3:
            self.rng.shuffle(some)
        some += self.waiting[: int(self.rng.integers(0, 3))]
        found = [part.handed for part in self.real.take_acknowledged(np.array(some, np.int64))]
        seen = [
            (one.at_ms, int(wanted), int(tries))
            for one in found
            for wanted, tries in zip(one.wanted_ms, one.attempts, strict=True)
        ]
        gone = [self.held.pop(offset) for offset in some if offset in self.held]
        assert sorted(seen) == sorted((h.at_ms, h.wanted_ms, h.attempts) for h in gone)
        assert self.real.settle(np.array(some, np.int64)) == len(gone)
        self.done.update(some)
        self.waiting = [offset for offset in self.waiting if offset not in self.done]

    def step(self) -> None:
        self.now_ms += 1
        getattr(self, str(self.rng.choice(["deliver", "give_back", "acknowledge"])))()
        self.real._check()
        assert len(self.real) == len(self.held)


@pytest.mark.parametrize("seed", seeds(range(8)))
def test_acknowledged_messages_have_the_deliveries_that_a_dict_has(seed: int) -> None:
    """B7: exactly the in-flight messages, each once, with its last delivery."""
    model = Model(np.random.default_rng(seed))
    for _ in range(150):
        model.step()


def delivered(flight: InFlight, *frames: Int64s) -> None:
    for at_ms, offsets in enumerate(frames):
        rows = Rows.fresh(np.zeros(len(offsets), np.int64), offsets)
        flight.deliver([(1, rows.height)], rows, np.full(len(offsets), 1 << 60), at_ms, rows.due_ms)


def test_acks_in_the_order_of_delivery_need_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B7: whole frames, parts of them, several at once, and the rest of one after a nack."""
    flight = InFlight()
    order = np.random.default_rng(1).permutation(1000)
    delivered(flight, order[:300], order[300:700], order[700:])
    with monkeypatch.context() as without_search:
        without_search.setattr(flight, "_delivery_lookup", None)
        for part in (order[300:310], order[:300], np.concatenate((order[310:700], order[700:800]))):
            assert sum(one.height for one in flight.take_acknowledged(part)) == len(part)
            flight.settle(part)
    flight.take_back(order[800:1000:7])
    monkeypatch.setattr(flight, "_delivery_lookup", None)
    rest = np.setdiff1d(np.arange(800, 1000), np.arange(800, 1000, 7))
    assert sum(one.height for one in flight.take_acknowledged(order[rest])) == len(rest)
    flight.settle(order[rest])
    flight._check()
    assert not len(flight)


@pytest.mark.parametrize("apart", [1, 1 << 40, 1 << 55])
def test_messages_are_found_however_far_apart_offsets_are(apart: int) -> None:
    """B7: also messages that were redelivered."""
    flight = InFlight()
    order = np.random.default_rng(1).permutation(100) * apart
    delivered(flight, order[:60], order[60:])
    flight.take_back(order[:30])
    delivered(flight, order[:30])
    found = flight.take_acknowledged(order[::-3])
    assert sum(one.height for one in found) == 34
    assert sorted({one.handed.at_ms for one in found}) == [0, 1]
    assert sum(one.height for one in found if one.handed.at_ms) == len(order[60:][::-3])
    flight.settle(order[::-3])
    flight._check()
