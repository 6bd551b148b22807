"""Bulk changes beside deliveries, cancels, publishes, crashes and stops, compared with a model."""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import escapement
from escapement import BulkChange, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.clock import moment
from escapement.spread import places_ms, seeds
from escapement.storage.engine.base import Engine
from escapement.testing import World
from support.seeds import named
from support.seeds import seeds as chosen

CONFIG: Final = BrokerConfig(ack_wait_ms=10**11, limits=BrokerLimits(bulk_slice_messages=2), seed=0)
STEPS: Final = ("wait", "wait", "wait", "cancel", "publish", "crash", "restart", "stop")


class Case(NamedTuple):
    """A case: the messages at the start, the bulk change, and what happens meanwhile."""

    due_ms: list[int]  # of each message, from the start on
    keys: list[str]
    action: str
    filter: str
    delay_ms: int
    spread_ms: int
    steps: list[tuple[str, int]]  # what to do, and a number for it


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 14))
    return Case(
        draw(st.lists(st.integers(1, 300), min_size=count, max_size=count)),
        draw(st.lists(st.sampled_from("ab"), min_size=count, max_size=count)),
        draw(st.sampled_from(["cancel", "reschedule", "run_now"])),
        draw(st.sampled_from(["everything", "key", "time"])),
        draw(st.integers(0, 400)),
        draw(st.sampled_from([0, 0, 200])),
        draw(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 60)), max_size=10)),
    )


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    count = rng.randint(8, 30)
    return Case(
        [rng.randint(1, 300) for _ in range(count)],
        [rng.choice("ab") for _ in range(count)],
        rng.choice(["cancel", "reschedule", "run_now"]),
        rng.choice(["everything", "key", "time"]),
        rng.randint(0, 400),
        rng.choice([0, 200]),
        [(rng.choice(STEPS), rng.randint(0, 60)) for _ in range(10)],
    )


class Play:
    """One case, played on a broker, with what its consumer received."""

    def __init__(self, case: Case, world: World, broker: escapement.Broker) -> None:
        self.case = case
        self.world = world
        self.broker = broker
        self.begin_ms = world.clock.now_ms()
        self.due_ms = {n: self.begin_ms + ms for n, ms in enumerate(case.due_ms)}
        self.cancelled: set[int] = set()  # by single cancels
        self.received: dict[int, set[int]] = {}  # the due times of the deliveries of each message
        self.unmarked: list[int] = []  # deliveries that were not marked as redelivered
        self.restarts = 0

    async def consume(self) -> None:
        async with self.broker.consumer("t", "s", permits=1_000) as inbox:
            async for batch in inbox.batches():
                now_ms = self.world.clock.now_ms()
                for message in batch:
                    assert message.due_ms <= now_ms
                    self.received.setdefault(message.offset, set()).add(message.due_ms)
                    if not message.redelivered:
                        self.unmarked.append(message.offset)
                await inbox.ack(batch.offsets)

    def selected(self) -> set[int]:
        """Return the messages of the bulk change, by the model."""
        case, found = self.case, set(self.due_ms)
        if case.filter == "key":
            found = {n for n in found if case.keys[n] == "a"}
        elif case.filter == "time":
            found = {n for n in found if self.due_ms[n] < self.begin_ms + 150}
        return found

    async def start(self) -> BulkChange:
        case = self.case
        conditions: dict[str, dict[str, Any]] = {
            "everything": {"everything": True},
            "key": {"key": "a"},
            "time": {"due_until": moment(self.begin_ms + 150)},
        }
        options = conditions[case.filter]
        if case.action != "cancel" and case.spread_ms:
            options["spread"] = (case.spread_ms, "ms")
        if case.action == "reschedule":
            options["delay"] = (case.delay_ms, "ms")
        change: BulkChange = await getattr(self.broker.bulk, case.action)("t", **options)
        return change

    async def do(self, step: str, number: int, change: BulkChange) -> None:
        if step == "wait":
            await self.world.clock.advance(ms=number)
        elif step == "cancel":
            outcomes = await self.broker.cancel([number % len(self.case.keys)], topic="t")
            self.cancelled |= set(outcomes.offsets[outcomes.done].tolist())
        elif step == "publish":
            now_ms = self.world.clock.now_ms()
            receipt = await self.producer.send(b"x", key="a", at=moment(now_ms + number))
            self.due_ms[receipt.id.offset] = now_ms + number
        elif step == "stop":
            await self.broker.bulk.stop("t", change.id)
        else:
            self.restarts += 1
            await (self.world.crash() if step == "crash" else self.world.stop())
            await self.world.restart()
            await self.world.clock.advance(seconds=2)

    async def run(self) -> None:
        case = self.case
        await self.broker.admin("subscriptions.create", topic="t", subscription="s")
        self.producer = await self.broker.producer("t")
        times = [moment(self.due_ms[n]) for n in range(len(case.keys))]
        await self.producer.send_many([b"x"] * len(times), at=times, keys=case.keys)
        selected = self.selected()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.consume)
            await self.world.clock.settle()
            change = await self.start()
            for step, number in case.steps:
                await self.do(step, number, change)
            while not (change := await self.broker.bulk.show("t", change.id)).has_ended:
                await self.world.clock.advance(ms=10)
            for _ in range(3):
                await self.world.clock.advance(seconds=2)
            assert await self.broker.bulk.show("t", change.id) == change
            nursery.cancel_scope.cancel()
        self.check(change, selected)

    def check(self, change: BulkChange, selected: set[int]) -> None:
        assert change.state in ("done", "stopped")
        assert change.ended is not None
        end_ms = round(change.ended.timestamp() * 1000)
        assert len(self.unmarked) == len(set(self.unmarked)), "delivered twice"
        for offset, due_ms in self.due_ms.items():
            received = self.received.get(offset, set())
            assert len(received) <= 1, "delivered at its old time and at its new one"
            if offset in self.cancelled and due_ms > end_ms:
                assert not received
            elif offset not in selected:
                assert received == {due_ms} or offset in self.cancelled
        if self.restarts == 0 and change.messages:
            assert change.messages == len(selected)
        assert change.messages <= len(selected)
        if change.state == "stopped":
            return
        assert change.handled == change.messages
        later = {n for n in selected if self.due_ms[n] > end_ms} - self.cancelled
        assert change.done >= len(later)
        for offset in later:
            self.check_changed(self.received.get(offset, set()), offset, end_ms)

    def check_changed(self, received: set[int], offset: int, end_ms: int) -> None:
        """Check a message that the bulk change must have changed, because it was due later."""
        case = self.case
        if case.action == "cancel":
            assert not received
            return
        new_ms = self.begin_ms + (case.delay_ms if case.action == "reschedule" else 0)
        if case.spread_ms:
            (place,) = places_ms(seeds("public/default/t", np.array([offset])), case.spread_ms)
            new_ms += int(place)
        (due_ms,) = received
        assert due_ms == new_ms or new_ms < due_ms <= end_ms


async def play(case: Case, engine: Engine | None = None) -> None:
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await Play(case, world, broker).run()


@settings(max_examples=25, deadline=None)
@given(cases())
def test_bulk_change_does_what_a_model_does(case: Case) -> None:
    """B13, B12: each pending message is changed once, and all others are delivered on time."""
    testing.run(play, case)


@pytest.mark.parametrize("seed", chosen(range(3)))
async def test_random_bulk_change_on_each_engine(
    seed: int, engine: Engine, mock_clock: MockClock
) -> None:
    """B13."""
    with named(seed, []):
        await play(random_case(seed), engine)
