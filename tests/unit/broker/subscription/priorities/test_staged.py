"""Messages that were read ahead, compared with a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.subscription.priorities import staged as module
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.priorities.staged import Staged
from escapement.message import Blobs, Int64s, MessageBatch
from escapement.storage.index.columns import assemble
from escapement.storage.offsets import OffsetSet
from escapement.traits import traits_of


def column(*numbers: int) -> Int64s:
    return np.array(numbers, np.int64)


def text_of(offset: int) -> bytes:
    return b"message %d %s" % (offset, b"x" * (offset % 7))


def batch_of(offsets: list[int], with_keys: bool) -> MessageBatch:
    keys = Blobs.of([b"k%d" % offset for offset in offsets]) if with_keys else None
    return MessageBatch(Blobs.of([text_of(offset) for offset in offsets]), keys)


@dataclass
class Naive:
    """A model: due times and keys by offset."""

    there: dict[int, tuple[int, bytes]] = field(default_factory=dict)


def put(staged: Staged, naive: Naive, keys: dict[int, int], with_keys: bool) -> None:
    order = sorted(keys, key=lambda offset: (keys[offset], offset))
    rows = Rows.fresh(column(*(keys[offset] for offset in order)), column(*order))
    staged.put(rows, batch_of(order, with_keys))
    for offset in order:
        naive.there[offset] = keys[offset], b"k%d" % offset if with_keys else b""


@settings(deadline=None)
@given(data=st.data())
def test_found_messages_are_those_that_were_put(data: st.DataObject) -> None:
    """Messages are put, put again, merged and dropped; each key finds its own message."""
    staged, naive = Staged(), Naive()
    for _ in range(data.draw(st.integers(1, 12))):
        offsets = st.integers(0, 99)
        keys = data.draw(st.dictionaries(offsets, st.integers(0, 20), min_size=1, max_size=20))
        put(staged, naive, keys, data.draw(st.booleans()))
        if data.draw(st.booleans()):
            stays = OffsetSet()
            stays.add(column(*data.draw(st.lists(st.integers(0, 99)))))
            staged.keep(stays.contains)
            gone = [offset for offset in naive.there if offset not in stays]
            for offset in gone:
                if not found_in(staged, naive, [offset]):
                    del naive.there[offset]
        wanted = data.draw(st.lists(st.integers(0, 99), unique=True, max_size=30))
        found = found_in(staged, naive, wanted)
        assert found == {offset for offset in wanted if offset in naive.there}
        staged._check()


def found_in(staged: Staged, naive: Naive, wanted: list[int]) -> set[int]:
    """Return which of these are found. Assert that each has its own payload and key."""
    due = [naive.there.get(offset, (0, b""))[0] for offset in wanted]
    picks = staged.find(column(*due), column(*wanted))
    found: set[int] = set()
    for pick in picks:
        positions = pick.positions.tolist()
        batch = assemble(len(positions), [pick._replace(positions=np.arange(len(positions)))])
        offsets = [wanted[position] for position in positions]
        assert batch.payloads.to_list() == [text_of(offset) for offset in offsets]
        keys = [b""] * len(positions) if batch.keys is None else batch.keys.to_list()
        assert keys == [naive.there[offset][1] for offset in offsets]
        assert not found & set(offsets), "a message is found twice"
        found |= set(offsets)
    return found


def test_a_message_that_was_moved_is_not_found_under_its_old_time() -> None:
    staged, naive = Staged(), Naive()
    put(staged, naive, {7: 100, 8: 100}, with_keys=False)
    assert [pick.positions.tolist() for pick in staged.find(column(200, 100), column(7, 8))] == [
        [1]
    ]


def test_lowest_ranks_are_read_first_and_the_rest_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V5: with room for two of four rows, the urgent ones are read, in the index's order."""
    monkeypatch.setattr(module, "_LEAST_ROWS", 2)
    staged = Staged()
    traits = traits_of(
        MessageBatch(Blobs.empty(4), None, None, np.array([90, 10, 50, 20], np.uint8))
    )
    rows = Rows.fresh(column(1, 2, 3, 4), column(11, 12, 13, 14), traits)
    two = int(2 * (100 + module._ROW_BYTES))
    now = staged.begin_read(rows, 1_000, two, 100.0)
    assert now.offsets.tolist() == [12, 14]
    assert staged.expected == 2
    assert staged.wants_read
    assert (
        staged.begin_read(
            staged.take_expected(lambda all_: np.ones(all_.height, bool)), 1_000, 0, 100.0
        ).height
        == 0
    )
    assert not staged.wants_read, "without room it does not ask for a read again"
    staged.find(column(1, 1), column(1, 2))
    assert staged.wants_read, "some were delivered, so there may be room"


def test_finished_messages_free_their_memory() -> None:
    """Memory is bounded by the messages held, not by those put before."""
    staged, naive = Staged(), Naive()
    for first in range(0, 10_000, 1_000):
        put(staged, naive, dict.fromkeys(range(first, first + 1_000), 5), with_keys=True)
    full = staged.size_bytes
    held = OffsetSet()
    held.add(column(*range(9_000, 10_000)))
    staged.keep(held.contains)
    assert staged.size_bytes <= full * 0.2
    staged.keep(OffsetSet().contains)
    assert staged.size_bytes == Staged().size_bytes
