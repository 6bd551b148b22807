"""The changes since the last checkpoint, noted after each group commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from escapement.broker.upkeep.lag_book import LagBook
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.state.checkpoint import ProducerRow


@dataclass(slots=True)
class Progress:
    """The journal position of each lane, and the state that the next checkpoint must write."""

    positions: dict[int, JournalPosition]  # of the last applied group commit, by lane
    # By lane, up to where acknowledgements are applied. During a recovery these are applied before
    # the messages are in the index, so this is later than ``positions``.
    finished: dict[int, JournalPosition]
    # By lane, up to where a checkpoint may claim that the index has all messages, while it lacks
    # some that are before ``positions``; None if it lacks none.
    claimed: dict[int, JournalPosition] | None = None
    touched: set[int] = field(default_factory=set)  # ids of changed topics
    producers: dict[int, ProducerRow] = field(default_factory=dict)  # by producer id
    keyed: set[int] = field(default_factory=set)  # ids of topics that remember dedup keys
    replacing: set[int] = field(default_factory=set)  # ids of topics that have replace keys
    lags: LagBook = field(default_factory=LagBook)

    def covered(self) -> dict[int, JournalPosition]:
        """Return the position of each lane up to which the index has all messages."""
        return dict(self.positions if self.claimed is None else self.claimed)
