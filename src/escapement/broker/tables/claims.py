"""The claims of the tables of one database, made in group commits on a connection of their own.

A claim begins when the sender wants its messages. While a transaction is being committed, the
claims that begin wait, and the next transaction makes them together. So many tables whose rows are
due at the same time share a commit.

If a transaction fails for a reason that may concern one table only, each of its claims is made
alone. A claim that fails alone is divided into halves, and these again, until each row that the
database refuses to update is alone. So the other rows are sent.
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
from escapement.protocol.limits import MAX_FRAME_BYTES
from escapement.storage.blocking import Run
from escapement.storage.engine.base import TransactionAborted
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.engine.mysql.errors import concerns_table
from escapement.tables.row_statements import Claimed, values_of

T = TypeVar("T")

# The most rows of one transaction, unless one claim has more.
_MOST_ROWS: Final = 8_192
# The most bytes of the values that one transaction reads, besides rows of up to 16 KiB. It has room
# for at least one row of any size.
_MOST_BYTES: Final = MAX_FRAME_BYTES
# The most failures of a claim that is divided. The rows that are left are tried again later. Three
# refused rows among 4,096 need fewer.
_MOST_FAILURES: Final = 40
# A claim, and which of its rows.
_Part = tuple[Claim, slice]


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
        """Make claims, in one transaction if it does not fail. Runs in a thread.

        Returns:
          The errors, each with the claim of the table that it concerns, or None.
        """
        error = self._try([(claim, _whole(claim)) for claim in group])
        if error is None:
            return []
        errors: list[tuple[StorageError, Claim | None]] = []
        for claim in group:
            if isinstance(error, StorageUnavailable):  # the others would fail in the same way
                claim.has_failed = True
                continue
            began_s = time.monotonic()
            error = self._divide(claim, error if len(group) == 1 else None)
            claim.took_s = time.monotonic() - began_s
            claim.has_failed = error is not None
            if error is not None and not isinstance(error, StorageUnavailable):
                errors.append((error, claim))
        if isinstance(error, StorageUnavailable):
            errors.append((error, None))
        return errors

    def _divide(self, claim: Claim, error: StorageError | None) -> StorageError | None:
        """Make a claim alone, and in parts if it fails. Return an error of more than one row.

        Args:
          error: the error of the whole claim alone; None if it was not made alone yet.
        """
        parts, failures = [_whole(claim)], 0
        while parts:
            part = parts.pop()
            error = error or self._try([(claim, part)])
            if error is None:
                continue
            failures += 1
            if isinstance(error, StorageUnavailable | TransactionAborted):
                return error
            if concerns_table(error) and not self._is_usable(claim):
                return error
            if len(claim.ids[part]) == 1:
                claim.refuse(part.start, error)
            elif failures < _MOST_FAILURES:
                middle = (part.start + part.stop) // 2
                parts += [slice(middle, part.stop), slice(part.start, middle)]
            else:
                return error
            error = None
        return None

    def _is_usable(self, claim: Claim) -> bool:
        """Return whether the table of a claim can be used.

        A trigger may use another table, which does not exist, for some of the rows only.
        """
        try:
            with self._connection.transaction() as connection:
                claim.statements.try_claim(connection)
        except StorageError:
            return False
        return True

    def _try(self, parts: Sequence[_Part]) -> StorageError | None:
        """Make parts of claims in one transaction. Return the error if it fails."""
        left_bytes, made = _MOST_BYTES, list[Claimed]()
        try:
            with self._connection.transaction() as connection:
                for claim, rows in parts:
                    with values_of(claim.statements.table.name):
                        made.append(claim.make(connection, rows, left_bytes))
                    left_bytes -= sum(map(len, made[-1].payloads))
        except StorageError as error:
            return error
        for (claim, rows), claimed in zip(parts, made, strict=True):
            claim.made(rows, claimed)
        return None


def _whole(claim: Claim) -> slice:
    return slice(0, len(claim.ids))
