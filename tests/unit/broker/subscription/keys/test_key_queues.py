"""Queues of ready messages, one for each key, compared with plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.subscription.keys.key_queues import KeyQueues
from escapement.broker.subscription.keys.key_table import KeyTable
from escapement.broker.subscription.priorities.band import BANDS, bands_of
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import DEFAULT_PRIORITY, Bools, Int64s, UInt32s
from escapement.storage.index import Key
from escapement.traits import HAS_KEY, SLOTS
from support.messages.shared_subscriptions import column

AGEING_MS = 10


# The last key has the same slot as the first.
KEYS = [0, 1, 2, 65_535, SLOTS]


# due, key (-1: none), priority, attempts
MESSAGES = st.tuples(
    st.integers(0, 2000),
    st.sampled_from([-1, *KEYS]),
    st.sampled_from([50, 50, 50, 0, 255]),
    st.sampled_from([0, 0, 1]),
)


SOME_KEYS = st.sets(st.sampled_from(KEYS))


def traits(keys: list[int], priorities: list[int]) -> UInt32s:
    of_keys = [0 if key < 0 else HAS_KEY | key % SLOTS | key // SLOTS << 17 for key in keys]
    steps = np.array(priorities, np.uint32) ^ np.uint32(DEFAULT_PRIORITY)
    return np.array(of_keys, np.uint32) | (steps << np.uint32(24))


@dataclass
class Model:
    """The queues, and a dict of their rows: due, key, priority, attempts by offset."""

    whole: bool
    rows: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    ageing_ms: int = AGEING_MS
    last: int = 0

    def __post_init__(self) -> None:
        self.table = KeyTable(self.whole)
        self.made = KeyQueues(self.table, self.ageing_ms)

    def busy_mask(self, busy: set[int]) -> Bools:
        """Lay in all rows, then return which keys of the table are busy."""
        self.made.lay_in()
        return np.isin(self.table.key_hashes, list(busy))

    def rank(self, offset: int) -> tuple[int, int]:
        due_ms, _, priority, _ = self.rows[offset]
        return due_ms + (priority - DEFAULT_PRIORITY) * self.ageing_ms, offset

    def queue(self, offset: int) -> int:
        return 0 if self.whole else self.rows[offset][1]

    def queue_of(self, slot: int) -> list[int]:
        return sorted((o for o in self.rows if self.queue(o) == slot), key=self.rank)

    def open(self, busy: set[int]) -> list[int]:
        """Return the messages that may be delivered next, in order."""
        slots = {self.queue(offset) for offset in self.rows} - busy - {-1}
        heads = [self.queue_of(slot)[0] for slot in slots]
        return sorted(heads + self.queue_of(-1), key=self.rank)

    def push(self, messages: list[tuple[int, int, int, int]]) -> None:
        offsets = [self.last + number for number in range(len(messages))]
        self.last += len(messages)
        # Not in the order of offsets: redelivered messages are mixed with new ones.
        offsets = offsets[::2] + offsets[1::2]
        self.rows |= dict(zip(offsets, messages, strict=True))
        due_ms, slots, priorities, attempts = map(list, zip(*messages, strict=True))
        given = traits(slots, priorities)
        self.made.push(
            Rows(
                column(*due_ms), column(*offsets), column(*attempts), given if given.any() else None
            )
        )

    def take(self, busy: set[int], most: int, every: bool) -> None:
        rows, indexes = self.made.open(self.busy_mask(busy), most, all_heads=every)
        expected = self.open(busy)
        if every:
            free = [offset for offset in expected if self.queue(offset) < 0]
            expected = [o for o in expected if self.queue(o) >= 0 or o in free[:most]]
        else:
            expected = expected[:most]
        assert rows.offsets.tolist() == expected
        some = slice(None, None, 2 if every else 1)
        chosen = rows.pick(some)
        self.made.take(chosen, indexes[some])
        for offset in chosen.offsets.tolist():
            del self.rows[offset]

    def withdraw(self, picks: list[int]) -> None:
        offsets = sorted(self.rows)
        gone = [offsets[pick % len(offsets)] for pick in picks if offsets]
        self.made.withdraw(np.array([*gone, 10**6], np.int64))
        for offset in set(gone):
            del self.rows[offset]

    def shorten(self, busy: set[int], most: int) -> None:
        """Remove ends of queues, but no message that was sent or precedes one that was."""
        gone = set(self.made.shorten(self.busy_mask(busy), most).offsets.tolist())
        fresh = sum(not attempts for *_, attempts in self.rows.values())
        for slot in {self.queue(offset) for offset in self.rows}:
            queue = self.queue_of(slot)
            left = [offset for offset in queue if offset not in gone]
            assert left == queue[: len(left)], "a gap in a queue"
            assert slot >= 0 or left == queue
            assert slot in busy or left[:1] == queue[:1]
            if fresh - len(gone) > most and slot in busy:
                assert not left or self.rows[left[-1]][3], "more could have been removed"
            assert all(not self.rows[offset][3] for offset in queue if offset in gone)
        for offset in gone:
            del self.rows[offset]

    def recall(self, band: int, due_ms: int) -> None:
        """Recall messages of a band from a key on that were never sent."""
        key = Key(due_ms, self.last // 2)
        gone = self.made.recall(band, key).tolist()
        expected = [
            offset
            for offset, (at_ms, slot, priority, attempts) in self.rows.items()
            if not attempts and Key(at_ms, offset) >= key
            if bands_of(traits([slot], [priority]))[0] == band
        ]
        assert sorted(gone) == sorted(expected)
        for offset in gone:
            del self.rows[offset]

    def age(self, ageing_ms: int) -> None:
        self.ageing_ms = ageing_ms
        self.made.set_ageing(ageing_ms)

    def check(self) -> None:
        self.made._check()
        rows = self.made.rows()
        assert sorted(rows.offsets.tolist()) == sorted(self.rows)
        for at, offset in enumerate(rows.offsets.tolist()):
            due_ms, _, _, attempts = self.rows[offset]
            assert (int(rows.due_ms[at]), int(rows.attempts[at])) == (due_ms, attempts)
        asked: Int64s = np.arange(self.last)
        never = [o in self.rows and not self.rows[o][3] for o in range(self.last)]
        assert self.made.never_sent(asked).tolist() == never
        for band in BANDS:
            mine = [
                offset
                for offset, (_, slot, priority, attempts) in self.rows.items()
                if not attempts and bands_of(traits([slot], [priority]))[0] == band
            ]
            assert self.made.fresh_of(band) == len(mine)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.lists(MESSAGES, min_size=1, max_size=12)),
        st.tuples(st.just("take"), SOME_KEYS, st.integers(1, 6), st.booleans()),
        st.tuples(st.just("withdraw"), st.lists(st.integers(0, 99), max_size=4)),
        st.tuples(st.just("shorten"), SOME_KEYS, st.integers(0, 6)),
        st.tuples(st.just("recall"), st.sampled_from(BANDS), st.integers(0, 2000)),
        st.tuples(st.just("age"), st.sampled_from([0, 1, 100])),
    ),
    max_size=25,
)


@settings(max_examples=200)
@given(steps, st.booleans())
def test_queues_behave_like_a_sorted_list_for_each_key(
    actions: list[tuple[str, list[object]]], whole: bool
) -> None:
    """Q9, V16: for any order of additions and removals."""
    model = Model(whole)
    for name, *arguments in actions:
        getattr(model, name)(*arguments)
        model.check()
    rows = model.made.drain()
    assert sorted(rows.offsets.tolist()) == sorted(model.rows)
    assert len(model.made) == 0


def test_unused_key_leaves_the_table() -> None:
    """Q9: memory depends on ready and held messages, not on all keys ever used."""
    table = KeyTable(whole=False)
    queues = KeyQueues(table, 0)
    for step in range(10):
        keys = list(range(100 * step, 100 * step + 100))
        offsets = np.array(keys)
        queues.push(Rows.fresh(offsets, offsets, traits(keys, [DEFAULT_PRIORITY] * 100)))
        queues.lay_in()
        assert len(table.key_hashes) <= 200
        queues.take(*queues.open(table.busy, 100, all_heads=False))
        queues._check()
    assert not len(queues)
