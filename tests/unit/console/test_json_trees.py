"""JSON payloads as trees."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from escapement.console.text.json_trees import Node, json_tree

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)


def value_of(node: Node, shape: Any) -> Any:
    """Return the value that a tree shows. ``shape`` tells lists from objects."""
    if node.children is None:
        return json.loads(node.text)
    if isinstance(shape, dict):
        pairs = zip(node.children, shape.values(), strict=True)
        return {child.name: value_of(child, inner) for child, inner in pairs}
    return [value_of(child, inner) for child, inner in zip(node.children, shape, strict=True)]


@given(st.lists(VALUES) | st.dictionaries(st.text(), VALUES))
def test_tree_has_the_values_of_the_payload(value: Any) -> None:
    tree = json_tree(json.dumps(value).encode())
    assert tree is not None
    assert value_of(tree, value) == value


def test_large_and_deep_payloads_have_no_tree() -> None:
    """They are shown as text, so a page stays small, and a deep payload does not fail."""
    assert json_tree(json.dumps([0] * 1_000).encode()) is not None
    assert json_tree(json.dumps([0] * 5_000).encode()) is None
    for depth in (100, 100_000):
        assert json_tree(b"[" * depth + b"]" * depth) is None
    for payload in (b"7", b"text", b"\xff", b""):
        assert json_tree(payload) is None


def test_half_of_a_character_can_be_shown() -> None:
    tree = json_tree(b'{"\\ud800": "\\udfff"}')
    assert tree is not None
    assert tree.children == [Node("\\ud800", '"\\udfff"')]
