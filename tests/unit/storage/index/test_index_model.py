"""The delayed index, compared with a dictionary under a random workload."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from escapement.message import Bools, Int64s, MessageBatch
from escapement.storage.index import (
    KEY_MAX,
    KEY_MIN,
    Checkpoint,
    Compaction,
    DelayedIndex,
    IndexLimits,
    Key,
    Lineage,
)
from escapement.storage.index.columns import assemble
from escapement.storage.index.plan import Plan
from escapement.traits import traits_of
from support.storage.index_samples import Row, batch_of, row_of, rows_of

Entries = dict[tuple[int, int, int], Row]  # (topic, due, offset)

# Blocks and tables of a few rows, and batches that are kept from a few bytes on, so that a short
# workload crosses many of their borders.
LIMITS = IndexLimits(block_rows=5, table_rows=16, cache_bytes=2000, kept_bytes=60)
TOPICS = st.integers(1, 3)
KEYS = st.one_of(
    st.sampled_from([KEY_MIN, KEY_MAX]),
    st.builds(Key, st.integers(0, 40), st.integers(0, 120)),
)
SEEDS = st.integers(0, 2**32)


class RandomIndexWorkload(RuleBasedStateMachine):
    """Entries in ``live`` must be in the index, those in ``dead`` may be, and no others are."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="escapement-index-"))
        self.index = DelayedIndex.open(self.directory, LIMITS)
        self.live: Entries = {}
        self.dead: Entries = {}
        self.next_offset = dict.fromkeys((1, 2, 3), 0)
        self.due_of: dict[tuple[int, int], int] = {}
        self.checkpoint: Checkpoint | None = None
        self.read_plans: list[tuple[int, Plan, Int64s, Int64s]] = []
        self.compaction: Compaction | None = None
        self.begun: tuple[Entries, Entries] = ({}, {})
        self.durable: tuple[Entries, Entries] = ({}, {})
        self.checkpoints = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    def enter(self, topic: int, offsets: list[int]) -> tuple[Int64s, MessageBatch]:
        due = [self.due_of[topic, offset] for offset in offsets]
        for time, offset in zip(due, offsets, strict=True):
            self.live[topic, time, offset] = row_of(topic, offset)
            self.dead.pop((topic, time, offset), None)
        return np.array(due, np.int64), batch_of(topic, offsets)

    def expected(self, topic: int, start: Key, stop: Key) -> tuple[set[Key], set[Key]]:
        def within(entries: Entries) -> set[Key]:
            keys = {Key(due, offset) for t, due, offset in entries if t == topic}
            return {key for key in keys if start <= key < stop}

        return within(self.live), within(self.live) | within(self.dead)

    @rule(topic=TOPICS, count=st.integers(1, 40), gap=st.integers(0, 2), data=st.data())
    def add(self, topic: int, count: int, gap: int, data: st.DataObject) -> None:
        base = self.next_offset[topic] + gap
        offsets = list(range(base, base + count))
        self.next_offset[topic] = base + count
        spread = data.draw(st.sampled_from([1, 4, 40]))
        rng = np.random.default_rng(data.draw(SEEDS))
        for offset in offsets:
            self.due_of[topic, offset] = int(rng.integers(0, spread))
        due_ms, batch = self.enter(topic, offsets)
        self.index.add(topic, base, due_ms, batch)

    @rule(topic=TOPICS, data=st.data())
    def add_again(self, topic: int, data: st.DataObject) -> None:
        known = sorted(offset for t, offset in self.due_of if t == topic)
        if known:
            offsets = sorted(data.draw(st.sets(st.sampled_from(known), min_size=1, max_size=20)))
            due_ms, batch = self.enter(topic, offsets)
            self.index.add(topic, np.array(offsets, np.int64), due_ms, batch)

    @rule(topic=TOPICS, start=KEYS, until=KEYS, most=st.integers(1, 60), seed=st.none() | SEEDS)
    def plan_and_fetch(
        self, topic: int, start: Key, until: Key, most: int, seed: int | None
    ) -> None:
        plan = self.index.plan(topic, start, until, most)
        required, possible = self.expected(topic, start, plan.stop)
        due_ms, offsets, traits = plan.read_traits()
        keys = [Key(*key) for key in zip(due_ms.tolist(), offsets.tolist(), strict=True)]
        assert keys == sorted(set(keys))
        known = traits_of(batch_of(topic, offsets.tolist())) if keys else None
        assert (traits is None) == (known is None)
        assert traits is None or traits.tolist() == known.tolist()
        assert self.index.has_priorities(topic) or traits is None or not (traits >> 24).any()
        assert required <= set(keys) <= possible
        if self.expected(topic, start, until)[0]:
            assert keys, "a plan must contain entries while any are left"
        order = np.arange(len(keys))
        if seed is not None:
            order = np.random.default_rng(seed).permutation(order)
        batch = self.index.fetch(topic, due_ms[order], offsets[order]).read()
        assert rows_of(batch) == [row_of(topic, keys[row].offset) for row in order.tolist()]
        assert plan.can_locate or traits is None
        if plan.can_locate:
            self.read_plans.append((topic, plan, due_ms[order], offsets[order]))
            self.locate(len(self.read_plans) - 1)

    @precondition(lambda self: self.read_plans)
    @rule(data=st.data())
    def locate_later(self, data: st.DataObject) -> None:
        """Entries that a plan has pinned stay readable, however the index has changed."""
        self.locate(data.draw(st.integers(0, len(self.read_plans) - 1)))

    def locate(self, number: int) -> None:
        topic, plan, due_ms, offsets = self.read_plans[number]
        for some, size_bytes in ((slice(None), 100), (slice(None, None, 2), 1), (slice(1, 2), 0)):
            seen, previous_bytes = [], 0
            for which, picks in plan.locate((due_ms[some], offsets[some]), size_bytes):
                batch = assemble(len(which), picks)
                at = offsets[some][which].tolist()
                assert rows_of(batch) == [row_of(topic, offset) for offset in at]
                assert not seen or previous_bytes >= size_bytes, "a piece is too short"
                previous_bytes = len(batch.payloads.data)
                seen += which.tolist()
            assert sorted(seen) == list(range(len(offsets[some])))

    @rule(topic=TOPICS, most=st.integers(1, 60))
    def scan_everything(self, topic: int, most: int) -> None:
        at, seen = KEY_MIN, set()
        while at < KEY_MAX:
            plan = self.index.plan(topic, at, KEY_MAX, most)
            assert plan.stop > at
            due_ms, offsets = plan.read()
            seen |= {Key(*key) for key in zip(due_ms.tolist(), offsets.tolist(), strict=True)}
            at = plan.stop
        required, possible = self.expected(topic, KEY_MIN, KEY_MAX)
        assert required <= seen <= possible
        assert self.index.count(topic) >= len(seen)

    @rule(topic=TOPICS, after=KEYS)
    def check_next_due(self, topic: int, after: Key) -> None:
        due = self.index.next_due(topic, after)
        required, possible = self.expected(topic, after, KEY_MAX)
        if required:
            assert due is not None
            assert min(possible).due_ms <= due <= min(required).due_ms or due == after.due_ms

    @precondition(lambda self: self.checkpoint is None)
    @rule(seed=SEEDS)
    def begin_checkpoint(self, seed: int) -> None:
        self.checkpoint = self.index.begin_checkpoint()
        rng = np.random.default_rng(seed)
        self.mask_seed = seed
        excluded = [key for key in self.live if rng.random() < 0.4]
        for key in excluded:
            self.dead[key] = self.live.pop(key)
        self.begun = dict(self.live), dict(self.dead)

    def mask(self, topic: int, due_ms: Int64s, offsets: Int64s) -> Bools | None:
        keys = zip(due_ms.tolist(), offsets.tolist(), strict=True)
        keep = np.array([(topic, *key) in self.begun[0] for key in keys], np.bool_)
        return None if keep.all() else keep

    @precondition(lambda self: self.checkpoint is not None)
    @rule()
    def finish_checkpoint(self) -> None:
        checkpoint, self.checkpoint = self.checkpoint, None
        assert checkpoint is not None
        for group in checkpoint.groups():
            checkpoint.write(group, [self.mask(*part) for part in group.parts()])
        self.checkpoints += 1
        checkpoint.finish("log", {0: (self.checkpoints, b"group")}, Lineage())
        self.durable = self.begun
        self.index.install(checkpoint)

    @precondition(lambda self: self.checkpoint is not None)
    @rule(part_way=st.booleans())
    def abandon_checkpoint(self, part_way: bool) -> None:
        checkpoint, self.checkpoint = self.checkpoint, None
        assert checkpoint is not None
        if part_way:
            for group in checkpoint.groups():
                checkpoint.write(group, [self.mask(*part) for part in group.parts()])
        self.index.abandon(checkpoint)

    @precondition(lambda self: self.compaction is None and self.index.segment_count > 0)
    @rule(seed=SEEDS, by_size=st.booleans())
    def begin_compaction(self, seed: int, by_size: bool) -> None:
        assert self.index.manifest is not None
        rng = np.random.default_rng(seed)
        names = [name for name in self.index.manifest.segments if rng.random() < 0.6]
        if by_size or not names:
            names = self.index.choose_compaction(lambda topic, first, last, later: last - first + 1)
        if not names:
            return
        self.compaction = self.index.begin_compaction(names)
        for topic, first, last in self.compaction.ranges():
            offsets = [o for t, _, o in {**self.live, **self.dead} if t == topic]
            excluded = {o for o in offsets if first <= o <= last and rng.random() < 0.3}
            for live, dead in ((self.live, self.dead), self.begun, self.durable):
                for key in [key for key in live if key[0] == topic and key[2] in excluded]:
                    dead[key] = live.pop(key)
            self.compaction.exclude(topic, np.array(sorted(excluded), np.int64))

    @precondition(lambda self: self.compaction is not None)
    @rule()
    def finish_compaction(self) -> None:
        compaction, self.compaction = self.compaction, None
        assert compaction is not None
        before = self.index.segment_count
        compaction.run_here()
        compaction.finish({})
        self.index.install_compaction(compaction)
        assert self.index.segment_count <= before - len(compaction.inputs) + 1

    @precondition(lambda self: self.compaction is not None)
    @rule(run=st.booleans())
    def abandon_compaction(self, run: bool) -> None:
        compaction, self.compaction = self.compaction, None
        assert compaction is not None
        if run:
            compaction.run_here()
        self.index.abandon_compaction(compaction)

    @rule()
    def crash_and_open(self) -> None:
        self.checkpoint = self.compaction = None
        self.index = DelayedIndex.open(self.directory, LIMITS)
        self.live, self.dead = (dict(entries) for entries in self.durable)
        manifest = self.index.manifest
        assert (manifest is None) == (self.checkpoints == 0)
        if manifest is not None:
            assert manifest.positions == {0: (self.checkpoints, b"group")}

    @invariant()
    def topics_with_live_entries_are_named(self) -> None:
        assert {topic for topic, _, _ in self.live} <= self.index.topics()

    @invariant()
    def first_due_time_of_each_topic_is_exact(self) -> None:
        for topic in self.next_offset:
            required, possible = self.expected(topic, KEY_MIN, KEY_MAX)
            if required:
                due = self.index.next_due(topic, KEY_MIN)
                assert due is not None
                assert min(possible).due_ms <= due <= min(required).due_ms


RandomIndexWorkload.TestCase.settings = settings(max_examples=100, stateful_step_count=25)
TestRandomIndexWorkload: Any = RandomIndexWorkload.TestCase
