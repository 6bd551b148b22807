"""How far a broker has come since its last checkpoint, kept by whoever hears of commits."""

from __future__ import annotations

from dataclasses import dataclass, field

from escapement.broker.upkeep.lagbook import LagBook
from escapement.storage.checkpoint import ProducerRow
from escapement.storage.journal.journal import JournalPosition


@dataclass(slots=True)
class Progress:
    """See the module's docstring."""

    positions: dict[int, JournalPosition]  # by lane: the last group that was taken in
    touched: set[int] = field(default_factory=set)  # topics changed since the last checkpoint
    producers: dict[int, ProducerRow] = field(default_factory=dict)
    keyed: set[int] = field(default_factory=set)  # topics that remember dedup keys
    lags: LagBook = field(default_factory=LagBook)
