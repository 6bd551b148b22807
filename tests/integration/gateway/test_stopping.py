"""The gateway stops in order, and outlives its brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import trio

import escapement
from support.processes.broker import PATIENT, BrokerProcess
from support.processes.http_server import HttpServerProcess, gateway_process

TOPIC = "shop/eu/stops"
# Less than the time that requests in progress get at most.
STOP_S = 4.0


async def received(
    http: httpx.AsyncClient, wait: str = "20s", subscription: str = "s"
) -> list[Any]:
    answer = await http.post(f"subscriptions/{subscription}/receive", json={"wait": wait})
    assert answer.status_code == 200, answer.text
    messages: list[Any] = answer.json()["messages"]
    return messages


async def test_stopping_gateway_answers_requests_and_gives_messages_back(
    broker: BrokerProcess, gateway: HttpServerProcess, tmp_path: Path
) -> None:
    """B15: SIGTERM ends long polls, lets other requests finish, and frees received messages."""
    with gateway_process(tmp_path, broker.url) as stopped:
        async with (
            escapement.connect(broker.url, settings=PATIENT) as native,
            gateway.client(TOPIC) as there,
            stopped.client(TOPIC) as http,
        ):
            assert await received(there, "0s") == []
            await there.post("messages", content=b"first")
            assert len(await received(http)) == 1
            address = ("127.0.0.1", int(stopped.url.rpartition(":")[2]))
            async with await trio.open_tcp_stream(*address) as slow, trio.open_nursery() as nursery:
                head = f"POST /v1/topics/{TOPIC}/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                head += "Content-Length: 6\r\nExpect: 100-continue\r\n\r\n"
                await slow.send_all(head.encode())
                assert b"100" in await slow.receive_some()  # it has begun to read the body

                async def poll() -> None:
                    answer = await http.post("subscriptions/polled/receive", json={"wait": "60s"})
                    assert answer.status_code == 503
                    assert answer.json()["code"] == "shutting_down"
                    await slow.send_all(b"second")
                    assert (await slow.receive_some()).startswith(b"HTTP/1.1 201")

                nursery.start_soon(poll)
                while not await is_polled(native):  # noqa: ASYNC110 (in the broker)
                    await trio.sleep(0.01)
                with trio.fail_after(STOP_S):
                    assert await stopped.stop() == 0
            attempts: dict[str, int] = {}
            with trio.fail_after(30):
                while len(attempts) < 2:
                    got = await received(there)
                    attempts |= {one["payload"]["text"]: one["attempt"] for one in got}
                (polled,) = await received(there, subscription="polled")
            assert attempts == {"first": 2, "second": 1}
            assert (polled["payload"], polled["attempt"]) == ({"text": "second"}, 1)


async def is_polled(broker: escapement.Broker) -> bool:
    stats = await broker.admin("topics.stats", topic=TOPIC)
    polled = [one["consumers"] for one in stats["subscriptions"] if one["subscription"] == "polled"]
    return any(polled)


async def test_gateway_outlives_its_broker(tmp_path: Path) -> None:
    """B15: without a broker, requests fail with 504. With one, they succeed again."""
    broker = BrokerProcess(tmp_path / "data")
    with gateway_process(tmp_path, broker.url) as gateway:
        async with gateway.client(TOPIC) as http:
            away = await http.post("messages", content=b"x")
            assert (away.status_code, away.json()["code"]) == (504, "disconnected")
            assert away.json()["retryable"]
            assert away.headers["retry-after"] == "1"
            assert (await http.get(f"{gateway.url}/livez")).status_code == 200
            try:
                broker.start()
                assert await received(http, "0s") == []
                assert (await http.post("messages", content=b"x")).status_code == 201
                (message,) = await received(http)
                broker.kill()
                broker.start()
                acked = await http.post("subscriptions/s/ack", json={"offsets": [0]})
                assert acked.json() == {"count": 1}
                assert (await http.post("messages", content=b"y")).status_code == 201
                (message,) = await received(http)
                assert message["payload"] == {"text": "y"}
                broker.kill()
                async with trio.open_nursery() as nursery:

                    async def poll() -> None:
                        got = await received(http, "60s")
                        assert [one["offset"] for one in got] == [1]

                    nursery.start_soon(poll)
                    await trio.to_thread.run_sync(broker.start)
            finally:
                broker.remove()
            assert await gateway.stop() == 0
