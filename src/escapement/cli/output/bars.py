"""A bar chart of the messages that fall due, with a line for each time span.

A chart may show the *capacity* of each span, the number of messages that consumers can handle in
it, as a mark in the bar. Messages beyond the capacity are *left over*: consumers handle them in the
next spans, before or beside the messages that fall due there.
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
# At least this many spans in a row without messages are drawn as one line.
_EMPTY_SPANS: Final = 3
_DAY_MS: Final = 86_400_000


def draw(
    spans: Spans, counts: Sequence[int], pattern: str, capacities: Sequence[int] | None = None
) -> None:
    """Print the chart.

    Args:
      spans: the time spans.
      counts: the number of messages that fall due in each span; not empty.
      pattern: the ``strftime`` format in which the beginning of a span is shown.
      capacities: the capacity of each span; None for a chart without capacities.
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
    """Return the number of messages that are left over at the end of each span."""
    found = []
    waiting = 0
    for count, capacity in zip(counts, capacities, strict=True):
        waiting = max(waiting + count - capacity, 0)
        found.append(waiting)
    return found


def _bar(count: int, capacity: int | None, most: int) -> Text:
    """Return a bar for ``count`` messages, with a mark at the capacity.

    The part beyond the mark is red. A bar for ``most`` messages has the full width.
    """
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
    """Return the time by which the chart labels a span: its beginning, or the middle of a day.

    A span of a day has 24 hours. After a change to or from summer time it may begin at 23:00 of the
    day before, but its middle has the right date.
    """
    within_ms = spans.by_ms // 2 if spans.by_ms >= _DAY_MS else 0
    return datetime.fromtimestamp((spans.begins_ms(span) + within_ms) / 1000).astimezone()
