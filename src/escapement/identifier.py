"""Names of tables and columns in SQL text that people also run in sessions of their own."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name in backticks, which quote names in every SQL mode of a server."""
    return "`" + name.replace("`", "``") + "`"
