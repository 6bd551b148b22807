"""`escapement pipeline`: jobs that work on the log itself, each in a file of its own."""

from __future__ import annotations

from escapement.cli.pipeline.group import pipeline

__all__ = ["pipeline"]
