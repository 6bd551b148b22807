"""The claims of the tables of one database, made in group commits on a connection of their own.

A claim begins when the sender wants its messages. While a transaction is being committed, the
claims that begin wait, and the next transaction makes them together. So many tables whose rows are
due at the same time share a commit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import trio

from escapement.broker.tables.claim import Claim
from escapement.broker.tables.served_table import ServedTable
from escapement.errors import StorageError, StorageUnavailable
from escapement.message import Int64s
from escapement.storage.blocking import Run
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.tables.row_statements import values_of

T = TypeVar("T")

# The most rows of one transaction, unless one claim has more.
_MOST_ROWS: Final = 8_192


class Claims:
    """The claims of one database.

    Args:
      connection: the connection for claims.
      run: makes blocking calls in a thread.
      find: returns the table with a topic id.
      on_made: called in the event loop with each claim that was made, before it is sent.
      on_trouble: called in the event loop with each error, and the table that it concerns; None
        for the whole database.
    """

    def __init__(
        self,
        connection: KeptConnection,
        run: Run,
        find: Callable[[int], ServedTable],
        on_made: Callable[[ServedTable, Claim], None],
        on_trouble: Callable[[StorageError, ServedTable | None], None],
    ) -> None:
        self._connection = connection
        self._run = run
        self._find = find
        self._on_made = on_made
        self._on_trouble = on_trouble
        self._waiting: deque[Claim] = deque()
        self._begun = trio.Event()
        self._tables: dict[Claim, ServedTable] = {}  # of claims that are not settled
        # The claims that are not settled, by the calls that the sender makes for them.
        self._made: dict[Callable[..., object], tuple[Claim, trio.Event]] = {}

    def begin(self, topic_id: int, offsets: Int64s) -> Claim:
        """Return a claim of some rows, which are in flight."""
        table = self._find(topic_id)
        claim = Claim(
            table.statements,
            table.cached,
            offsets,
            table.subscription.sending(offsets),
            self.offsets(table),
        )
        self._tables[claim] = table
        self._made[claim.read_there] = claim, trio.Event()
        self._waiting.append(claim)
        self._begun.set()
        return claim

    def offsets(self, table: ServedTable) -> Int64s:
        """Return the rows of a table whose claims are not settled."""
        claims = [claim.offsets for claim, of in self._tables.items() if of is table]
        return np.concatenate([np.zeros(0, np.int64), *claims])

    async def wait(self, function: Callable[..., T], /, *arguments: object) -> T:
        """Wait until a claim is made, settle it, and return its messages.

        To the pump, this is the runner of blocking calls.

        Args:
          function: the method ``read_there`` of a claim that has begun.
        """
        claim, made = self._made[function]
        await made.wait()
        del self._made[function]
        self._on_made(self._tables.pop(claim), claim)
        return function(*arguments)

    # -- the task ------------------------------------------------------------------

    async def run(self) -> None:
        """Make claims until cancelled."""
        while True:
            while not self._waiting:
                self._begun = trio.Event()
                await self._begun.wait()
            group = self._next()
            for error, claim in await self._run(self._make, group):
                self._on_trouble(error, None if claim is None else self._tables[claim])
            for claim in group:
                _, made = self._made[claim.read_there]
                made.set()

    def _next(self) -> list[Claim]:
        """Return the claims of the next transaction."""
        group = [self._waiting.popleft()]
        rows = len(group[0].ids)
        while self._waiting and rows + len(self._waiting[0].ids) <= _MOST_ROWS:
            group.append(self._waiting.popleft())
            rows += len(group[-1].ids)
        return group

    def _make(self, group: Sequence[Claim]) -> list[tuple[StorageError, Claim | None]]:
        """Make claims in one transaction. Runs in a thread.

        After an error that may concern one table only, each claim is made alone.

        Returns:
          The errors, each with the claim of the table that it concerns, or None.
        """
        began_s = time.monotonic()
        try:
            with self._connection.use() as connection:
                connection.begin()
                for claim in group:
                    with values_of(claim.statements.table.name):
                        claim.make(connection)
                connection.commit()
        except StorageError as error:
            for claim in group:
                claim.failed()
            if isinstance(error, StorageUnavailable):
                return [(error, None)]
            if len(group) > 1:
                return [one for claim in group for one in self._make([claim])]
            group[0].took_s = time.monotonic() - began_s
            return [(error, group[0])]
        return []
