"""`escapement pipeline`: jobs that work on the log itself, each in a file of its own.

Begin with ``group.py``, which lists the jobs. ``source.py`` has the options that they share.
"""

from __future__ import annotations

from escapement.cli.pipeline.group import pipeline

__all__ = ["pipeline"]
