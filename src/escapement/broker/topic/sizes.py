"""How large a topic's messages are, as far as it is known: what bounds a frame.

Payloads are fetched by number, and only what was fetched has a size; so the number is
chosen by what the topic's messages weighed lately, and, because a run of small ones may be
followed by large ones, by the largest that was seen. Pure.
"""

from __future__ import annotations

from typing import Final

from escapement.message import MessageBatch

# Before anything was seen (a topic that was recovered): the first frames are short, and
# tell how long the next may be.
_FIRST_MEAN_BYTES: Final = 16 * 1024
_FIRST_LARGEST_BYTES: Final = 16 * 1024
# A frame of messages that all turn out as large as the largest is no larger than this.
_WORST_FRAME_BYTES: Final = 64 * 1024 * 1024
# How much the newest batch counts in the mean.
_NEWEST: Final = 0.3


class Sizes:
    """See the module's docstring."""

    __slots__ = ("_largest_bytes", "_mean_bytes", "_seen")

    def __init__(self) -> None:
        self._mean_bytes = float(_FIRST_MEAN_BYTES)
        self._largest_bytes = _FIRST_LARGEST_BYTES
        self._seen = False

    def saw(self, batch: MessageBatch) -> None:
        """Messages came by."""
        mean_bytes = batch.size_bytes / len(batch)
        # What is assumed beforehand says nothing about the messages that there are.
        self._mean_bytes += (_NEWEST if self._seen else 1.0) * (mean_bytes - self._mean_bytes)
        self._seen = True
        largest = int(batch.payloads.lengths.max())
        if largest > self._largest_bytes:
            self._largest_bytes = largest

    @property
    def mean_bytes(self) -> float:
        """What a message weighs, of late; 0 while none was seen."""
        return self._mean_bytes if self._seen else 0.0

    def frame_messages(self, most: int, frame_bytes: int) -> int:
        """How many messages to fetch for one frame: 1 to ``most``."""
        fair = int(frame_bytes / max(self._mean_bytes, 1.0))
        safe = _WORST_FRAME_BYTES // self._largest_bytes
        return max(1, min(most, fair, safe))
