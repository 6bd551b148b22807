"""Tallies of acknowledgements, compared with a loop over messages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.errors import LogDamaged
from escapement.storage.encoding.attempts import RELEASED
from escapement.storage.encoding.buckets import BUCKETS, at_share, bucket_of, value_of
from escapement.storage.encoding.lag import (
    HELD,
    HOUR_MS,
    LATE,
    LATE_AGAIN,
    TRIED,
    UNSEEN,
    Handed,
    Tally,
    Timing,
    count_lags,
    decode_tally,
    encode_tally,
)
from support.faults.damaged_bytes import damaged

numbers = st.one_of(st.integers(0, 100), st.integers(0, 10**7), st.integers(0, 2**53))


@settings(max_examples=200)
@given(st.lists(numbers, min_size=1, max_size=50))
def test_bucket_value_is_exact_to_one_part_in_32(values: list[int]) -> None:
    """B7: exact up to 31, ascending, and below BUCKETS."""
    column = np.array(values)
    buckets = bucket_of(column)
    assert (buckets < BUCKETS).all()
    assert (np.diff(bucket_of(np.sort(column))) >= 0).all()
    for value, said in zip(values, value_of(buckets).tolist(), strict=True):
        assert abs(said - value) <= value / 32
    assert value_of(bucket_of(np.arange(32))).tolist() == list(range(32))
    assert bucket_of(np.array([-1, -(2**50)])).tolist() == [0, 0]


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1])
)
def test_value_at_a_share_equals_that_of_the_sorted_numbers(
    values: list[int], share: float
) -> None:
    """B7."""
    buckets, counts = np.unique(bucket_of(np.array(values)), return_counts=True)
    exact = sorted(values)[max(0, int(np.ceil(share * len(values))) - 1)]
    assert abs(at_share(buckets, counts, share) - exact) <= exact / 32


moments = st.integers(0, 3 * HOUR_MS)


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    at_ms = draw(moments)
    handed = []
    for _ in range(draw(st.integers(0, 3))):
        rows = draw(
            st.lists(st.tuples(moments, st.integers(1, 4), st.booleans()), min_size=1, max_size=5)
        )
        handed.append(
            Handed(
                draw(moments),
                np.array([wanted for wanted, _, _ in rows]),
                np.array([tries | (RELEASED if back else 0) for _, tries, back in rows]),
            )
        )
    return Timing(draw(st.integers(1, 2)), at_ms, handed, draw(st.integers(0, 2)))


def naive(found: list[Timing]) -> dict[tuple[int, int], Counter[int]]:
    """Return the counts, taken message by message."""
    counts: dict[tuple[int, int], Counter[int]] = {}

    def add(origin: int, at_ms: int, kind: int, value: int) -> None:
        cell = kind * BUCKETS + int(bucket_of(np.array([max(value, 0)]))[0])
        counts.setdefault((origin, at_ms // HOUR_MS * HOUR_MS), Counter())[cell] += 1

    for origin, at_ms, handed, unseen in found:
        for _ in range(unseen):
            add(origin, at_ms, UNSEEN, 0)
        for one in handed:
            for wanted_ms, attempts in zip(one.wanted_ms, one.attempts, strict=True):
                tries = int(attempts) & (RELEASED - 1)
                kind = LATE if tries == 1 else LATE_AGAIN
                add(origin, one.at_ms, kind, one.at_ms - int(wanted_ms))
                add(origin, one.at_ms, HELD, at_ms - one.at_ms)
                add(origin, one.at_ms, TRIED, tries)
    return counts


@settings(max_examples=200)
@given(st.lists(timings(), max_size=5))
def test_columns_are_counted_like_single_messages(found: list[Timing]) -> None:
    """B7: by subscription, hour of the delivery, kind and bucket, also after encoding."""
    counted = {}
    for lag in count_lags(found):
        tally = decode_tally(encode_tally(lag.tally))
        assert (np.diff(tally.cells) > 0).all()
        counted[lag.origin_id, lag.hour_ms] = Counter(
            dict(zip(tally.cells.tolist(), tally.counts.tolist(), strict=True))
        )
    assert counted == naive(found)


def test_a_long_column_is_counted_in_steps() -> None:
    """B7: the rest after the last step is counted too."""
    handed = [Handed(100, np.arange(1000), np.ones(1000, np.int64)) for _ in range(11)]
    (lag,) = count_lags([Timing(1, 500, handed, 0)])
    for kind in (LATE, HELD, TRIED):
        assert lag.tally.of_kind(kind)[1].sum() == 11_000
    assert not len(lag.tally.of_kind(UNSEEN)[0])


@settings(max_examples=100)
@given(
    st.lists(st.dictionaries(st.integers(0, 5000), st.integers(1, 2**40)), min_size=1, max_size=4)
)
def test_tallies_add_up(parts: list[dict[int, int]]) -> None:
    """B7."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    summed = Tally.sum([Tally.of(part) for part in parts])
    assert dict(zip(summed.cells.tolist(), summed.counts.tolist(), strict=True)) == dict(total)


@settings(max_examples=100)
@given(st.dictionaries(st.integers(0, 5000), st.integers(1, 2**40), min_size=1), st.data())
def test_a_changed_or_missing_byte_of_a_tally_is_noticed(
    counts: dict[int, int], data: st.DataObject
) -> None:
    """B7."""
    written = encode_tally(Tally.of(counts))
    with pytest.raises(LogDamaged):
        decode_tally(data.draw(damaged(written)))
