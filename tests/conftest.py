"""Fixtures for tests that need a database.

``engine`` runs a test on both engines. ``mysql_url`` is a new database on the session's
server. ``mysql_to_break`` is a server that a test may stop, kill and freeze. The server
starts when the first test asks for it. With ``ESCAPEMENT_TEST_MYSQL_URL``, tests that only
use SQL run on an existing server. Without a server these tests fail; they are never skipped.

Hypothesis examples have no time limit, because any of them may be slow on a busy machine. They are
the same in each run, so that no test fails by chance. With ``ESCAPEMENT_RANDOM=1`` they are random.
"""

from __future__ import annotations

import compileall
import os
import re
import signal
import uuid
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
import pytest
from hypothesis import HealthCheck, settings

import escapement
from escapement.storage import schema
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.open import open_engine
from support.database.servers import MysqlServer, SqlServer, private_server, run_sql
from support.memory_directory import memory_directory

for profile, fixed in (("fixed", True), ("random", False)):
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=fixed,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("random" if os.environ.get("ESCAPEMENT_RANDOM") else "fixed")

# Processes that a shell starts in the background ignore Ctrl-C, and so do their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

URL_VARIABLE = "ESCAPEMENT_TEST_MYSQL_URL"
SPARK_TESTS = "tests/spark/"
# In the text of a file whose tests share a fixture: its own one, or one of a conftest.py.
SHARING = re.compile(
    r'scope="module"|mysql_url_of_module|: Say\b|: BrokerProcess\b|: HttpServerProcess\b'
)
NO_SUCH_THREAD = 1094  # KILL of a connection that has already ended


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the package once, because tests start many processes that would each compile it."""
    if not hasattr(session.config, "workerinput"):
        compileall.compile_dir(Path(escapement.__file__).parent, quiet=2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests among the processes, so that none waits and none repeats work.

    All tests with a Spark session run in the same process, because they share the session. That
    process takes the longest, so tests without a session run in the others. The tests of a file
    that share a process or a database also run in the same process, those of other files anywhere.
    Acceptance tests mostly wait, so they run beside tests that compute.
    """
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def text(file: str) -> str:
        return (config.rootpath / file).read_text("utf-8")

    class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if nodeid.startswith(SPARK_TESTS):
                return SPARK_TESTS if "SparkSession" in text(file) else file
            return file if SHARING.search(text(file)) else nodeid

        def schedule(self) -> None:
            begins = self.collection is None
            super().schedule()
            if begins:
                for scope in spread(list(self.workqueue)):
                    self.workqueue.move_to_end(scope)

    return OneSpark(config, log)


def spread(scopes: list[str]) -> list[str]:
    """Return scopes with those of acceptance tests spread among others, and unit tests last."""
    folders = "tests/acceptance/", "tests/unit/", "tests/"
    found: dict[str, list[str]] = {folder: [] for folder in folders}
    for scope in scopes:
        found[next(folder for folder in folders if scope.startswith(folder))].append(scope)
    waiting, quick, others = found.values()
    places = [
        (at / len(some), scope) for some in (waiting, others) for at, scope in enumerate(some)
    ]
    return [scope for _, scope in sorted(places, key=itemgetter(0))] + quick


def _existing(url: str) -> SqlServer:
    to = MysqlAddress.parse(url)
    connect = {"user": to.user, "password": to.password.encode()}
    connect |= {"unix_socket": to.unix_socket} if to.unix_socket else {}
    query = "?" + url.partition("?")[2] if "?" in url else ""
    secret = f":{quote(to.password, safe='')}" if to.password else ""

    def on(database: str) -> str:
        user = quote(to.user, safe="")
        return f"mysql://{user}{secret}@{to.host}:{to.port}/{database}{query}"

    return SqlServer(on, lambda sql: run_sql({**connect, "host": to.host, "port": to.port}, sql))


@pytest.fixture(scope="session")
def private_mysql() -> Iterator[MysqlServer]:
    """Start the private server of the session.

    Its files are in memory, because each CREATE TABLE syncs a file, and most tests create all
    tables. A server that is killed loses nothing there either.
    """
    with private_server(directory=memory_directory()) as server:
        yield server


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Restore Python's handler of Ctrl-C, which a Spark session in this process replaces."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def mysql_to_break(private_mysql: MysqlServer) -> Iterator[MysqlServer]:
    """Return a server to stop, kill, freeze or set read-only, and restore it after the test."""
    yield private_mysql
    private_mysql.restore()
    private_mysql.admin("SET GLOBAL read_only = 0")


@pytest.fixture(scope="session")
def mysql_server(request: pytest.FixtureRequest) -> SqlServer:
    """Return the server that tests share for SQL."""
    if url := os.environ.get(URL_VARIABLE):
        return _existing(url)
    server: MysqlServer = request.getfixturevalue("private_mysql")
    return SqlServer(server.url, server.admin)


def _fresh_database(server: SqlServer) -> Iterator[str]:
    name = f"escapement_test_{uuid.uuid4().hex[:12]}"
    server.admin(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield server.url(name)
    # A connection that a test left open may hold locks that block DROP.
    mine = f"SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{name}'"
    for (connection_id,) in server.admin(mine):
        try:
            server.admin(f"KILL CONNECTION {connection_id}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != NO_SUCH_THREAD:
                raise
    server.admin(f"DROP DATABASE {name}")


@pytest.fixture
def mysql_url(mysql_server: SqlServer) -> Iterator[str]:
    """Return the URL of a database for this test only."""
    yield from _fresh_database(mysql_server)


@pytest.fixture(scope="module")
def mysql_url_of_module(mysql_server: SqlServer) -> Iterator[str]:
    """Return the URL of a database for the tests of one file."""
    yield from _fresh_database(mysql_server)


@pytest.fixture(params=["sqlite", "mysql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Run a test on an empty database of each engine."""
    url = request.getfixturevalue("mysql_url") if request.param == "mysql" else None
    opened = open_engine(url, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """Return a connection to a database with all of our tables."""
    schema.migrate(engine)
    connection = engine.connect()
    yield connection
    connection.close()
