"""The database of an application with message tables."""

from __future__ import annotations

import pytest

from support.tables.shops import Shop


@pytest.fixture
def shop(mysql_url: str) -> Shop:
    return Shop(mysql_url)
