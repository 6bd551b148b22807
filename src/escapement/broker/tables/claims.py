"""The claims of the tables of one database, made one by one on a connection of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import trio

from escapement.broker.tables.claim import Claim
from escapement.broker.tables.served_table import ServedTable
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.tables.row_statements import Claimed, values_of

T = TypeVar("T")


class Claims:
    """The claims of one database.

    Args:
      connection: the connection for claims.
      run: makes blocking calls in a thread.
      find: returns the table with a topic id.
      on_ended: called in the event loop with each claim that has ended, before it is sent.
    """

    def __init__(
        self,
        connection: KeptConnection,
        run: Run,
        find: Callable[[int], ServedTable],
        on_ended: Callable[[ServedTable, Claim], None],
    ) -> None:
        self._connection = connection
        self._run = run
        self._find = find
        self._on_ended = on_ended
        self._one = trio.Lock()
        self._ended: deque[Claim] = deque()  # filled by threads
        self._tables: dict[Claim, ServedTable] = {}  # of claims that are not settled

    def begin(self, topic_id: int, offsets: Int64s) -> Claim:
        """Return a claim of some rows, which are in flight."""
        table = self._find(topic_id)
        claim = Claim(
            table.statements,
            table.cached,
            offsets,
            table.subscription.sending(offsets),
            self.offsets(table),
            self._make,
            self._ended.append,
        )
        self._tables[claim] = table
        return claim

    def offsets(self, table: ServedTable) -> Int64s:
        """Return the rows of a table whose claims are not settled."""
        claims = [claim.offsets for claim, of in self._tables.items() if of is table]
        return np.concatenate([np.zeros(0, np.int64), *claims])

    async def run_one(self, function: Callable[..., T], /, *arguments: object) -> T:
        """Make a blocking call of the pump, which is a claim, and settle claims that have ended."""
        async with self._one:
            try:
                return await self._run(function, *arguments)
            finally:
                while self._ended:
                    claim = self._ended.popleft()
                    self._on_ended(self._tables.pop(claim), claim)

    def _make(self, claim: Claim) -> Claimed:
        """Make a claim in the database. Runs in a thread."""
        name = claim.statements.table.name
        with values_of(name), self._connection.use() as connection:
            connection.begin()
            claimed = claim.statements.claim(
                connection, claim.ids, claim.known, claim.epochs, claim.times_ns
            )
            connection.commit()
            return claimed
