"""The OpenAPI document of /admin/v1 against the answers of a running broker."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest
import trio.testing
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

import escapement
from escapement import testing
from escapement.access.token import Token
from escapement.broker.admin.admin import VERBS
from escapement.broker.broker import Broker
from escapement.broker.side_port.openapi import PREFIX, document, path_of
from escapement.http.statuses import codes_by_status
from escapement.storage import members
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.inbox import inbox, job
from escapement.storage.lease import Identity
from escapement.testing import World, arrived
from support.roles import begin
from support.side_ports import side_port
from support.storage.inbox_entries import inbox_entry
from support.storage.staged_jobs import stage_entries, transaction
from support.tables.shops import Shop, serving_tables

SUBSCRIPTION: Final = {"topic": "x", "subscription": "s"}
SCHEDULE: Final = {"schedule": "a/b/beat"}
NEW_TOKEN: Final = Token.new()


def encoded(data: bytes) -> dict[str, str]:
    return {"base64": b64encode(data).decode()}


def requests(table: str) -> list[tuple[str, dict[str, Any]]]:
    """Return requests that succeed in this order, at least one for each verb."""
    group = {"topic": "x", "group": "g"}
    bulk = {"topic": "x", "action": "reschedule", "delay_ms": 7_200_000, "key": "k"}
    return [
        ("namespaces.create", {"namespace": "a/new"}),
        ("namespaces.list", {}),
        ("namespaces.get", {"namespace": "public/default"}),
        ("namespaces.update", {"namespace": "a/new", "policy": {"max_delay_ms": "9d"}}),
        ("namespaces.disable_delayed_message", {"namespace": "a/new"}),
        ("namespaces.enable_delayed_message", {"namespace": "a/new", "tick_ms": 50}),
        ("topics.create", {"topic": "a/new/t"}),
        ("topics.create_many", {"topics": ["a/new/u", "a/new/v"], "subscription": "s"}),
        ("topics.list", {}),
        ("topics.get", {"topic": "x"}),
        ("topics.update", {"topic": "a/new/t", "policy": {"max_publish_rate": 7.5}}),
        ("topics.stats", {"topic": "x"}),
        ("topics.peek", {"topic": "x"}),
        ("topics.peek", {"topic": "x", "count": 1}),
        ("topics.forecast", {"topic": "x"}),
        ("namespaces.forecast", {}),
        ("namespaces.forecast", {"namespace": "public/default", "by_ms": 60_000}),
        ("messages.select", {"topic": "x"}),
        *(("messages.show", {"topic": "x", "offset": offset}) for offset in range(3)),
        ("subscriptions.list", {"topic": "x"}),
        ("subscriptions.overview", {}),
        ("subscriptions.overview", {"namespace": "public/default", "count": 1}),
        ("subscriptions.get", SUBSCRIPTION),
        ("subscriptions.lateness", SUBSCRIPTION),
        ("subscriptions.lateness", {"namespace": "public/default", "count": 1}),
        ("subscriptions.create", {"topic": "x", "subscription": "new", "kind": "failover"}),
        ("subscriptions.update", {**SUBSCRIPTION, "policy": {"jitter": 0.5}}),
        ("subscriptions.seek", {"topic": "x", "subscription": "new", "position": "earliest"}),
        ("subscriptions.delete", {"topic": "x", "subscription": "new"}),
        ("dlq.list", SUBSCRIPTION),
        ("dlq.find", {**SUBSCRIPTION, "offset": 1}),
        ("dlq.show", {**SUBSCRIPTION, "offset": 0}),
        ("dlq.count", SUBSCRIPTION),
        ("dlq.redrive", {**SUBSCRIPTION, "count": 1}),
        ("dlq.purge", SUBSCRIPTION),
        ("bulk.preview", bulk),
        ("bulk.start", {**bulk, "reason": "later"}),
        ("bulk.list", {}),
        ("bulk.show", {"topic": "x", "id": 1}),
        ("bulk.stop", {"topic": "x", "id": 1}),
        (
            "push.create",
            {**SUBSCRIPTION, "url": "https://a.example/", "policy": {"concurrency": 2}},
        ),
        ("push.update", {**SUBSCRIPTION, "policy": {"timeout_ms": "3s"}}),
        ("push.rotate", SUBSCRIPTION),
        ("push.list", {}),
        ("push.secrets", {}),
        ("push.pause", SUBSCRIPTION),
        ("push.show", SUBSCRIPTION),
        ("push.resume", SUBSCRIPTION),
        ("push.delete", SUBSCRIPTION),
        ("dispatch.pause", {"topic": "x", "for_ms": 1000}),
        ("dispatch.resume", SUBSCRIPTION),
        ("inbox.list", {}),
        ("inbox.discard", {"target": "no topic's name"}),
        ("jobs.list", {}),
        ("schedules.create", {"schedule": "a/b/cron", "topic": "x", "cron": "0 9 * * *"}),
        ("schedules.list", {}),
        ("schedules.get", SCHEDULE),
        ("schedules.update", {**SCHEDULE, "payload": encoded(b"\xff"), "spread_ms": 5}),
        ("schedules.run_now", SCHEDULE),
        ("schedules.next", {**SCHEDULE, "count": 2}),
        ("schedules.pause", SCHEDULE),
        ("schedules.list", {}),
        ("schedules.resume", SCHEDULE),
        ("schedules.delete", SCHEDULE),
        ("schedules.delete", {"schedule": "a/b/cron"}),
        ("groups.list", {"topic": "x"}),
        ("groups.get", group),
        ("groups.close", {**group, "subscription": "s", "target": "done"}),
        ("groups.list", {"topic": "x"}),
        ("groups.delete", group),
        ("tables.list", {}),
        ("tables.poll", {"topic": table}),
        ("tables.ack", {"topic": table, "ids": [1]}),
        ("outboxes.poll", {}),
        ("tokens.create", {"role": "r", "id": NEW_TOKEN.id, "digest": encoded(NEW_TOKEN.digest)}),
        ("tokens.list", {}),
        ("tokens.revoke", {"id": NEW_TOKEN.id}),
        ("grants.add", {"role": "r", "pattern": "a/*", "actions": ["peek", "produce"]}),
        ("grants.list", {}),
        ("grants.remove", {"role": "r", "pattern": "a/*"}),
        ("access.own", {}),
        ("broker.update", {"table_parallelism": 2}),
        ("broker.stats", {}),
        ("broker.findings", {}),
        ("cluster.drain", {"node": "other"}),
        ("cluster.undrain", {"node": "other"}),
        ("cluster.move", {"bundle": 0, "node": "other"}),
        ("cluster.status", {}),
        ("cluster.bundles", {"count": 2}),
        ("audit.list", {"verbs": "topics.", "count": 5}),
        ("topics.delete", {"topic": "a/new/t"}),
        ("namespaces.delete", {"namespace": "a/new", "force": True, "dry_run": True}),
        ("namespaces.delete", {"namespace": "a/new", "force": True}),
        ("namespaces.delete", {"namespace": "a/b"}),
    ]


async def fill(world: World, engine: SqliteEngine, broker: escapement.Broker) -> None:
    """Give the broker something to show of each kind."""
    policy = {"max_deliveries": 1}
    await broker.admin("subscriptions.create", **SUBSCRIPTION, policy=policy)
    await broker.admin("namespaces.create", namespace="a/b")
    await broker.admin("schedules.create", **SCHEDULE, topic="x", every_ms=60_000)
    producer = await broker.producer("x", name="writer")
    await producer.send_many([b"dead", b"dead too", b"acked"], properties=[{"n": 7}] * 3)
    await producer.send(b"\xff", delay="1h", key="k", group="g", properties={"price": 1.5})
    await producer.send(b"later", delay="2h")
    async with broker.consumer("x", "s", ack_wait=timedelta(hours=1)) as consumer:
        first, second, third = await arrived(consumer)
        await consumer.nack([first.id, second.id], timedelta(0))
        await third.ack(durable=True)
    connection = engine.connect()
    with transaction(connection):
        entry = inbox_entry("no topic's name", "1")
        inbox.insert(engine, connection, [entry], world.clock.now_ms())
    load = job.enter(engine, connection, "load", 0)
    stage_entries(engine, connection, load, 0, "a", [inbox_entry("x", "0", b"1")])
    connection.close()
    members.register(engine, Identity("f" * 32, "other"), 3_600_000, world.clock, "other:7650")
    await world.clock.advance(seconds=5)


@asynccontextmanager
async def filled(shop: Shop) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Run a broker with tokens and a message table; return its side port and the table's topic."""
    table = shop.create()
    shop.run("CREATE TABLE wrong (id INT) COMMENT 'escapement_message'")
    engine = SqliteEngine.in_memory()
    async with serving_tables(shop, engine=engine) as world, side_port(world) as http:
        root = await begin(world)
        async with world.connect(token=root.text) as broker:
            await fill(world, engine, broker)
            http.headers["authorization"] = f"Bearer {root.text}"
            yield http, table


def strict(schema: Any) -> Any:
    """Return a schema that allows no fields besides those that it names."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(one) for name, one in schema.items()}
    if "allOf" in found or "properties" in found:
        found["unevaluatedProperties"] = False
    return found


def closed(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Return the strict schema of an answer with the components in it.

    The parts of an ``allOf`` are together all that a map may have, so each of them is open.
    """
    parts = {
        part["$ref"] for one in _schemas_in([schema, components]) for part in one.get("allOf", ())
    }
    named = {
        name: one if f"#/components/schemas/{name}" in parts else strict(one)
        for name, one in components.items()
    }
    return {**strict(schema), "components": {"schemas": named}}


def _schemas_in(found: Any) -> list[dict[str, Any]]:
    if isinstance(found, list):
        return [one for part in found for one in _schemas_in(part)]
    if not isinstance(found, dict):
        return []
    return [found, *(one for part in found.values() for one in _schemas_in(part))]


def test_document_is_valid_and_each_answer_has_a_schema() -> None:
    """O4: OpenAPI 3.1."""
    found = document()
    OpenAPIV31SpecValidator(found).validate()
    for verb in VERBS:
        responses = found["paths"][path_of(verb)]["post"]["responses"]
        assert set(responses) == {str(int(status)) for status in (200, *codes_by_status())}
        for answer in responses.values():
            assert answer["content"]["application/json"]["schema"], verb


async def test_answers_of_all_verbs_fit_the_document(
    mysql_url: str, mock_clock: trio.testing.MockClock
) -> None:
    """O4: with all fields of the schemas, and no others."""
    async with filled(Shop(mysql_url)) as (http, table):
        found = (await http.get(f"{PREFIX}/openapi.json")).json()
        components = found["components"]["schemas"]
        unseen = set(VERBS)
        for verb, arguments in requests(table):
            answer = await http.post(path_of(verb), json=arguments)
            assert answer.status_code == 200, (verb, answer.text)
            content = found["paths"][path_of(verb)]["post"]["responses"]["200"]["content"]
            schema = closed(content["application/json"]["schema"], components)
            Draft202012Validator(schema).validate(answer.json())
            if verb.endswith(".list"):
                assert answer.json(), f"{verb} listed nothing, so its rows were not compared"
            unseen.discard(verb)
        assert not unseen


async def test_refused_and_failed_requests_have_the_form_of_the_document(
    mock_clock: trio.testing.MockClock,
) -> None:
    """O4: also if no verb was called."""
    schema = strict(document()["components"]["schemas"]["Error"])
    async with testing.start() as world, side_port(world) as http:
        headers = {"content-type": "application/json"}
        for method, path, body, expected in (
            ("POST", path_of("topics.get"), b'{"topic": "none"}', (404, "not_found")),
            ("POST", path_of("topics.get"), b"{", (400, "invalid_request")),
            ("POST", f"{PREFIX}/no/such", b"{}", (404, "not_found")),
            ("GET", path_of("topics.get"), b"", (405, "method_not_allowed")),
        ):
            answer = await http.request(method, path, content=body, headers=headers)
            Draft202012Validator(schema).validate(answer.json())
            assert (answer.status_code, answer.json()["error"]) == expected


async def test_mistake_in_the_broker_is_answered_without_its_details(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O4: they may show what the role may not see. The broker goes on."""

    def broken(broker: Broker) -> None:
        raise RuntimeError("secret")

    async with testing.start() as world, side_port(world) as http:
        with monkeypatch.context() as patch:
            patch.setattr(Broker, "stats", broken)
            answer = await http.post(path_of("broker.stats"), json={})
        assert (answer.status_code, answer.json()["error"]) == (500, "internal")
        assert "secret" not in answer.text
        assert (await http.post(path_of("broker.stats"), json={})).status_code == 200
