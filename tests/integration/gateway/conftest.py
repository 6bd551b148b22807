"""A broker and a gateway, which the tests of a file share. Each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes.broker import BrokerProcess, broker_process
from support.processes.http_server import HttpServerProcess, gateway_process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpServerProcess]:
    with gateway_process(tmp_path_factory.mktemp("gateway"), broker.url) as running:
        yield running
