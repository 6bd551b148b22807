"""Messages that are received and acknowledged over HTTP."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

import escapement
from support.processes.broker import PATIENT, BrokerProcess
from support.processes.http_server import HttpServerProcess, gateway_process

HERE = "subscriptions/s/"
# Less than the ack wait of half a minute, and enough for a busy machine.
SOON_S = 25


async def publish(http: httpx.AsyncClient, content: str, delay: str = "0s") -> None:
    headers = {"Escapement-Delay": delay}
    (await http.post("messages", content=content, headers=headers)).raise_for_status()


async def receive(http: httpx.AsyncClient, wait: str = "20s", **demand: Any) -> list[Any]:
    answer = await http.post(HERE + "receive", json={"wait": wait} | demand)
    assert answer.status_code == 200, answer.text
    messages: list[Any] = answer.json()["messages"]
    return messages


async def receive_one(http: httpx.AsyncClient, ack_wait: str) -> Any:
    """Receive a message with a short ack wait. A pull that ends after it has none to give."""
    while not (messages := await receive(http, ack_wait=ack_wait, max_messages=1)):
        pass
    (message,) = messages
    return message


async def begin(http: httpx.AsyncClient) -> None:
    """Create the subscription."""
    assert await receive(http, "0s") == []


async def count(http: httpx.AsyncClient, verb: str, *offsets: int, **arguments: Any) -> int:
    """Acknowledge, extend or give back messages, and return how many of them were changed."""
    answer = await http.post(HERE + verb, json={"offsets": offsets} | arguments)
    assert answer.status_code == 200, answer.text
    changed: int = answer.json()["count"]
    return changed


async def consumers(broker: escapement.Broker, topic: str) -> int:
    stats = await broker.admin("topics.stats", topic=topic)
    return sum(len(one["consumers"]) for one in stats["subscriptions"])


async def test_waiting_request_gets_a_message_when_it_is_due(gateway: HttpServerProcess) -> None:
    """B15: long polls wait for the next message, and it is not early. Without one, none comes."""
    async with gateway.client("shop/eu/polls") as http:
        await begin(http)
        began_s = trio.current_time()
        assert await receive(http, "300ms") == []
        assert trio.current_time() - began_s >= 0.3
        got: list[Any] = []

        async def wait() -> None:
            got.extend(await receive(http))

        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
            for content in ("a", "b", "c"):
                await publish(http, content, delay="500ms")
        assert trio.current_time() - began_s >= 0.5
        assert sorted(one["payload"]["text"] for one in got) == ["a", "b", "c"]
        assert {(one["attempt"], one["redelivered"]) for one in got} == {(1, False)}
        assert await count(http, "ack", 0, 1, 2, 99) == 3
        assert await count(http, "ack", 0, 1, 2) == 0


# httpx leaves the generator of a request that was cancelled to the garbage collector.
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
async def test_disconnected_request_loses_no_message(
    broker: BrokerProcess, gateway: HttpServerProcess
) -> None:
    """B15: a client that disconnects while it waits leaves the messages to the next one."""
    topic = "shop/eu/gone"
    async with (
        escapement.connect(broker.url, settings=PATIENT) as native,
        gateway.client(topic) as http,
    ):
        await publish(http, "first", delay="1h")
        for _ in range(3):
            with trio.move_on_after(60) as leaving:
                async with trio.open_nursery() as nursery, gateway.client(topic) as other:
                    nursery.start_soon(partial(receive, other))
                    while not await consumers(native, topic):  # noqa: ASYNC110 (in the broker)
                        await trio.sleep(0.01)
                    leaving.cancel()
        await publish(http, "second", delay="500ms")
        (message,) = await receive(http)
        assert message["payload"] == {"text": "second"}
        assert (message["attempt"], message["redelivered"]) == (1, False)
        assert await consumers(native, topic) == 1, "each pull uses the same consumer again"


async def test_messages_are_given_back_and_extended(gateway: HttpServerProcess) -> None:
    """B15: nack counts an attempt, release does not, and extend puts off the redelivery."""
    async with gateway.client("shop/eu/back") as http:
        await begin(http)
        await publish(http, "x")
        first = await receive_one(http, "1s")
        while not await count(http, "extend", 0, wait="1h"):
            first = await receive_one(http, "1s")  # the request came after the ack wait
        assert await receive(http, "1500ms") == []
        began_s = trio.current_time()
        assert await count(http, "nack", 0, delay="400ms") == 1
        (second,) = await receive(http)
        assert trio.current_time() - began_s >= 0.4
        assert (second["attempt"], second["redelivered"]) == (first["attempt"] + 1, True)
        assert await count(http, "release", 0) == 1
        (third,) = await receive(http)
        assert (third["attempt"], third["redelivered"]) == (second["attempt"], True)
        assert await count(http, "release", 0) == 1
        fourth = await receive_one(http, "500ms")
        (fifth,) = await receive(http)  # after the ack wait
        assert fifth["attempt"] == fourth["attempt"] + 1
        assert await count(http, "ack", 0) == 1
        assert await count(http, "extend", 0, wait="1h") == 0


@pytest.mark.parametrize("verb", ["nack", "reject", "release"])
async def test_only_messages_in_flight_are_given_back_and_counted(
    broker: BrokerProcess, gateway: HttpServerProcess, verb: str
) -> None:
    """B15: not those that were acknowledged, never received, or whose ack wait has passed."""
    topic = f"shop/eu/counted-{verb}"
    async with (
        escapement.connect(broker.url, settings=PATIENT) as native,
        gateway.client(topic) as http,
    ):
        await begin(http)
        for content in ("in flight", "acknowledged"):
            await publish(http, content)
        got = await receive(http, max_messages=1) + await receive(http, max_messages=1)
        assert [one["offset"] for one in got] == [0, 1]
        assert await count(http, "ack", 1) == 1
        await publish(http, "not due", delay="1h")
        later = {} if verb == "reject" else {"delay": "1h"}
        assert await count(http, verb, 0, 1, 2, 99, **later) == 1
        assert await count(http, verb, 0, **later) == 0
        nowhere = await http.post(f"subscriptions/typo/{verb}", json={"offsets": [0]})
        assert nowhere.json() == {"count": 0}
        listed = await native.admin("subscriptions.list", topic=topic)
        assert [one["subscription"] for one in listed] == ["s"], "created by a request in vain"
        await publish(http, "late")
        late = await receive_one(http, "100ms")
        async with native.consumer(topic, "s") as other:
            with trio.fail_after(SOON_S):
                again = await anext(other)  # after the ack wait
            assert again.offset == late["offset"] == 3
            assert await count(http, verb, 3) == 0


async def test_rejected_message_becomes_a_dead_letter_with_its_detail(
    broker: BrokerProcess, gateway: HttpServerProcess
) -> None:
    """B15: at once, however many attempts the subscription permits."""
    topic = "shop/eu/rejects"
    async with (
        escapement.connect(broker.url, settings=PATIENT) as native,
        gateway.client(topic) as http,
    ):
        await begin(http)
        await publish(http, "x")
        (message,) = await receive(http)
        long = await http.post(HERE + "reject", json={"offsets": [0], "detail": "x" * 201})
        assert (long.status_code, long.json()["code"]) == (400, "invalid_request")
        assert await count(http, "reject", message["offset"], detail="no such customer") == 1
        names = {"topic": topic, "subscription": "s"}
        with trio.fail_after(30):
            while not (letters := await native.admin("dlq.list", **names)):
                pass
        assert [(one["reason"], one["detail"]) for one in letters] == [
            ("rejected", "no such customer")
        ]


async def test_gateways_share_acknowledgements_and_free_messages_when_they_die(
    broker: BrokerProcess, gateway: HttpServerProcess, tmp_path: Path
) -> None:
    """B15: any gateway acknowledges. The messages of a killed gateway go back at once."""
    with gateway_process(tmp_path, broker.url) as other:
        async with other.client("shop/eu/two") as there, gateway.client("shop/eu/two") as http:
            await begin(http)
            for content in ("a", "b"):
                await publish(http, content)
            got = await receive(there, max_messages=1)
            got += await receive(there)
            assert [one["offset"] for one in got] == [0, 1]
            assert await count(http, "ack", 0) == 1
            other.process.kill()
            with trio.fail_after(SOON_S):
                (message,) = await receive(http)
            assert message["offset"] == 1
            assert message["redelivered"]


async def test_deleted_subscription_begins_anew(
    broker: BrokerProcess, gateway: HttpServerProcess
) -> None:
    """B15: consumers that the broker has closed do not stay in the way of later requests."""
    topic = "shop/eu/anew"
    async with (
        escapement.connect(broker.url, settings=PATIENT) as native,
        gateway.client(topic) as http,
    ):
        await begin(http)
        await native.admin("subscriptions.delete", topic=topic, subscription="s", force=True)
        assert await count(http, "ack", 0) == 0
        await publish(http, "x")
        assert [one["attempt"] for one in await receive(http)] == [1]
        await native.admin("topics.delete", topic=topic, force=True)
        statuses = {(await http.post("messages", content=b"y")).status_code for _ in range(3)}
        assert statuses <= {201, 404}
        assert (await http.post("messages", content=b"y")).status_code == 201


@pytest.mark.parametrize(
    "demand", [{"wait": "61s"}, {"max_messages": 0}, {"max_messages": 1001}, {"ack_wait": "x"}]
)
async def test_demand_out_of_bounds_is_refused(
    gateway: HttpServerProcess, demand: dict[str, Any]
) -> None:
    """B15: a request for too many messages, or with too long a wait, is refused."""
    async with gateway.client("shop/eu/bounds") as http:
        answer = await http.post(HERE + "receive", json=demand)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
