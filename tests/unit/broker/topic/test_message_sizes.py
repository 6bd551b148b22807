"""What is known of the size of a topic's messages."""

from __future__ import annotations

from escapement.broker.topic.message_sizes import Sizes
from escapement.message import Blobs, MessageBatch


def batch(size_bytes: int) -> MessageBatch:
    return MessageBatch(Blobs.of([bytes(size_bytes)] * 10))


def test_the_mean_is_that_of_messages_and_of_nothing_that_was_assumed() -> None:
    """P10: a quota of bytes counts by it; with 16 KiB of nothing in it, it would drop too much."""
    sizes = Sizes()
    assert sizes.mean_bytes == 0.0, "nobody knows"
    sizes.saw(batch(100))
    assert sizes.mean_bytes == batch(100).size_bytes / 10
    sizes.saw(batch(200))
    assert 100 < sizes.mean_bytes < 200


def test_a_large_message_makes_frames_short_however_many_small_ones_follow() -> None:
    """What is fetched at once has a bound before its size is known."""
    sizes = Sizes()
    assert sizes.frame_messages(100_000, 1 << 20) == 64, "as if each had 16 KiB"
    sizes.saw(batch(100))
    assert sizes.frame_messages(100_000, 1 << 20) == 4096, "no more than 64 MiB of such"
    sizes.saw(batch(8 << 20))
    for _ in range(50):
        sizes.saw(batch(100))
    assert sizes.frame_messages(100_000, 1 << 20) == 8
