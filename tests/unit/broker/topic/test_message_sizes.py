"""The observed sizes of a topic's messages."""

from __future__ import annotations

from escapement.broker.topic.message_sizes import Sizes
from escapement.message import Blobs, MessageBatch


def batch(size_bytes: int) -> MessageBatch:
    return MessageBatch(Blobs.of([bytes(size_bytes)] * 10))


def test_mean_size_is_that_of_seen_messages_only() -> None:
    """P10: quotas in bytes use it; an assumed 16 KiB in it would drop too many messages."""
    sizes = Sizes()
    assert sizes.mean_bytes == 0.0, "no message was seen"
    sizes.saw(batch(100))
    assert sizes.mean_bytes == batch(100).size_bytes / 10
    sizes.saw(batch(200))
    assert 100 < sizes.mean_bytes < 200


def test_large_message_shortens_frames_even_after_many_small_ones() -> None:
    """The number of messages in a fetch is bounded before their size is known."""
    sizes = Sizes()
    assert sizes.frame_messages(100_000, 1 << 20) == 64, "each message counts as 16 KiB"
    sizes.saw(batch(100))
    assert sizes.frame_messages(100_000, 1 << 20) == 4096, "the maximum for small messages"
    sizes.saw(batch(8 << 20))
    for _ in range(50):
        sizes.saw(batch(100))
    assert sizes.frame_messages(100_000, 1 << 20) == 8
