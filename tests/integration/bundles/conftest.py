"""An SQLite database for tests that would show the same on MySQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    """Return an empty database in a file."""
    opened = open_engine(None, tmp_path)
    yield opened
    opened.close()
