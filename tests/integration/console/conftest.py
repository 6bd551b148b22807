"""The browser that the tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.console.chromium import Chromium, running_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with running_chromium() as running:
        yield running
