"""A bar chart of the messages that fall due, with a line for each time span.

With a capacity, a mark in each line shows how many messages can be handled in that span.
Messages beyond the capacity are left over for the next span, as they would be for the consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from escapement.cli.output.table import console, counted
from escapement.spans import Spans

_BAR_WIDTH: Final = 50
# This many empty spans in a row, or more, are drawn as one line.
_EMPTY_SPANS: Final = 3
_DAY_MS: Final = 86_400_000


def draw(
    spans: Spans, counts: Sequence[int], pattern: str, capacities: Sequence[int] | None = None
) -> None:
    """Print the chart.

    Args:
      counts: how many messages fall due in each span; not all 0.
      pattern: the ``strftime`` format of a span's beginning.
      capacities: how many messages can be handled in each span.
    """
    behind = [0] * len(counts) if capacities is None else left_over(counts, capacities)
    most = max(*counts, *(capacities or ()), 0)
    table = Table(box=None, pad_edge=False, show_header=capacities is not None, header_style="bold")
    table.add_column("from")
    table.add_column("due", justify="right")
    table.add_column("", width=_BAR_WIDTH)
    if capacities is not None:
        table.add_column("left over", justify="right")
    empty = 0
    busy = [bool(count or left) for count, left in zip(counts, behind, strict=True)]
    for span, count in enumerate(counts):
        following = busy[span : span + _EMPTY_SPANS]
        if not busy[span] and (empty or (len(following) == _EMPTY_SPANS and not any(following))):
            empty += 1
            continue
        if empty:
            table.add_row(Text("..."))
            empty = 0
        begins = _named_at(spans, span).strftime(pattern)
        mark = None if capacities is None else capacities[span]
        left = [] if capacities is None else [f"{behind[span]:,}" if behind[span] else ""]
        table.add_row(begins, f"{count:,}", _bar(count, mark, most), *left)
    to = console()
    to.print(table)
    to.print(f"{counted(sum(counts), 'message')} to fall due in this time")
    if capacities is not None:
        to.print(_verdict(counts, capacities, behind))


def left_over(counts: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """Return the backlog at the end of each span, given the capacity of each."""
    found = []
    waiting = 0
    for count, capacity in zip(counts, capacities, strict=True):
        waiting = max(waiting + count - capacity, 0)
        found.append(waiting)
    return found


def _bar(count: int, capacity: int | None, most: int) -> Text:
    """Return a bar with a mark at the capacity; the part beyond the mark is red."""
    length = min(-(-count * _BAR_WIDTH // most), _BAR_WIDTH) if most else 0
    cells = "█" * length + " " * (_BAR_WIDTH - length)
    if capacity is None:
        return Text(cells)
    mark = min(capacity * _BAR_WIDTH // max(most, 1), _BAR_WIDTH - 1)
    over = "red" if count > capacity else ""
    return Text.assemble(cells[:mark], ("│", "bold"), (cells[mark + 1 :], over))


def _verdict(counts: Sequence[int], capacities: Sequence[int], behind: Sequence[int]) -> str:
    over = sum(count > capacity for count, capacity in zip(counts, capacities, strict=True))
    if not over:
        return "no span is over the capacity"
    what = "1 span is" if over == 1 else f"{over:,} spans are"
    return f"{what} over the capacity; {counted(max(behind), 'message')} left over at most"


def _named_at(spans: Spans, span: int) -> datetime:
    """Return the moment that names a span: its beginning, or the middle of a day.

    After a change of the clocks, a day may begin an hour earlier, on the date before.
    """
    within_ms = spans.by_ms // 2 if spans.by_ms >= _DAY_MS else 0
    return datetime.fromtimestamp((spans.begins_ms(span) + within_ms) / 1000).astimezone()
