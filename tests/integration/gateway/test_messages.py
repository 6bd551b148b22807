"""Messages that are shown, rescheduled and cancelled over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

import escapement
from support.processes.broker import BrokerProcess
from support.processes.http_server import HttpServerProcess

HOUR = timedelta(hours=1)


async def publish(http: httpx.AsyncClient, *messages: dict[str, Any]) -> None:
    answer = await http.post("batches", json={"messages": [{"text": ""} | one for one in messages]})
    assert answer.status_code == 201, answer.text


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json()["code"]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_message_and_its_payload_are_shown(gateway: HttpServerProcess) -> None:
    """B15: a message is shown with its state and the start of its payload; the payload is whole."""
    async with gateway.client("shop/eu/shown") as http:
        assert problem(await http.get("messages/0")) == (404, "not_found")
        content = bytes(range(256)) * 20
        sent = await http.post("messages", content=content, headers={"Escapement-Delay": "1h"})
        assert sent.headers["location"] == "/v1/topics/shop/eu/shown/messages/0"
        shown = (await http.get(gateway.url + sent.headers["location"])).json()
        assert shown["id"] == sent.json()["id"]
        assert shown["state"] == "to_be_fired"
        assert shown["size_bytes"] == len(content)
        assert moment(shown["due_at"]) - moment(shown["published_at"]) == HOUR
        payload = await http.get("messages/0/payload")
        assert payload.content == content
        assert payload.headers["content-type"] == "application/octet-stream"
        assert payload.headers["x-content-type-options"] == "nosniff"
        assert payload.headers["cache-control"] == "no-store"
        for path in ("messages/1", "messages/1/payload"):
            assert problem(await http.get(path)) == (404, "not_found")
        for wrong in ("messages/-1", "messages/x", "messages/1e3", f"messages/{10**18}"):
            assert problem(await http.get(wrong)) == (400, "invalid_request")


async def test_search_has_pages_and_times(gateway: HttpServerProcess) -> None:
    """B15: pages of a search show each matching message once, next due first."""
    async with gateway.client("shop/eu/search") as http:
        start = datetime.now(UTC).replace(microsecond=0) + HOUR
        times = [start + timedelta(minutes=n * 7 % 10) for n in range(10)]
        await publish(
            http,
            *({"at": at.isoformat(), "key": f"k{n % 2}"} for n, at in enumerate(times)),
        )

        async def found(**query: Any) -> list[int]:
            """Return the offsets of all pages of a search."""
            offsets: list[int] = []
            while True:
                page = (await http.get("messages", params=query)).json()
                assert len(page["messages"]) <= query.get("limit", 100)
                offsets += [one["offset"] for one in page["messages"]]
                if page["next"] is None:
                    return offsets
                query["after"] = page["next"]

        by_time = sorted(range(10), key=lambda n: times[n])
        assert await found(limit=4) == by_time
        even = [offset for offset in by_time if offset % 2 == 0]
        assert await found(key="k0", limit=3) == even
        bounds = {"due_from": times[by_time[2]], "due_until": times[by_time[5]]}
        assert await found(**{n: at.isoformat() for n, at in bounds.items()}) == by_time[2:5]
        for wrong in ("limit=0", "limit=1001", "limit=1.0", "limit=null", "due_from=null"):
            assert problem(await http.get(f"messages?{wrong}")) == (400, "invalid_request")
        for wrong in ("due_until=1900000000", "after=1", "offset=1", "limit=1&limit=2"):
            assert problem(await http.get(f"messages?{wrong}")) == (400, "invalid_request")


async def test_reschedule_and_cancel_of_one_message(gateway: HttpServerProcess) -> None:
    """B15: only a message that was changed is a success. Other answers say why, for good."""
    async with gateway.client("shop/eu/one") as http:
        await publish(http, *({"delay": "1h"} for _ in range(3)))
        at = datetime.now(UTC).replace(microsecond=0) + 2 * HOUR
        moved = await http.patch("messages/0", json={"at": at.isoformat()})
        assert moved.json() == {"id": "shop/eu/one@0", "offset": 0, "status": "done", "handed": []}
        assert moment((await http.get("messages/0")).json()["due_at"]) == at
        assert (await http.delete("messages/1")).status_code == 200
        late = await http.patch("messages/1", json={"delay": "1h"})
        assert problem(late) == (409, "conflict")
        assert "cancelled" in late.json()["detail"]
        assert problem(await http.delete("messages/3")) == (404, "not_found")
        assert problem(await http.patch("messages/3", json={"now": True})) == (
            404,
            "not_found",
        )
        for wrong in ({}, {"now": False}, {"delay": "1h", "now": True}, {"delay": "-1h"}):
            assert problem(await http.patch("messages/0", json=wrong)) == (
                400,
                "invalid_request",
            )

        receive = {"max_messages": 10, "wait": "10s"}
        await http.post("subscriptions/s/receive", json={"wait": "0s"})
        assert (await http.patch("messages/2", json={"now": True})).status_code == 200
        received = (await http.post("subscriptions/s/receive", json=receive)).json()["messages"]
        assert [one["offset"] for one in received] == [2]
        assert problem(await http.delete("messages/2")) == (409, "conflict")


async def test_changes_with_a_reason_are_in_the_audit_log(
    gateway: HttpServerProcess, broker: BrokerProcess
) -> None:
    """B17: who changed a message, and why. Changes of applications have no reason, and no row."""
    why = {"Escapement-Reason": "ticket zażółć".encode()}
    async with gateway.client("shop/eu/why") as http:
        await publish(http, *({"delay": "1h", "key": f"k{n}"} for n in range(4)))
        await http.delete("messages/0")
        await http.delete("messages/1", headers=why)
        await http.patch("messages/2", json={"now": True}, headers=why)
        await http.delete("messages", params={"key": "k3"}, headers=why)
        too_long = await http.delete("messages/3", headers={"Escapement-Reason": "x" * 501})
        assert problem(too_long) == (400, "invalid_request")
    async with escapement.connect(broker.url) as client:
        rows = (await client.admin("audit.list", object="shop/eu/why"))["actions"]
    assert [(row["verb"], row["reason"], row["outcome"]) for row in rows] == [
        ("messages.cancel", "ticket zażółć", "done"),
        ("messages.reschedule", "ticket zażółć", "done"),
        ("messages.cancel", "ticket zażółć", "done"),
    ]


async def test_reschedule_and_cancel_by_keys(gateway: HttpServerProcess) -> None:
    """B15: all pending messages with a key, or the one with an idempotency key, change at once."""
    async with gateway.client("shop/eu/keys") as http:
        await publish(
            http,
            {"key": "zażółć & co", "delay": "1h"},
            {"key": "zażółć & co", "delay": "2h", "idempotency_key": "i"},
            {"key": "other", "delay": "1h"},
        )
        by_key, by_idempotency_key = {"key": "zażółć & co"}, {"idempotency_key": "i"}
        moved = await http.patch("messages", params=by_key, json={"delay": "3h", "spread": "1h"})
        assert moved.json()["done"] == 2
        due = [moment((await http.get(f"messages/{n}")).json()["due_at"]) for n in (0, 1)]
        assert due[0] != due[1]
        assert min(due) > datetime.now(UTC) + 2.9 * HOUR
        cancelled = (await http.delete("messages", params=by_idempotency_key)).json()
        assert cancelled["done"] == 1
        assert cancelled["messages"][0]["offset"] == 1
        cancelled = (await http.delete("messages", params=by_key)).json()
        assert [one["offset"] for one in cancelled["messages"]] == [0]
        left = (await http.get("messages")).json()["messages"]
        assert [one["offset"] for one in left] == [2]

        unknown = (await http.delete("messages", params={"idempotency_key": "none"})).json()
        assert unknown["done"] == 0
        assert [one["status"] for one in unknown["messages"]] == ["unknown"]
        assert (await http.delete("messages", params={"key": "none"})).json()["messages"] == []
        for wrong in ({}, by_key | by_idempotency_key, {"unknown": "x"}):
            answer = await http.delete("messages", params=wrong)
            assert problem(answer) == (400, "invalid_request")
        async with gateway.client("shop/eu/nothing") as nowhere:
            answer = await nowhere.delete("messages", params=by_key)
            assert problem(answer) == (404, "not_found")
