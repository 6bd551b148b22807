"""The progress of a job on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

# The shortest time between two changes of the line.
_PERIOD_S: Final = 0.2
_CLEAR: Final = "\r\x1b[K"


class ProgressLine:
    """A line on stderr that shows a changing text. Call ``tell`` only if ``wants`` is true."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next_s = 0.0

    @property
    def wants(self) -> bool:
        """Whether stderr is a terminal and it is time to show a new text."""
        return self._is_terminal and time.monotonic() >= self._next_s

    def tell(self, text: str) -> None:
        """Show ``text`` in place of the text before."""
        self._next_s = time.monotonic() + _PERIOD_S
        click.echo(_CLEAR + text, err=True, nl=False)

    def end(self) -> None:
        """Clear the line for the output that follows."""
        if self._next_s:
            click.echo(_CLEAR, err=True, nl=False)
