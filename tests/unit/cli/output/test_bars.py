"""Bar charts of forecasts."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.cli.output.bars import draw, left_over
from escapement.errors import InvalidRequest
from escapement.spans import MAX_SPANS, Spans

DAY_MS = 86_400_000


@given(st.integers(0, 10**6), st.integers(1, 500), st.integers(1, 10**4), st.integers(-1000, 10**6))
def test_spans_cover_the_whole_period_and_are_aligned_with_the_origin(
    now_ms: int, by_ms: int, within_ms: int, origin_ms: int
) -> None:
    """B6."""
    spans = Spans.after(now_ms, by_ms=by_ms, within_ms=within_ms, origin_ms=origin_ms)
    assert (spans.first_ms - origin_ms) % by_ms == 0
    # Spans hold messages due after now_ms; the end is excluded.
    assert spans.begins_ms(0) <= now_ms + 1 < spans.begins_ms(1)
    if spans.count:
        assert spans.begins_ms(spans.count - 1) < spans.until_ms <= spans.begins_ms(spans.count)


def test_too_many_spans_are_refused() -> None:
    """B6."""
    Spans.after(0, by_ms=1, within_ms=MAX_SPANS + 1)
    with pytest.raises(InvalidRequest, match="Look less far ahead"):
        Spans.after(0, by_ms=1, within_ms=MAX_SPANS + 2)


def test_messages_over_the_capacity_of_a_span_move_to_the_next() -> None:
    """B6."""
    assert left_over([5, 30, 0, 0, 12], [10, 10, 10, 10, 10]) == [0, 20, 10, 0, 2]


def test_drawing_marks_the_capacity_and_the_messages_over_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """B6."""
    spans = Spans.after(0, by_ms=1000, within_ms=9000)
    counts = [5, 30, 0, 0, 0, 0, 0, 0, 12]
    draw(spans, counts, "%S", [10] * 9)
    lines = capsys.readouterr().out.splitlines()
    # A span in which nothing falls due is shown while messages are left over.
    assert [line.split()[0] for line in lines] == [
        *("from", "00", "01", "02", "...", "08", "47", "2")
    ]
    full, over = lines[1], lines[2]
    assert full.index("│") == over.index("│") > full.rindex("█")
    assert over.rindex("█") > over.index("│")
    assert over.split()[-1] == "20"
    assert lines[-1] == "2 spans are over the capacity; 20 messages left over at most"


def test_days_keep_their_names_when_the_clocks_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B6: 24-hour spans begin at 23:00 or 1:00 after the change."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for began in ("2026-10-24T00:00:00+02:00", "2026-03-28T00:00:00+01:00"):
            midnight_ms = int(datetime.fromisoformat(began).timestamp() * 1000)
            spans = Spans.after(
                midnight_ms, by_ms=DAY_MS, within_ms=4 * DAY_MS, origin_ms=midnight_ms
            )
            draw(spans, [1, 2, 3, 4], "%d")
            day = int(began[8:10])
            lines = capsys.readouterr().out.splitlines()[:4]
            assert [line.split()[0] for line in lines] == [str(day + n) for n in range(4)]
    finally:
        monkeypatch.undo()
        time.tzset()
