"""The deduplication keys of a topic, compared with a model, and their encoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.topic import dedup_keys, key_store
from escapement.broker.topic.dedup_keys import NEW, WAITING, DedupKeys
from escapement.broker.topic.key_store import KeyBudget
from escapement.dedup import DIGEST, NO_DIGEST, digests
from escapement.errors import Busy, LimitExceeded, LogDamaged
from escapement.storage.encoding.dedup_keys import KeyTable, decode_keys, encode_keys
from escapement.storage.journal.entry import (
    Acked,
    JournalEntry,
    Keyed,
    decode_entry,
    encode_entry,
)

# The first 8 of 16 bytes decide the order: some keys share them, and some do not.
KEYS = [bytes([n // 4]) * 8 + bytes([n % 4 + 1]) * 8 for n in range(16)]
WINDOW_MS = 160

batches = st.lists(st.sampled_from([NO_DIGEST, *KEYS]), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), batches, st.integers(0, 2)),
        st.tuples(st.just("pass"), st.integers(1, 200)),
        st.tuples(st.just("forget")),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


def column(keys: list[bytes]) -> dedup_keys.Digests:
    return np.frombuffer(b"".join(keys), DIGEST)


class Model:
    """The keys, a dict of them, and the bytes that a start would read."""

    def __init__(self) -> None:
        self.budget = KeyBudget(1000)
        self.keys = DedupKeys(self.budget)
        self.known: dict[bytes, tuple[int, int]] = {}
        self.written: list[bytes] = []
        self.journal: list[bytes] = []
        self.now_ms = 1000
        self.next_offset = 0

    def publish(self, batch: list[bytes], outcome: int) -> None:
        """Publish a batch that is committed, refused, or repeated while it is under way."""
        found = self.keys.sort_out(column(batch), self.now_ms - WINDOW_MS)
        expected, fresh = [], []
        for key in batch:
            offset, published_ms = self.known.get(key, (0, -WINDOW_MS))
            if key != NO_DIGEST and published_ms + WINDOW_MS > self.now_ms:
                expected.append(offset)
            elif key in fresh:
                expected.append(WAITING)
            else:
                expected.append(NEW)
                if key != NO_DIGEST:
                    fresh.append(key)
        assert found.tolist() == expected
        new = column(batch)[found == NEW]
        self.keys.hold(new)
        if outcome == 1:
            again = self.keys.sort_out(column(batch), self.now_ms - WINDOW_MS).tolist()
            assert again == [
                WAITING if key in fresh else was for key, was in zip(batch, expected, strict=True)
            ]
        if outcome == 2:
            self.keys.release(new)
            return
        offsets = self.next_offset + np.arange(len(new))
        self.next_offset += len(new)
        keyed = np.array([key != NO_DIGEST for key in new.tolist()], bool)
        table = KeyTable(new[keyed], offsets[keyed], np.full(int(keyed.sum()), self.now_ms))
        if len(table.offsets):
            self.keys.store(table)
            self.journal.append(encode_keys(table))
        for key, offset in zip(table.digests.tolist(), table.offsets.tolist(), strict=True):
            self.known[key] = offset, self.now_ms

    def forget(self) -> None:
        self.keys.forget(self.now_ms, WINDOW_MS)
        assert not self.keys.is_stale(self.now_ms, WINDOW_MS)

    def restart(self) -> None:
        """Restart; some keys of the journal are in the checkpoint's parts, too."""
        self.written += [encode_keys(table) for table in self.keys.take_unstated()]
        self.keys = DedupKeys(self.budget)
        self.budget.used = 0
        for data in self.written:
            self.keys.load(decode_keys(data))
        for data in self.journal:
            self.keys.recover(decode_keys(data))
        assert not self.keys.take_unstated()

    def check(self) -> None:
        found = self.keys.find(column(KEYS), self.now_ms - WINDOW_MS).tolist()
        for key, offset in zip(KEYS, found, strict=True):
            known, published_ms = self.known.get(key, (-1, -WINDOW_MS))
            assert offset == (known if published_ms + WINDOW_MS > self.now_ms else -1)
        assert self.budget.used == len(self.keys)


@given(steps)
def test_known_keys_equal_those_of_a_dict(actions: list[tuple]) -> None:
    """B3: stored, waiting, repeated within a batch, refused, forgotten, loaded again."""
    model = Model()
    for step in actions:
        if step[0] == "publish":
            model.publish(step[1], step[2])
        elif step[0] == "pass":
            model.now_ms += step[1]
        else:
            getattr(model, step[0])()
        model.check()


def test_small_runs_are_merged_and_all_keys_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """B3: keys added one at a time are looked up in a few runs."""
    monkeypatch.setattr(key_store, "_RUN_KEYS", 256)
    keys = DedupKeys(KeyBudget(10_000))
    names = digests([f"{n}" for n in range(2000)])
    for n in range(2000):
        one = names[n : n + 1]
        keys.hold(one)
        keys.store(KeyTable(one, np.array([n]), np.array([n])))
    assert len(keys._runs) < 2000 / 128 + 10
    assert keys.find(names, -1).tolist() == list(range(2000))
    assert keys.find(names, 999).tolist() == [-1] * 1000 + list(range(1000, 2000))
    stated = [KeyTable.concat(keys.take_unstated()), KeyTable.concat(keys.all_keys())]
    for table in stated:
        assert dict(zip(table.digests.tolist(), table.offsets.tolist(), strict=True)) == {
            key: n for n, key in enumerate(names.tolist())
        }


def test_new_keys_beyond_the_bound_are_refused() -> None:
    """B3, invariant 9: waiting keys count, and batches that can never fit are refused for good."""
    budget = KeyBudget(3)
    one, other = DedupKeys(budget), DedupKeys(budget)
    one.hold(digests(["a", "b"]))
    with pytest.raises(Busy):
        other.sort_out(digests(["a", "b"]), 0)
    with pytest.raises(LimitExceeded):
        other.sort_out(digests(["a", "b", "c", "d"]), 0)
    assert other.sort_out(digests(["a", None, "a"]), 0).tolist() == [NEW, NEW, WAITING]
    one.drop()
    assert budget.used == 0
    one.release(digests(["a", "b"]))
    assert budget.used == 0


def test_key_table_decodes_to_the_same_table_or_is_damaged() -> None:
    """P2: also as part of a journal entry; entries without keys keep their old format."""
    table = KeyTable(digests(["a", "b"]), np.array([3, 5]), np.array([7, 7]))
    data = encode_keys(table)
    for column_, read in zip(table, decode_keys(data), strict=True):
        assert column_.tolist() == read.tolist()
    for damaged in (data[:5], data[:-1], data[:-1] + b"?", b"\x09" + data[1:]):
        with pytest.raises(LogDamaged):
            decode_keys(damaged)
    entry = JournalEntry(acks=[Acked(4, np.array([1, 2]))], keyed=[Keyed(9, table)] * 2)
    read = decode_entry(encode_entry(entry))
    assert read.acks[0].offsets.tolist() == [1, 2]
    assert [one.topic_id for one in read.keyed] == [9, 9]
    assert read.keyed[1].keys.digests.tolist() == table.digests.tolist()
    assert encode_entry(JournalEntry(acks=entry.acks))[0] == 1
    for size in range(1, len(encode_entry(entry))):
        with pytest.raises(LogDamaged):
            decode_entry(encode_entry(entry)[:-size])
