"""A pool of connections has as many as are in use at the same time."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from escapement.storage.engine.base import Engine
from escapement.storage.engine.connection_pool import KEPT_S, ConnectionPool
from escapement.storage.engine.open import open_engine


def test_connections_are_used_again(engine: Engine) -> None:
    with closing(ConnectionPool(engine)) as pool:
        with pool.use() as first, pool.use() as second:
            assert first is not second
        with pool.use() as one, pool.use() as other:
            assert {one, other} == {first, second}


def test_connections_that_a_burst_opened_are_closed_when_they_are_not_used(engine: Engine) -> None:
    now_s = 0.0
    with closing(ConnectionPool(engine, clock_s=lambda: now_s)) as pool:
        with pool.use() as first, pool.use() as second, pool.use() as third:
            pass
        for _ in range(3):  # the last one to come back is used
            now_s += KEPT_S / 2
            with pool.use() as used:
                assert used is first
                assert used.execute("SELECT 1").rows == [(1,)]
        assert (first.ended, second.ended, third.ended) == (False, True, True)


def test_connection_is_closed_after_an_error_in_its_block(engine: Engine) -> None:
    with closing(ConnectionPool(engine)) as pool:
        with suppress(KeyError), pool.use() as first:
            raise KeyError
        assert first.ended
        with pool.use() as second:
            assert second is not first


def test_connection_that_the_server_has_closed_is_replaced(mysql_url: str, tmp_path: Path) -> None:
    engine = open_engine(mysql_url, tmp_path)
    with closing(engine), closing(ConnectionPool(engine)) as pool:
        with pool.use() as first:
            pass
        engine.kill([first.id])
        with pool.use() as second:
            assert second is not first
            assert second.execute("SELECT 1").rows == [(1,)]


def test_connection_in_use_is_closed_when_a_closed_pool_gets_it_back(engine: Engine) -> None:
    pool = ConnectionPool(engine)
    with pool.use() as used:
        pool.close()
        assert used.execute("SELECT 1").rows == [(1,)]
    assert used.ended
