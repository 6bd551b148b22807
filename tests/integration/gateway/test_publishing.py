"""Messages that are published over HTTP, as another client receives them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

import escapement
from support.processes.broker import PATIENT, BrokerProcess
from support.processes.http_server import HttpServerProcess

HOUR = timedelta(hours=1)


async def published(http: httpx.AsyncClient, content: bytes = b"x", **headers: str) -> Any:
    """Publish a message with headers such as ``Escapement_Delay``, and return the answer."""
    named = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
    answer = await http.post("messages", content=content, headers=named)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_headers_of_a_message(broker: BrokerProcess, gateway: HttpServerProcess) -> None:
    """B15: the body is the payload, and headers carry the rest."""
    topic = "shop/eu/headers"
    async with (
        escapement.connect(broker.url, settings=PATIENT) as native,
        gateway.client(topic) as http,
    ):
        properties = {"kind": "zażółć", "n": 7, "raw": {"base64": "/w=="}, "none": None}
        await published(
            http,
            b"\xff\x00",
            Escapement_Key="zażółć",
            Escapement_Priority="3",
            Escapement_Properties=json.dumps(properties, ensure_ascii=False),
            Escapement_Group="g",
        )
        async with native.consumer(topic, "s", position="earliest") as consumer:
            message = await consumer.receive(10)
            assert message is not None
            assert (message.payload, message.key, message.priority) == (b"\xff\x00", "zażółć", 3)
            assert message.properties == properties | {"raw": b"\xff"}
            assert message.group == "g"


async def test_times_and_keys_of_messages(gateway: HttpServerProcess) -> None:
    """B15: headers set the delay, the time, the spread, the idempotency key and the replace key."""
    async with gateway.client("shop/eu/times") as http:

        async def due(offset: int) -> datetime:
            return datetime.fromisoformat((await http.get(f"messages/{offset}")).json()["due_at"])

        at = (datetime.now(UTC) + HOUR).replace(microsecond=678000)
        first = await published(http, Escapement_At=at.isoformat(), Idempotency_Key="order ą")
        assert first == {
            "id": "shop/eu/times@0",
            "offset": 0,
            "duplicate": False,
            "replaced": None,
            "kept": False,
        }
        assert await due(0) == at
        again = await published(http, b"other", Idempotency_Key="order ą")
        assert again == first | {"duplicate": True}

        before = datetime.now(UTC)
        delayed = await published(http, Escapement_Delay="90m", Escapement_Replace_Key="one")
        assert before + 1.5 * HOUR - timedelta(milliseconds=1) <= await due(delayed["offset"])
        replacing = await published(http, Escapement_Delay="2h", Escapement_Replace_Key="one")
        assert replacing["replaced"] == delayed["id"]
        gone = await http.get(f"messages/{delayed['offset']}")
        assert gone.status_code == 404 or gone.json()["state"] == "cancelled"

        scattered = [
            await due((await published(http, Escapement_At=at.isoformat(), **spread))["offset"])
            for spread in [{"Escapement_Spread": "30m"}] * 3
        ]
        assert len(set(scattered)) == 3
        assert all(at <= one < at + HOUR / 2 for one in scattered)


@pytest.mark.parametrize(
    ("header", "value", "meaning"),
    [
        ("Escapement-Delay", "3 minutes", "A whole number and a unit: ms, s, m, h, d or w."),
        ("Escapement-At", "tomorrow", "A time with its offset from UTC (RFC 3339)."),
        ("Escapement-Priority", "300", "Expected `int` <= 255."),
    ],
)
async def test_wrong_header_is_named_with_its_meaning(
    gateway: HttpServerProcess, header: str, value: str, meaning: str
) -> None:
    """B15"""
    async with gateway.client("shop/eu/wrong") as http:
        refused = await http.post("messages", content=b"", headers={header: value})
        assert refused.status_code == 400
        detail = refused.json()["detail"]
        assert detail.startswith(f"The header {header} has the value {value!r}. ")
        assert meaning in detail


async def test_batch_of_messages(broker: BrokerProcess, gateway: HttpServerProcess) -> None:
    """B15: a batch has an order and three forms of payloads. A wrong batch stores nothing."""
    topic = "shop/eu/batches"
    async with gateway.client(topic) as http:
        messages: list[dict[str, Any]] = [
            {"json": {"b": [1, None]}, "key": "k", "priority": 1, "properties": {"n": 1.5}},
            {"text": "zażółć", "group": "g", "replace": {"key": "r", "mode": "first"}},
            {"base64": "/w==", "idempotency_key": "i"},
            {"base64": "", "idempotency_key": "i"},
            {"text": "", "replace": {"key": "r", "mode": "debounce", "max_wait": "2h"}},
        ]
        body = {"messages": [one | {"delay": "1h"} for one in messages], "spread": "10m"}
        for wrong in (
            {"messages": [*body["messages"], {"text": "a", "json": 1}]},
            {"messages": [*body["messages"], {"text": "a", "at": "2130-01-01T00:00:00Z"}]},
            {"messages": [*body["messages"], {"text": "a", "priority": 256}]},
            {"messages": [{"text": "a", "delay": "1 h"}]},
            {"messages": [{"text": "a", "at": "2030-01-01T00:00:00"}]},
            {"messages": [{"text": "a", "properties": {"p": {"base64": "?"}}}]},
            {"messages": []},
            body | {"unknown": 1},
        ):
            refused = await http.post("batches", json=wrong)
            assert refused.status_code == 400, wrong
            assert refused.headers["content-type"] == "application/problem+json"
        answer = await http.post("batches", json=body)
        assert answer.status_code == 201, answer.text
        receipts = answer.json()["messages"]
        assert [one["offset"] for one in receipts][:3] == [0, 1, 2]
        assert [one["duplicate"] for one in receipts] == [False] * 3 + [True, False]
        found = (await http.get("messages")).json()["messages"]
        payloads = {one["offset"]: one["payload"] for one in found}
        assert payloads[0] == {"text": '{"b":[1,null]}'}
        assert payloads[2] == {"base64": "/w=="}
        times = [datetime.fromisoformat(one["due_at"]) for one in found]
        assert times == sorted(times)
        assert times[0] != times[-1]
        assert times[-1] - times[0] < timedelta(minutes=10, seconds=1)


async def test_odd_texts_are_refused_as_wrong_requests(gateway: HttpServerProcess) -> None:
    """B15: texts that are not Unicode and values that are nested too deeply are refused."""
    async with gateway.client("shop/eu/odd") as http:

        async def status(path: str, content: str | bytes, **headers: bytes) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            named.setdefault("Content-Type", b"application/json")
            answer = await http.post(path, content=content, headers=named)
            assert answer.status_code == 201 or answer.json()["code"], answer.text
            return answer.status_code

        half = '{"messages": [{"text": "\\ud800"}]}'
        assert await status("batches", half) == 400
        assert await status("batches", b'{"messages": [{"text": "\xff"}]}') == 400
        for depth in (20, 900, 100_000):
            deep = '{"p": ' + "[" * depth + "]" * depth + "}"
            batch = f'{{"messages": [{{"text": "", "properties": {deep}}}]}}'
            assert await status("batches", batch) == (201 if depth == 20 else 400), depth
        assert await status("messages", b"", Escapement_Properties=b'{"a": "\\ud800"}') == 400
        assert await status("messages", b"", Escapement_Properties=b"[1]") == 400
        assert await status("messages", b"", Escapement_Key=b"\xff") == 400
        assert await status("messages", b"", Escapement_Priority=b"null") == 400
        assert await status("messages", b"", Escapement_At=b"1900000000") == 400
        assert await status("messages", b"", Escapement_Key=b"null") == 201
        found = (await http.get("messages/1")).json()
        assert found["key"] == "null"
