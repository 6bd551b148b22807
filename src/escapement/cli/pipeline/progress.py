"""How a job tells on a terminal how far it has come."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

# How often a line that is being looked at changes.
_PERIOD_S: Final = 0.2
_CLEAR: Final = "\r\x1b[K"


class ProgressLine:
    """One line on stderr that changes; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next_s = 0.0

    @property
    def wants(self) -> bool:
        """Whether it is time to tell something new."""
        return self._shown and time.monotonic() >= self._next_s

    def tell(self, text: str) -> None:
        """Show ``text`` in the place of what was told before."""
        self._next_s = time.monotonic() + _PERIOD_S
        click.echo(_CLEAR + text, err=True, nl=False)

    def end(self) -> None:
        """Leave the line empty, for what comes after it."""
        if self._next_s:
            click.echo(_CLEAR, err=True, nl=False)
