"""The HTTP side port of a broker on a virtual clock, called without a network."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import httpx
import trio

from escapement import testing
from escapement.access.token import Token
from escapement.broker.admin.admin import VERBS
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.side_port.detailed import MAX_SERIES
from escapement.broker.side_port.openapi import PREFIX, document, path_of
from support.metrics import parsed, plain, scrape
from support.side_ports import refusal, side_port


async def test_broker_that_has_not_started_is_alive_and_not_ready() -> None:
    """O4: the side port answers before and between brokers."""
    async with side_port(None) as http:
        assert (await http.get("/livez")).status_code == 200
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert "no broker runs" in answer.text
        found = plain(await scrape(http))
        assert found["escapement_ready"] == 0
        assert "escapement_messages_published_total" not in found
        answer = await http.post(path_of("broker.stats"), json={})
        assert await refusal(answer) == (503, "busy")
        answer = await http.get("/metrics/detailed?namespace=public/default")
        assert await refusal(answer) == (503, "busy")


async def test_counters_do_not_fall_when_a_topic_is_deleted_or_becomes_passive(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: totals do not belong to a topic."""
    config = BrokerConfig(seed=0, limits=BrokerLimits(active_topics=2))
    async with testing.start(config=config) as world, world.connect() as broker:
        async with side_port(world) as http:
            for name in ("a", "b"):
                await broker.admin("subscriptions.create", topic=name, subscription="s")
                async with broker.consumer(name, "s") as inbox:
                    producer = await broker.producer(name)
                    await producer.send_many([b"x"] * 5)
                    await producer.send_many([b"x"] * 3, delay="1h")
                    for message in await testing.arrived(inbox):
                        await message.ack(durable=True)
                await producer.aclose()
            before = plain(await scrape(http))
            await broker.admin("topics.delete", topic="a")
            await world.server.services.passivator.round()
            assert not world.server.registry.active
            after = plain(await scrape(http))
            for name in ("published", "delivered", "acknowledged"):
                assert (
                    before[f"escapement_messages_{name}_total"]
                    == (after[f"escapement_messages_{name}_total"])
                ), name
            assert before["escapement_messages_scheduled"] == 6
            assert after["escapement_messages_scheduled"] == 3
            assert (
                after["escapement_next_due_timestamp_seconds"]
                == (before["escapement_next_due_timestamp_seconds"])
            )
            assert (after["escapement_topics"], after["escapement_active_topics"]) == (1, 0)
            found = await scrape(http, "/metrics/detailed?namespace=public/default")
            labels = frozenset({("topic", "public/default/b"), ("subscription", "s")})
            assert found["escapement_subscription_messages_acknowledged_total", labels] == 5
            assert found["escapement_subscription_messages_unacknowledged", labels] == 3
            assert not world.server.registry.active, "a scrape made a topic active"


async def test_detailed_metrics_are_those_of_one_namespace_and_bounded(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: the answer says how many topics it leaves out."""
    async with testing.start() as world, world.connect() as broker:
        names = [f"shop/eu/t{number}" for number in range(700)]
        await broker.admin("topics.create_many", topics=names, subscription="s")
        await broker.admin("subscriptions.create", topic="shop/us/other", subscription="s")
        producer = await broker.producer(names[0])
        await producer.send_many([b"x"] * 5)
        async with side_port(world) as http:
            found = await scrape(http, "/metrics/detailed?namespace=shop/eu")
            per_topic = [key for key in found if key[1]]
            topics = {dict(labels)["topic"] for _, labels in per_topic}
            assert len(per_topic) <= MAX_SERIES
            assert topics < set(names)
            left_out = found["escapement_detailed_topics_left_out", frozenset()]
            assert left_out == 700 - len(topics) > 0
            first = frozenset({("topic", names[0])})
            assert found["escapement_topic_messages_published_total", first] == 5
            found = await scrape(http, "/metrics/detailed?namespace=shop/us")
            assert found["escapement_detailed_topics_left_out", frozenset()] == 0
            for query, expected in (
                ("", (400, "invalid_request")),
                ("?namespace=a/b/c/d", (400, "invalid_request")),
                ("?namespace=no/such", (404, "not_found")),
            ):
                answer = await http.get(f"/metrics/detailed{query}")
                assert await refusal(answer) == expected, query


async def test_requests_end_before_the_broker_closes_what_they_use(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: a request that waits gets an error, and the broker stops."""
    async with testing.start() as world, side_port(world) as http:
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await http.post(path_of("topics.list"), json={}))

        async with trio.open_nursery() as nursery, world.server.answering:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert not answers
            await world.stop()
        assert await refusal(answers[0]) == (503, "shutting_down")
        assert (await http.get("/readyz")).status_code == 503


async def test_scrapes_come_in_the_format_that_the_scraper_asks_for(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start() as world, side_port(world) as http:
        text = await http.get("/metrics")
        assert text.headers["content-type"].startswith("text/plain; version=")
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        other = await http.get("/metrics", headers=accept)
        assert other.headers["content-type"].startswith("application/openmetrics-text")
        assert other.text.endswith("# EOF\n")
        assert parsed(text.text)


def sample(schema: dict[str, Any]) -> Any:
    """Return a value that a parameter of this schema accepts."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"]
    if kind == "array":
        item = sample(schema["items"]) if "type" in schema["items"] else 1
        return [item] * schema.get("minItems", 1)
    if kind == "object":
        return {"base64": "eA=="} if "base64" in schema.get("properties", {}) else {"x": 1}
    return {"string": "latest", "integer": 1, "boolean": True}[kind]


async def test_each_verb_has_a_route_and_takes_the_parameters_in_the_document(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: the document is made from the table of verbs, and each verb agrees with it."""
    async with testing.start() as world, world.connect() as broker, side_port(world) as http:
        await broker.admin("subscriptions.create", topic="latest", subscription="latest")
        await broker.admin("namespaces.create", namespace="latest/latest")
        found = (await http.get(f"{PREFIX}/openapi.json")).json()
        assert found == json.loads(json.dumps(document()))
        assert set(found["paths"]) == {path_of(verb) for verb in VERBS}
        agreed = 0
        for verb in VERBS:
            operation = found["paths"][path_of(verb)]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            required = schema.get("required", [])
            arguments = {name: sample(schema["properties"][name]) for name in required}
            arguments |= {"namespace": "latest/latest"} if "namespace" in required else {}
            # The verb refuses an argument that it does not take, and lists those that it takes.
            answer = await http.post(path_of(verb), json={**arguments, "no_such": 1})
            assert answer.status_code in (400, 404), (verb, answer.text)
            message = answer.json()["message"]
            if "does not take 'no_such'" in message:
                agreed += 1
                taken = re.findall(r"'(\w+)'", message.partition(";")[2])
                assert set(taken) <= set(schema["properties"]), verb
                assert set(required) <= set(taken), verb
            for name in required:
                fewer = {key: value for key, value in arguments.items() if key != name}
                answer = await http.post(path_of(verb), json=fewer)
                assert answer.status_code == 400, (verb, answer.text)
                assert f"needs {name!r}" in answer.text, (verb, answer.text)
        assert agreed > len(VERBS) * 3 // 4, agreed


async def test_verbs_work_over_http_with_bytes_and_errors(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: the same results as those of the command line."""
    async with testing.start() as world, world.connect() as broker, side_port(world) as http:
        answer = await http.post(path_of("topics.create"), json={"topic": "shop/eu/orders"})
        assert (answer.status_code, answer.json()) == (200, {"topic": "shop/eu/orders"})
        producer = await broker.producer("shop/eu/orders")
        await producer.send(b"\xff", delay="1h")
        answer = await http.post(path_of("topics.peek"), json={"topic": "shop/eu/orders"})
        assert answer.json()["messages"][0]["payload"] == {"base64": "/w=="}
        answer = await http.post(
            path_of("schedules.create"),
            json={"schedule": "n", "topic": "t", "every_ms": 60_000, "payload": {"base64": "eHk="}},
        )
        assert answer.json()["size_bytes"] == 2
        answer = await http.post(path_of("topics.create"), json={"topic": "shop/eu/orders"})
        assert await refusal(answer) == (409, "already_exists")
        answer = await http.post(path_of("topics.get"), json={"topic": "no"})
        assert await refusal(answer) == (404, "not_found")
        answer = await http.post(f"{PREFIX}/no/such", json={})
        assert answer.status_code == 404
        answer = await http.get(path_of("broker.stats"))
        assert answer.status_code == 405


async def test_body_with_half_a_surrogate_pair_is_refused(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: JSON can write such text, which nothing can encode; it is no error of the broker."""
    async with testing.start() as world, side_port(world) as http:
        for body in (b'{"topic": "t", "key": "\\ud800"}', b'{"topic": "t", "x": [{"\\udfff": 1}]}'):
            headers = {"content-type": "application/json"}
            answer = await http.post(path_of("topics.peek"), content=body, headers=headers)
            assert await refusal(answer) == (400, "invalid_request")


async def test_admin_api_is_for_programs_on_the_machine_of_the_broker(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: until access control, no other machine and no web site may use it."""
    stats = path_of("broker.stats")
    async with testing.start() as world:
        async with side_port(world, admin=False) as http:
            answer = await http.post(stats, json={})
            assert await refusal(answer) == (404, "not_found")
            assert "--http-admin" in answer.text
        async with side_port(world, client=("10.0.0.1", 1)) as http:
            assert await refusal(await http.post(stats, json={})) == (403, "forbidden")
            assert (await http.get("/metrics")).status_code == 200
        async with side_port(world) as http:
            assert (await http.post(stats, json={})).status_code == 200
            for headers in ({"host": "evil.example"}, {"host": "evil.example:80"}):
                answer = await http.post(stats, json={}, headers=headers)
                assert await refusal(answer) == (403, "forbidden")
            for header in ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"):
                answer = await http.post(stats, json={}, headers={header: "127.0.0.1"})
                assert await refusal(answer) == (403, "forbidden")
            answer = await http.post(stats, content=b"{}", headers={"content-type": "text/plain"})
            assert await refusal(answer) == (400, "invalid_request")
            answer = await http.get(f"{PREFIX}/openapi.json", headers={"host": "evil.example"})
            assert await refusal(answer) == (403, "forbidden")


async def test_admin_api_needs_the_rights_of_a_token(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O1, O4: as soon as the log has tokens."""
    async with testing.start() as world, side_port(world) as http:
        access = world.server.services.access
        root, reader = Token.new(), Token.new()
        await access.bootstrap("root", root.id, root.digest)

        async def ask(verb: str, token: str | None, **arguments: Any) -> httpx.Response:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return await http.post(path_of(verb), json=arguments, headers=headers)

        for wrong in (None, "esc_x", Token.new().text):
            answer = await ask("broker.stats", wrong)
            assert await refusal(answer) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
        digest = {"base64": base64.b64encode(reader.digest).decode()}
        created = await ask("tokens.create", root.text, role="r", id=reader.id, digest=digest)
        assert created.status_code == 200
        add = {"role": "r", "pattern": "public/default/*", "actions": ["peek"]}
        assert (await ask("grants.add", root.text, **add)).status_code == 200
        answer = await ask("topics.create", reader.text, topic="t")
        assert await refusal(answer) == (403, "access_denied")
        assert (await ask("topics.create", root.text, topic="t")).status_code == 200
        http.headers["x-forwarded-for"] = "10.0.0.1"  # a proxy, which tokens permit
        assert (await ask("topics.get", reader.text, topic="t")).status_code == 200
        assert (await ask("tokens.revoke", root.text, id=reader.id)).status_code == 200
        answer = await ask("topics.get", reader.text, topic="t")
        assert await refusal(answer) == (401, "unauthenticated")
        # Anyone may ask whether the broker lives, and read its metrics.
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
