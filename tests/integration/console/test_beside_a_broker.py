"""The console in the process of a broker: ``escapement serve --console``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support.processes.broker import broker_process, until

MESSAGES = "/v1/topics/shop/eu/orders/messages"
SERVE = (sys.executable, "-m", "escapement", "serve", "--listen", "127.0.0.1:0")


async def test_console_beside_a_broker_shows_its_topics_and_stops_with_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o757)
    with broker_process(data, None, "--console", "127.0.0.1:0") as broker:
        await until(lambda: bool(broker.lines("the console is on")))
        address = broker.lines("the console is on")[0].rpartition("address=")[2]
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as visitor:
            assert "What falls due" in (await visitor.get("/")).text
            # The same port answers the requests of the gateway.
            sent = await visitor.post(MESSAGES, headers={"escapement-delay": "1h"})
            assert sent.status_code == 201, sent.text
            assert "shop/eu/orders" in (await visitor.get("/find?where=shop/eu")).text
            assert f"Run chmod o-w {data}." in (await visitor.get("/brokers")).text
        assert broker.stop() == 0


async def test_console_whose_port_is_taken_leaves_the_broker_running(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", None) as first:
        taken = f"127.0.0.1:{first.port}"
        with broker_process(tmp_path / "other", None, "--console", taken) as broker:
            await until(lambda: bool(broker.lines(f"the console on {taken} has ended")))
            assert "in use" in broker.lines("has ended")[0]
            assert broker.stop() == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--console", "0.0.0.0:0"], "--console 0.0.0.0 is not a loopback address"),
        (["--console", "--tls-cert", "cert.pem", "--tls-key", "key.pem"], "without TLS"),
    ],
)
def test_unsafe_console_is_refused(tmp_path: Path, options: list[str], why: str) -> None:
    command = [*SERVE, "--data", str(tmp_path / "data"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert why in ended.stderr
