"""The table of requests and rights in docs/reference/rights.md, as the documents have it."""

from __future__ import annotations

import re

_ROW = re.compile(r"^\| `([\w.]+)` \| (.*?) \|$", re.MULTILINE)
# One right: an action, and the words for its resource.
_RIGHT = re.compile(r"`(\w+)` on (.+)")


def rights_table(page: str) -> dict[str, list[tuple[str, str]]]:
    """Return the rights, each an action and the words for its resource, of each request."""
    found = {}
    for name, text in _ROW.findall(page):
        parts = [] if text == "any token" else text.split(" and ")
        matches = [_RIGHT.fullmatch(part) for part in parts]
        found[name] = [(match[1], match[2]) for match in matches if match]
        assert len(found[name]) == len(parts), text
    return found
