"""Random payloads: their sizes, and batches of them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from escapement.errors import InvalidRequest
from escapement.message import Blobs, MessageBatch

_SIZE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class PayloadSize(NamedTuple):
    """A range of payload sizes, both ends included, each size equally likely."""

    least_bytes: int
    most_bytes: int

    @classmethod
    def parse(cls, text: str) -> PayloadSize:
        """Parse a number of bytes such as ``100``, or a range such as ``50-500``.

        Raises:
          InvalidRequest: if ``text`` is neither.
        """
        match = _SIZE.fullmatch(text)
        size = cls(int(match[1]), int(match[2] or match[1])) if match else cls(1, 0)
        if size.least_bytes > size.most_bytes:
            raise InvalidRequest(f"{text!r} is not a payload size: write 100, or 50-500")
        return size

    def __str__(self) -> str:
        if self.least_bytes == self.most_bytes:
            return str(self.least_bytes)
        return f"{self.least_bytes}-{self.most_bytes}"

    def batch(self, rng: np.random.Generator, count: int) -> MessageBatch:
        """Return a batch of ``count`` messages with random payloads of random sizes."""
        lengths = rng.integers(self.least_bytes, self.most_bytes + 1, count, dtype=np.uint32)
        return MessageBatch(Blobs(lengths, rng.bytes(int(lengths.sum()))))
