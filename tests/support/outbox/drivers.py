"""Sessions of an application on its database, each by another database driver.

Some drivers are missing. mysqlclient must be compiled, and the C extension of MySQL Connector needs
a newer OpenSSL than Debian 12 has.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import aiomysql
import asyncmy
import django
import django.conf
import mysql.connector
import mysql.connector.aio
import pymysql
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

from escapement.storage.engine.address import MysqlAddress

CHARSET: Final = "utf8mb4"


@dataclass(frozen=True)
class Session:
    """A session in a transaction. The next transaction begins at its end."""

    cursor: Callable[[], Any]  # returns what the functions of ``escapement.sql`` take
    commit: Callable[[], object]
    rollback: Callable[[], object]

    def run(self, statement: str) -> None:
        """Execute a statement of the application itself."""
        cursor = self.cursor()
        execute = getattr(cursor, "exec_driver_sql", None) or cursor.execute
        execute(statement)


# Opens a session for a ``with`` block. The second argument is whether it commits each statement.
Driver = Callable[[MysqlAddress, bool], AbstractContextManager[Session]]


def _where(to: MysqlAddress) -> dict[str, Any]:
    where = {"host": to.host, "port": to.port, "user": to.user, "password": to.password}
    return where | {"database": to.database}


@contextmanager
def by_pymysql(to: MysqlAddress, autocommit: bool) -> Iterator[Session]:
    connecting = pymysql.connect(
        **_where(to), charset=CHARSET, ssl_disabled=True, autocommit=autocommit
    )
    with closing(connecting) as connection, connection.cursor() as cursor:
        yield Session(lambda: cursor, connection.commit, connection.rollback)


@contextmanager
def by_connector(
    to: MysqlAddress, autocommit: bool, *, prepared: bool = False
) -> Iterator[Session]:
    connecting = mysql.connector.connect(
        **_where(to), charset=CHARSET, ssl_disabled=True, autocommit=autocommit, use_pure=True
    )
    with closing(connecting) as connection, closing(connection.cursor(prepared=prepared)) as cursor:
        yield Session(lambda: cursor, connection.commit, connection.rollback)


def _url(to: MysqlAddress, driver: str) -> sqlalchemy.URL:
    return sqlalchemy.URL.create(
        f"mysql+{driver}", to.user, to.password, to.host, to.port, to.database
    )


@contextmanager
def sqlalchemy_engine(to: MysqlAddress, driver: str, autocommit: bool) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(
        _url(to, driver),
        isolation_level="AUTOCOMMIT" if autocommit else "REPEATABLE READ",
        connect_args={"charset": CHARSET, "ssl_disabled": True},
    )
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def by_connection_of_sqlalchemy(to: MysqlAddress, autocommit: bool) -> Iterator[Session]:
    with sqlalchemy_engine(to, "pymysql", autocommit) as engine, engine.connect() as connection:
        yield Session(lambda: connection, connection.commit, connection.rollback)


@contextmanager
def by_session_of_sqlalchemy(to: MysqlAddress, autocommit: bool) -> Iterator[Session]:
    with (
        sqlalchemy_engine(to, "mysqlconnector", autocommit) as engine,
        sqlalchemy.orm.Session(engine) as session,
    ):
        yield Session(session.connection, session.commit, session.rollback)


@contextmanager
def django_connection(to: MysqlAddress) -> Iterator[Any]:
    """Connect ``django.db.connection``, with PyMySQL in the place of mysqlclient."""
    # Without these names, Python would import the modules again. Then ``pymysql.err`` would be
    # another module than before, with other exceptions.
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "pymysql":
            sys.modules[name.replace("pymysql", "MySQLdb", 1)] = module
    if not django.conf.settings.configured:
        django.conf.settings.configure()
    from django.db import connection, connections
    from django.db.backends.mysql.base import DatabaseWrapper

    django.setup()
    settings = {name.upper(): value for name, value in _where(to).items()}
    settings |= {"NAME": to.database, "OPTIONS": {"charset": CHARSET}}
    made = connections.configure_settings({"default": settings})
    connections["default"] = DatabaseWrapper(made["default"])
    try:
        yield connection
    finally:
        connection.close()
        del connections["default"]


@contextmanager
def by_django(to: MysqlAddress, autocommit: bool) -> Iterator[Session]:
    from django.db import transaction

    with django_connection(to) as connection, connection.cursor() as cursor:
        if autocommit:  # the default of Django
            yield Session(lambda: cursor, lambda: None, lambda: None)
            return
        block = transaction.atomic()
        block.__enter__()

        def end(rollback: bool) -> None:
            transaction.set_rollback(rollback)
            block.__exit__(None, None, None)
            block.__enter__()

        try:
            yield Session(lambda: cursor, partial(end, False), partial(end, True))
        finally:
            transaction.set_rollback(True)
            block.__exit__(None, None, None)


DRIVERS: Final[Mapping[str, Driver]] = {
    "PyMySQL": by_pymysql,
    "MySQL Connector": by_connector,
    "MySQL Connector, prepared": partial(by_connector, prepared=True),
    "Connection of SQLAlchemy": by_connection_of_sqlalchemy,
    "Session of SQLAlchemy": by_session_of_sqlalchemy,
    "Django": by_django,
}


# -- asynchronous drivers ----------------------------------------------------------


@dataclass(frozen=True)
class AsyncSession:
    """A session in a transaction, for asyncio."""

    cursor: Any  # the functions of ``escapement.sql`` refuse it
    execute: Callable[[str, tuple[Any, ...]], Awaitable[object]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]


AsyncDriver = Callable[[MysqlAddress], AbstractAsyncContextManager[AsyncSession]]


@asynccontextmanager
async def _session(connection: Any, cursor: Any) -> AsyncIterator[AsyncSession]:
    try:
        yield AsyncSession(cursor, cursor.execute, connection.commit, connection.rollback)
    finally:
        await cursor.close()


@asynccontextmanager
async def by_aiomysql(to: MysqlAddress) -> AsyncIterator[AsyncSession]:
    where = _where(to)
    connection = await aiomysql.connect(**where | {"db": where.pop("database")}, charset=CHARSET)
    try:
        async with _session(connection, await connection.cursor()) as session:
            yield session
    finally:
        connection.close()


@asynccontextmanager
async def by_asyncmy(to: MysqlAddress) -> AsyncIterator[AsyncSession]:
    connection = await asyncmy.connect(**_where(to), charset=CHARSET)
    try:
        async with _session(connection, connection.cursor()) as session:
            yield session
    finally:
        await connection.ensure_closed()


@asynccontextmanager
async def by_connector_of_asyncio(to: MysqlAddress) -> AsyncIterator[AsyncSession]:
    connection = await mysql.connector.aio.connect(**_where(to), charset=CHARSET, ssl_disabled=True)
    try:
        async with _session(connection, await connection.cursor()) as session:
            yield session
    finally:
        await connection.close()


@asynccontextmanager
async def sqlalchemy_engine_of_asyncio(to: MysqlAddress) -> AsyncIterator[Any]:
    engine = sqlalchemy.ext.asyncio.create_async_engine(
        _url(to, "aiomysql"), connect_args={"charset": CHARSET}
    )
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_of_asyncio(to: MysqlAddress) -> AsyncIterator[AsyncSession]:
    async with sqlalchemy_engine_of_asyncio(to) as engine, engine.connect() as connection:
        yield AsyncSession(
            connection, connection.exec_driver_sql, connection.commit, connection.rollback
        )


ASYNC_DRIVERS: Final[Mapping[str, AsyncDriver]] = {
    "aiomysql": by_aiomysql,
    "asyncmy": by_asyncmy,
    "MySQL Connector": by_connector_of_asyncio,
    "Connection of SQLAlchemy": by_sqlalchemy_of_asyncio,
}
