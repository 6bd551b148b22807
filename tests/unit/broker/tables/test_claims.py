"""Claims whose transactions fail."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from escapement.broker.tables.cached_rows import CachedRows
from escapement.broker.tables.claim import Claim, Sending
from escapement.broker.tables.claims import Claims
from escapement.errors import StorageError, StorageUnavailable
from escapement.storage.engine.base import Engine
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.tables.columns import Column, Layout
from escapement.tables.directives import Directives
from escapement.tables.discovery import MessageTable
from escapement.tables.row_statements import RowStatements, Versions

DIRECTIVES = Directives(
    ack_wait_ms=30_000,
    min_backoff_ms=0,
    max_backoff_ms=None,
    purge_after_ms=1,
    batch_size=10,
    cache_size=10,
    poll_interval_ms=1_000,
)
ID = Column("id", "bigint", "bigint", False, False)
LAYOUT = Layout("current", ID, (), ("id",), "PRIMARY", None, frozenset(), 1 << 62, False)


class Server:
    """A server that refuses all statements, and ends after some transactions."""

    location = "somewhere"
    ended = False

    def __init__(self, transactions: int) -> None:
        self.left = transactions
        self.begun = 0

    def connect(self) -> Server:
        return self

    def begin(self) -> None:
        self.begun += 1
        if self.begun > self.left:
            raise StorageUnavailable("lost")

    def execute(self, *_: Any) -> Any:
        raise StorageError("refused")

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def claims_on(server: Server) -> Claims:
    async def run(*_: Any) -> Any:
        raise AssertionError

    nothing = cast(Any, None)
    return Claims(KeptConnection(cast(Engine, server)), run, nothing, nothing, nothing)


def claim_of(count: int) -> Claim:
    """Return a claim of this many rows."""
    statements = RowStatements(MessageTable("mails", "escapement", DIRECTIVES, LAYOUT, (ID,), ()))
    zeros = np.zeros(count, np.int64)
    rows = CachedRows()
    ids = list(range(1, count + 1))
    offsets = rows.add(
        ids, [b"key"] * count, zeros, zeros.astype(np.uint32), Versions(zeros, zeros, zeros)
    )
    return Claim(statements, rows, offsets, Sending(zeros + 1, zeros + 7), np.zeros(0, np.int64))


def test_claims_of_a_group_stop_at_the_first_lost_connection() -> None:
    """Each claim would wait for the connection otherwise."""
    server = Server(transactions=2)
    group = [claim_of(1) for _ in range(5)]
    errors = claims_on(server)._make(group)
    assert [(str(error), claim) for error, claim in errors] == [("lost", None)]
    assert server.begun == 3  # all together, the first one alone, the second one
    assert [claim.has_failed for claim in group] == [False, True, True, True, True]


def test_refused_claim_is_divided_a_bounded_number_of_times() -> None:
    """So a table whose rows are all refused does not stop the others."""
    server = Server(transactions=1000)
    claim = claim_of(4096)
    ((error, whose),) = claims_on(server)._make([claim])
    assert (str(error), whose) == ("refused", claim)
    assert server.begun == 40
