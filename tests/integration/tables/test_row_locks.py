"""Which rows a broker locks while it claims, acknowledges and retries others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from escapement.storage.engine.base import Connection
from escapement.tables.discovery import Discovery
from escapement.tables.row_statements import RowStatements, Versions
from support.database.message_tables import CURRENT, FIRST
from support.tables.shops import Shop


@pytest.fixture
def connection(shop: Shop) -> Iterator[Connection]:
    with closing(shop.engine.connect()) as connection:
        yield connection


@pytest.mark.parametrize("ddl", [CURRENT, FIRST])
@pytest.mark.parametrize("what", ["claim", "acknowledge"])
def test_only_the_given_rows_are_locked(
    shop: Shop, connection: Connection, ddl: str, what: str
) -> None:
    """V8: an application, and other connections of the broker, may change the others meanwhile."""
    shop.run(ddl)
    time = "time_scheduled" if ddl == FIRST else "time_next"
    for id in range(1, 24):
        shop.insert("my_message", id=id, **{time: 5})
    shop.run("ANALYZE TABLE my_message")
    statements = RowStatements(Discovery().look(connection).good["my_message"])
    ids = list(range(1, 24, 2))
    some = np.arange(len(ids))
    connection.begin()
    if what == "claim":
        zeros = np.zeros_like(some)
        known = Versions(zeros, zeros + 5, zeros + 50)
        claimed = statements.claim(connection, ids, known, some, some, 1 << 20, 1 << 20)
        assert claimed.taken.tolist() == some.tolist()
    else:
        assert statements.acknowledge(connection, ids, 7) == (set(ids), set())
    free = {id for (id,) in shop.run("SELECT id FROM my_message FOR UPDATE SKIP LOCKED")}
    connection.rollback()
    assert free == set(range(1, 24)) - set(ids)
