"""The bounds of the brokers of one process, which divide its memory among them."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from escapement.broker.limits import DEFAULT_LIMITS, MIB

DIVIDED = [
    "commit_waiting_bytes",
    "index_memory_bytes",
    "index_cache_bytes",
    "window_messages",
    "lateness_cells",
    "staged_bytes",
    "active_topics",
]


def test_one_bundle_has_all_of_the_memory() -> None:
    assert DEFAULT_LIMITS.of_bundle(1) == DEFAULT_LIMITS


@pytest.mark.parametrize("count", [2, 16, 64])
def test_brokers_divide_the_memory_of_their_process(count: int) -> None:
    """Each has an equal part, or its least. All other bounds stay, but for one lane each."""
    limits = replace(DEFAULT_LIMITS, index_memory_bytes=3200 * MIB)
    whole, part = asdict(limits), asdict(limits.of_bundle(count))
    assert {name for name in whole if whole[name] != part[name]} == {*DIVIDED, "commit_lanes"}
    assert part["index_memory_bytes"] == 3200 * MIB // count
    for name in DIVIDED:
        assert whole[name] // count <= part[name] < whole[name]
    assert part["commit_lanes"] == 1


def test_bound_that_is_small_already_does_not_grow() -> None:
    limits = replace(DEFAULT_LIMITS, index_memory_bytes=MIB, active_topics=10)
    assert limits.of_bundle(16).index_memory_bytes == MIB
    assert limits.of_bundle(16).active_topics == 10
