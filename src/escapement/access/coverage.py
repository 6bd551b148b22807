"""The union of some patterns, to filter a listing by the grants of a role.

A listing may have a hundred thousand names, and a role 256 grants. So the patterns are first
reduced to beginnings of which none begins with another one. In sorted order, the last beginning
that is not greater than a name is then the only one that may cover the name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from escapement.access.pattern import Pattern


class Coverage:
    """The union of some patterns: everything that at least one of them covers."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._names: set[str] = set()
        self._beginnings: list[str] = []
        for pattern in sorted(patterns):
            if not pattern.is_wild:
                self._names.add(pattern.text)
                continue
            beginning = pattern.text[:-1]
            if not self._beginnings or not beginning.startswith(self._beginnings[-1]):
                self._beginnings.append(beginning)

    def __contains__(self, text: str) -> bool:
        """Return whether one pattern covers a full name, or a pattern; O(log patterns)."""
        at = bisect_right(self._beginnings, text)
        return (at > 0 and text.startswith(self._beginnings[at - 1])) or text in self._names

    def among(self, names: Iterable[str]) -> list[str]:
        """Return the full names that are covered, in the order given."""
        if self._beginnings == [""]:
            return list(names)
        return [name for name in names if name in self]
