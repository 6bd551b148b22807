"""A JSON payload as a tree, whose lists and objects a page can fold. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

# Larger trees are shown as text.
_MOST_NODES: Final = 2_000
_MOST_DEPTH: Final = 24


class Node(NamedTuple):
    """A value of a tree.

    Attributes:
      name: its name in the object, or its number in the list, that has it; "" for the root.
      text: the value as JSON, or what a list or an object has: ``3 items``.
      children: the values in it; None if it is not a list or an object.
    """

    name: str
    text: str
    children: list[Node] | None = None


def json_tree(payload: bytes) -> Node | None:
    """Return a payload as a tree; None if it is neither a list nor an object, or is too large."""
    try:
        value = json.loads(payload.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list | dict):
        return None
    try:
        return _node("", value, _Room(), 0)
    except _TooLarge:
        return None


class _TooLarge(Exception):
    """Raised when a tree has too many nodes, or is too deep."""


class _Room:
    """How many nodes a tree may still have."""

    def __init__(self) -> None:
        self._left = _MOST_NODES

    def take(self, depth: int) -> None:
        self._left -= 1
        if not self._left or depth > _MOST_DEPTH:
            raise _TooLarge


def _node(name: str, value: Any, room: _Room, depth: int) -> Node:
    room.take(depth)
    if not isinstance(value, list | dict):
        return Node(_safe(name), _safe(json.dumps(value, ensure_ascii=False)))
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        pairs, unit = value.items(), "field"
    else:
        pairs, unit = enumerate(value), "item"
    text = f"{len(value):,} {unit}{'' if len(value) == 1 else 's'}"
    return Node(_safe(name), text, [_node(str(at), one, room, depth + 1) for at, one in pairs])


def _safe(text: str) -> str:
    # JSON may escape half of a character, which has no bytes.
    return text.encode(errors="backslashreplace").decode()
