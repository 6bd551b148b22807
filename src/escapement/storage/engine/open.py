"""The choice of an engine: by URL, or SQLite if there is no URL."""

from __future__ import annotations

from pathlib import Path

from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql import MysqlEngine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine


def open_engine(url: str | None, data_dir: Path) -> Engine:
    """Return the engine for ``url``, or for the file in ``data_dir`` if ``url`` is None.

    Does not connect yet. Raises ``InvalidRequest`` if the URL is malformed.
    """
    if url is None:
        return SqliteEngine(data_dir / FILE_NAME)
    return MysqlEngine(MysqlAddress.parse(url))
