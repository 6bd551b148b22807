"""The broker's progress since its last checkpoint, updated after each commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from escapement.broker.upkeep.lag_book import LagBook
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.state.checkpoint import ProducerRow


@dataclass(slots=True)
class Progress:
    """Lane positions and changed state since the last checkpoint."""

    positions: dict[int, JournalPosition]  # by lane: the last group that was applied
    touched: set[int] = field(default_factory=set)  # topics changed since the last checkpoint
    producers: dict[int, ProducerRow] = field(default_factory=dict)
    keyed: set[int] = field(default_factory=set)  # topics with dedup keys
    lags: LagBook = field(default_factory=LagBook)
