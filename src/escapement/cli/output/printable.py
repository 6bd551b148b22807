"""Text of messages on a terminal, whose control characters could change what an operator sees."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Return a text with escapes for control characters, except for those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
