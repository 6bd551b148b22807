"""A wait of fixed length, on a clock that is set back at any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.wait_limit import WaitLimit

SPAN_MS = 10
STEPS = st.lists(
    st.tuples(st.sampled_from(["is out", "is out", "advance", "end"]), st.integers(0, 40)),
    max_size=25,
)


@given(STEPS)
def test_wait_never_lasts_longer_than_its_span(steps: list[tuple[str, int]]) -> None:
    """It ends a span after the earliest time at which it was asked about while it was running."""
    wait = WaitLimit(SPAN_MS)
    asked: list[int] = []
    over = False
    for step, now_ms in steps:
        if step == "end":
            wait.end()
            asked, over = [], False
        elif step == "advance":
            ends = bool(asked) and not over and now_ms >= min(asked) + SPAN_MS
            assert wait.advance(now_ms) == ends
            over |= ends
        else:
            asked += [] if over else [now_ms]
            over |= now_ms >= min(asked) + SPAN_MS
            assert wait.is_out(now_ms) == over
        assert wait.has_begun == bool(asked)
        assert wait.until_ms == (min(asked) + SPAN_MS if asked and not over else None)
