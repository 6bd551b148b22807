"""The process list of the machine, which every user can see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def command_lines() -> Iterator[str]:
    """Yield the command line of each process, with spaces between its words."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_text(errors="replace").replace("\0", " ")
        except OSError:  # the process has ended
            continue
