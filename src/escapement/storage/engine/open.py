"""The choice of a database engine: MySQL or MariaDB if there is a URL, otherwise SQLite."""

from __future__ import annotations

from pathlib import Path

from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine


def open_engine(url: str | None, data_dir: Path) -> Engine:
    """Return the engine of a broker's database, without connecting.

    Args:
      url: the URL of a MySQL or MariaDB database; None for a SQLite file in ``data_dir``.
      data_dir: the broker's data directory.

    Raises:
      InvalidRequest: if the URL is not valid.
    """
    if url is None:
        return SqliteEngine(data_dir / FILE_NAME)
    return MysqlEngine(MysqlAddress.parse(url))
