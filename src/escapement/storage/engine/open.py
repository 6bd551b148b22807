"""The one place that chooses an engine: by URL, or SQLite where there is none."""

from __future__ import annotations

from pathlib import Path

from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql import MysqlEngine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine


def open_engine(url: str | None, data_dir: Path) -> Engine:
    """The engine for ``url``, or for the file of ``data_dir`` when ``url`` is None.

    Connects to nothing yet. Raises ``InvalidRequest`` for a URL that cannot be meant.
    """
    if url is None:
        return SqliteEngine(data_dir / FILE_NAME)
    return MysqlEngine(MysqlAddress.parse(url))
