"""The database of an application with an outbox."""

from __future__ import annotations

import pytest

from support.outbox.outboxes import Application


@pytest.fixture
def application(mysql_url: str) -> Application:
    made = Application(mysql_url)
    made.install()
    return made
