"""The sizes of a topic's messages, as far as the broker has seen them, to limit frames.

The broker chooses how many messages to fetch for a frame, and learns their sizes only when it has
fetched them. So it derives the number from the recent mean size, and from the largest size seen,
because large messages may follow many small ones. Pure.
"""

from __future__ import annotations

from typing import Final

from escapement.message import MessageBatch
from escapement.sorting import bounds

# The sizes assumed before any message was seen, as after a start. They are large, so the first
# frames have few messages. The sizes of these then tell how many messages a frame may have.
_FIRST_MEAN_BYTES: Final = 16 * 1024
_FIRST_LARGEST_BYTES: Final = 16 * 1024
# The most bytes of a frame, if all of its messages were as large as the largest message seen.
_WORST_FRAME_BYTES: Final = 64 * 1024 * 1024
# The weight of the newest batch in the moving mean of message sizes.
_NEWEST: Final = 0.3


class Sizes:
    """The observed message sizes of one topic."""

    __slots__ = ("_largest_bytes", "_mean_bytes", "_seen")

    def __init__(self) -> None:
        self._mean_bytes = float(_FIRST_MEAN_BYTES)
        self._largest_bytes = _FIRST_LARGEST_BYTES
        self._seen = False

    def saw(self, batch: MessageBatch) -> None:
        """Take the sizes of a batch into account."""
        mean_bytes = batch.size_bytes / len(batch)
        # The mean size of the first batch replaces the assumed mean.
        self._mean_bytes += (_NEWEST if self._seen else 1.0) * (mean_bytes - self._mean_bytes)
        self._seen = True
        _, largest = bounds(batch.payloads.lengths)
        if largest > self._largest_bytes:
            self._largest_bytes = largest

    @property
    def mean_bytes(self) -> float:
        """The recent mean size of a message; 0 before any message was seen."""
        return self._mean_bytes if self._seen else 0.0

    def frame_messages(self, most: int, frame_bytes: int) -> int:
        """Return how many messages to fetch for one frame: 1 to ``most``.

        Args:
          most: the most messages in one frame.
          frame_bytes: the wanted size of a frame of messages of mean size.
        """
        fair = int(frame_bytes / max(self._mean_bytes, 1.0))
        safe = _WORST_FRAME_BYTES // self._largest_bytes
        return max(1, min(most, fair, safe))
