"""The output of the demo: its steps, and a picture of due and arrived messages.

The picture has a row of bars for due messages and one for arrived messages. On a terminal the
picture is live. Elsewhere the steps are printed as they happen.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from escapement.cli.demo.ledger import Arrival, Ledger, Outage

_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = 56  # bars in a row: with its label, a row fits a terminal of 80 columns
_SVG_COLUMNS: Final = 80
_LATEST: Final = 6  # the number of latest arrivals in the picture
_FRAMES_PER_SECOND: Final = 10


class Screen:
    """The display of one demo, a context manager around the whole demo."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._console = Console(highlight=False)
        self._steps: list[Text] = []
        self._span_ms = (0, 1)
        self._due_ms: list[int] = []
        self._live = Live(
            console=self._console,
            refresh_per_second=_FRAMES_PER_SECOND,
            get_renderable=self._picture,
            auto_refresh=self._console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()
        if self._console.is_terminal:
            self._console.print(self._picture())

    def step(self, at_s: float, what: str, style: str = "") -> None:
        """Show a step of the demo, which happened ``at_s`` seconds after its beginning."""
        line = Text(f"{at_s:5.1f} s  {what}", style)
        self._steps.append(line)
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)

    def span(self, first_ms: int, last_ms: int) -> None:
        """Set the time span that the bars show."""
        self._span_ms = (first_ms, last_ms)

    def due(self, due_ms: Iterable[int]) -> None:
        """Add the due times of messages to the picture."""
        self._due_ms.extend(due_ms)

    # -- the picture -------------------------------------------------------------------

    def _picture(self) -> RenderableType:
        ledger = self._ledger
        arrived_ms = [arrival.at_ms for arrival in ledger.arrivals]
        # Scale by due times: the burst of arrivals after the outage would flatten all other bars.
        most = max(*self._counts(self._due_ms), 1)
        bars = Table.grid(padding=(0, 2))
        bars.add_row("due", Text(self._bars(self._due_ms, most), "cyan"))
        bars.add_row("arrived", Text(self._bars(arrived_ms, most), "green"))
        figures = Text.assemble(
            "pending ",
            (f"{ledger.pending:,}", "bold"),
            "   delivered ",
            (f"{ledger.delivered:,}", "bold"),
            "   early ",
            (str(ledger.early), "bold"),
        )
        return Group(*self._steps, "", bars, "", figures, "", self._latest())

    def _latest(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("message", "due", "arrived"):
            table.add_column(name)
        table.add_column("late", justify="right")
        for arrival in self._ledger.arrivals[-_LATEST:]:
            table.add_row(
                f"reminder {arrival.number}",
                _time(arrival.due_ms),
                _time(arrival.at_ms),
                f"{arrival.late_ms:,} ms",
            )
        return table

    def _counts(self, times_ms: list[int]) -> list[int]:
        first_ms, last_ms = self._span_ms
        counts = [0] * _COLUMNS
        for at_ms in times_ms:
            column = (at_ms - first_ms) * _COLUMNS // (last_ms - first_ms)
            if 0 <= column < _COLUMNS:
                counts[column] += 1
        return counts

    def _bars(self, times_ms: list[int], most: int) -> str:
        top = len(_BARS) - 1
        heights = [-(-min(count, most) * top // most) for count in self._counts(times_ms)]
        return "".join(_BARS[height] for height in heights)

    # -- the end -----------------------------------------------------------------------

    def verdict(self, outage: Outage | None) -> None:
        """Print the figures, and whether every promise was kept."""
        self._console.print(self._verdict(outage))

    def save_svg(self, file: Path, outage: Outage | None) -> None:
        """Write the last picture and the verdict of this run to ``file``, as an SVG."""
        recorder = Console(
            file=io.StringIO(),
            record=True,
            width=_SVG_COLUMNS,
            force_terminal=True,
            color_system="truecolor",
            highlight=False,
        )
        recorder.print(self._picture())
        recorder.print(self._verdict(outage))
        recorder.save_svg(str(file), title="escapement demo")

    def _verdict(self, outage: Outage | None) -> RenderableType:
        ledger = self._ledger
        p50, p99, most = ledger.lateness_ms(outage)
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(justify="right", style="bold")
        table.add_column()
        table.add_row(f"{ledger.sent:,}", "sent, each with a receipt")
        table.add_row(f"{ledger.delivered:,}", "delivered")
        table.add_row(_judged(ledger.pending), "lost")
        table.add_row(_judged(ledger.early), "early")
        table.add_row(_judged(ledger.duplicates), "delivered again after their acknowledgement")
        table.add_row(
            f"{ledger.again:,}",
            "delivered again because the kill interrupted their acknowledgement",
        )
        table.add_row(f"{p50:,.0f} ms", f"median lateness; p99 {p99:,.0f}, maximum {most:,.0f}")
        if outage is not None:
            held_up = ledger.held_up(outage)
            table.add_row(
                f"{len(held_up):,}", f"due while the broker was down; {_caught_up(held_up)}"
            )
        if ledger.kept:
            end = Text("Every promise was kept.", "bold green")
        else:
            end = Text("A promise was broken.", "bold red")
        return Group("", table, "", end)


def _judged(count: int) -> Text:
    return Text(f"{count:,}", "bold green" if count == 0 else "bold red")


def _caught_up(held_up: list[Arrival]) -> str:
    if not held_up:
        return "none was held up"
    return f"they arrived up to {max(a.late_ms for a in held_up) / 1000:.1f} s late"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
