"""What an application did in transactions of its own database, and what became of it.

It sends messages by an outbox, acknowledges messages together with their effects, and has a message
table. The rules for all messages check what came of the outbox.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.effects import Course, wrong_effects
from histories.history import History
from histories.table_rows import TableRows


@dataclass
class Transactions:
    """The acknowledgements, effects and rows, as of the last look at the database."""

    rows: TableRows = field(default_factory=TableRows)
    acked: set[Course] = field(default_factory=set)  # also if their rows are deleted since
    effects: Counter[Course] = field(default_factory=Counter)
    unlearned: int = 0  # acknowledgements that brokers have not learned

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield what brokers must still do."""
        if self.unlearned:
            yield f"lost (3): {self.unlearned} acknowledgements in transactions are not learned"
        yield from self.rows.unfinished()

    def violations(self, history: History) -> Iterator[str]:
        """Yield broken promises."""
        yield from self.rows.violations()
        yield from wrong_effects(self.acked, self.effects)
