"""Tests of the spans that a census keeps, against a list of due times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.upkeep.span_counts import Grid, SpanTally
from escapement.spans import Spans

NOW_MS = 1_700_000_123_456
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
DELAYS_MS = st.one_of(
    st.integers(1, 3 * HOUR_MS), st.integers(1, 3 * DAY_MS), st.integers(1, 900 * DAY_MS)
)


def tally_of(grid: Grid, delays_ms: list[int]) -> SpanTally:
    """Count the delays in two parts, as a census counts topics."""
    tally = SpanTally(grid)
    for part in (delays_ms[::2], delays_ms[1::2]):
        tally.add(NOW_MS + np.sort(np.array(part, np.int64)))
    return tally


@given(
    st.lists(DELAYS_MS, max_size=60),
    st.sampled_from([MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, DAY_MS]),
    st.integers(1, 2000),
    st.integers(0, 95),
)
def test_counts_equal_those_of_a_list_where_spans_meet(
    delays_ms: list[int], by_ms: int, count: int, quarters: int
) -> None:
    """B6: hours and days from any quarter hour on; minutes for two days. Otherwise, estimates."""
    within_ms = min(count * by_ms, 400 * DAY_MS if by_ms > MINUTE_MS else 47 * HOUR_MS)
    spans = Spans.after(
        NOW_MS, by_ms=by_ms, within_ms=within_ms, origin_ms=quarters * 15 * MINUTE_MS
    )
    kept = tally_of(Grid(NOW_MS), delays_ms).result(10**6)
    counts, is_exact = kept.by(spans)
    due_ms = [NOW_MS + delay_ms for delay_ms in delays_ms]
    expected = [
        sum(begin <= one < begin + by_ms for one in due_ms)
        for begin in map(spans.begins_ms, range(spans.count))
    ]
    if max(delays_ms, default=0) < 399 * DAY_MS:  # the last span of the grid is none of these
        assert is_exact
        assert counts.tolist() == expected
    elif is_exact:
        assert counts.tolist() == expected
    assert int(kept.counts.sum()) == len(delays_ms)


@given(st.lists(DELAYS_MS, min_size=1, max_size=60), st.integers(1, 70))
def test_merged_spans_keep_the_number_and_tell_that_they_estimate(
    delays_ms: list[int], most: int
) -> None:
    """Invariant 9: the spans of a namespace are bounded, however its messages are spread."""
    fine = tally_of(Grid(NOW_MS), delays_ms).result(10**6)
    kept = fine.coarser(most)
    assert len(kept.counts) <= most
    assert (kept is fine) == (len(fine.counts) <= most)
    assert int(kept.counts.sum()) == len(delays_ms)
    assert bool((kept.begins_ms < kept.ends_ms).all())
    assert bool((kept.ends_ms[:-1] <= kept.begins_ms[1:]).all())
    assert int(kept.begins_ms[0]) >= NOW_MS
    days = Spans.after(NOW_MS, by_ms=DAY_MS, within_ms=901 * DAY_MS)
    counts, is_exact = kept.by(days)
    assert int(counts.sum()) == len(delays_ms)
    if is_exact:
        assert counts.tolist() == fine.by(days)[0].tolist()


def test_a_span_that_is_cut_is_spread_evenly() -> None:
    """B6: the answer says that it is an estimate."""
    kept = tally_of(Grid(NOW_MS), [10 * DAY_MS, 10 * DAY_MS + 14 * MINUTE_MS]).result(9)
    spans = Spans.after(NOW_MS + 9 * DAY_MS, by_ms=MINUTE_MS, within_ms=2 * DAY_MS)
    counts, is_exact = kept.by(spans)
    assert not is_exact
    assert int(counts.sum()) == 2


def test_times_before_the_first_span_count_for_its_beginning() -> None:
    """B6: a message table may have rows in memory that are due already."""
    for delays_ms in ([-DAY_MS, -HOUR_MS], [-DAY_MS, 5 * HOUR_MS]):
        kept = tally_of(Grid(NOW_MS), delays_ms).result(9)
        assert bool((kept.begins_ms < kept.ends_ms).all())
        counts, _ = kept.by(Spans.after(NOW_MS, by_ms=HOUR_MS, within_ms=DAY_MS))
        assert (int(counts[0]), int(counts.sum())) == (2 - (delays_ms[1] > 0), 2)


@pytest.mark.parametrize("count", [1, 5])
def test_two_tallies_add_up(count: int) -> None:
    """B6: everything is the sum of its namespaces."""
    grid = Grid(NOW_MS)
    whole = SpanTally(grid)
    for at in range(count):
        whole.add_all(tally_of(grid, [at * HOUR_MS + 1, DAY_MS]))
    hours, is_exact = whole.result(100).by(Spans.after(NOW_MS, by_ms=HOUR_MS, within_ms=2 * DAY_MS))
    assert is_exact
    assert int(hours.sum()) == 2 * count
    assert int(hours.max()) == count
