"""How many posts to an endpoint may be in progress: slow start, and halving. Pure.

The window begins with one post. Each success adds one, so a full window of successes doubles it: 1,
2, 4, 8. Each failure halves it. So a new endpoint, or one that has just recovered, is not flooded.
"""

from __future__ import annotations


class Window:
    """The window of one target.

    Args:
      most: its largest size.
    """

    __slots__ = ("_most", "size")

    def __init__(self, most: int) -> None:
        assert most >= 1
        self._most = most
        self.size = 1

    def succeeded(self) -> None:
        """Note that a post was answered as wished."""
        self.size = min(self.size + 1, self._most)

    def failed(self) -> None:
        """Note that a post failed."""
        self.size = max(self.size // 2, 1)
