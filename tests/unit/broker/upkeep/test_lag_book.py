"""Lag counts since the last checkpoint are returned once, and not kept forever."""

from __future__ import annotations

from collections import Counter

import numpy as np

from escapement.broker.upkeep.lag_book import LagBook
from escapement.storage.encoding.lag import HOUR_MS, Lag, Tally
from escapement.storage.state.lag_table import LagRow


def lag(origin_id: int, hour: int, **counts: int) -> Lag:
    cells = np.array([int(cell[1:]) for cell in counts])
    return Lag(origin_id, hour * HOUR_MS, Tally(cells, np.array(list(counts.values()))))


def test_row_grows_until_an_hour_without_changes_and_then_another_begins() -> None:
    """B7: the ranges of journal entries do not overlap, and the counts add up."""
    book = LagBook()
    book.add(1, 5, lag(7, 0, c1=2))
    book.add(1, 6, lag(7, 0, c1=1, c2=1))
    assert book.take_changed(0, {7}) == [LagRow(0, 7, 1, 5, 6, {1: 3, 2: 1})]
    assert book.take_changed(HOUR_MS - 1, {7}) == []
    book.add(1, 9, lag(7, 0, c2=1))
    first = book.take_changed(HOUR_MS, {7})
    assert first == [LagRow(0, 7, 1, 5, 9, {1: 3, 2: 2})]
    assert book.take_changed(2 * HOUR_MS, {7}) == []
    assert not len(book)
    book.add(1, 12, lag(7, 0, c2=1))
    second = book.take_changed(2 * HOUR_MS, {7})
    assert second == [LagRow(0, 7, 1, 12, 12, {2: 1})]
    assert sum((Counter(row.counts) for row in first + second), Counter()) == {1: 3, 2: 3}


def test_hours_subscriptions_and_broker_epochs_have_separate_rows() -> None:
    """B7: later counts do not change taken rows, and deleted subscriptions have no rows."""
    book = LagBook()
    for epoch, seq, origin, hour in [(1, 9, 7, 0), (2, 1, 7, 0), (2, 2, 7, 1), (2, 2, 8, 1)]:
        book.add(epoch, seq, lag(origin, hour, c1=1))
    taken = book.take_changed(0, {7})
    assert sorted(row[:4] for row in taken) == [(0, 7, 1, 9), (0, 7, 2, 1), (HOUR_MS, 7, 2, 2)]
    book.add(2, 3, lag(7, 1, c1=1))
    assert {row.counts[1] for row in taken} == {1}
    assert len(book) == 3
