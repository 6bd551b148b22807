"""The outbox tables of other projects, with the columns and types that those projects give them."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest
import trio

from escapement.clock import moment
from escapement.storage.outbox.mapping import OutboxMapping
from escapement.testing import World, arrived
from support.outbox import existing_tables as tables
from support.outbox.existing_tables import mapped, profile
from support.outbox.outboxes import Application, moved, serving

MockClock = trio.testing.MockClock


async def received(world: World, topic: str) -> list[tuple[bytes, str | None, dict[str, object]]]:
    """Let the relay take its turn, and return payload, key and properties of the messages."""
    await moved(world, topic)
    async with world.connect() as broker:
        async with broker.consumer(topic, "s", position="earliest") as consumer:
            return [(one.payload, one.key, dict(one.properties)) for one in await arrived(consumer)]


@pytest.mark.parametrize(
    "type", ["CHAR(36)", "BINARY(16)", "VARCHAR(36)", "UUID", "BIGINT AUTO_INCREMENT"]
)
async def test_debezium_table_is_moved(
    type: str, application: Application, mock_clock: MockClock
) -> None:
    column = "CHAR(36)" if type == "UUID" and not application.on_mariadb else type
    application.run(tables.DEBEZIUM.replace("CHAR(36)", column))
    mapped(application, profile("debezium", "outbox", topic_prefix="shop/eu/"))
    id = uuid4()
    value = {"B": id.bytes, "C": str(id), "V": str(id), "U": str(id)}[type[0]]
    shown = str(id) if type[0] != "B" else id.hex
    if type.startswith("BIGINT"):
        value, shown = 17, "17"
    async with serving(application) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        application.run(
            "INSERT INTO outbox VALUES (%s, 'Order', 'é-7', 'OrderCreated', %s)",
            value,
            '{"n": 7}',
        )
        (message,) = await received(world, "shop/eu/Order")
        assert message == (b'{"n": 7}', "é-7", {"id": shown, "type": "OrderCreated"})
        assert application.run("SELECT COUNT(*) FROM outbox") == ((0,),)


@pytest.mark.parametrize("ddl", [tables.EVENTUATE, tables.EVENTUATE_DBID])
async def test_eventuate_table_is_moved_and_its_rows_stay(
    ddl: str, application: Application, mock_clock: MockClock
) -> None:
    application.run(ddl)
    id_column = "dbid" if ddl == tables.EVENTUATE_DBID else "id"
    mapped(application, profile("eventuate", "message", id_column=id_column))
    headers = {"ID": "m1", "PARTITION_ID": "order-7", "DESTINATION": "example.Order"}
    async with serving(application) as world:
        for id in ("0000017c-1", "0000017c-2"):
            application.run(
                "INSERT INTO message (id, destination, headers, payload) VALUES (%s, %s, %s, %s)",
                id,
                "example.Order",
                json.dumps(headers),
                f"{id}é",
            )
        found = await received(world, "example.Order")
        assert found == [
            ("0000017c-1é".encode(), "order-7", headers),
            ("0000017c-2é".encode(), "order-7", headers),
        ]
        assert application.run("SELECT published, COUNT(*) FROM message GROUP BY 1") == ((1, 2),)


@pytest.mark.parametrize("queue", [False, True])
async def test_watermill_table_is_moved(
    queue: bool, application: Application, mock_clock: MockClock
) -> None:
    mapping = profile("watermill", "watermill_orders", topic="orders")
    application.run(tables.WATERMILL_QUEUE if queue else tables.WATERMILL)
    if queue:
        mapping = profile(
            "watermill", "watermill_orders", topic="orders", done_column="acked", done_value="true"
        )
        application.run("CREATE INDEX waiting ON watermill_orders (acked, `offset`)")
    mapped(application, mapping)
    insert = "INSERT INTO watermill_orders (uuid, payload, metadata) VALUES (%s, %s, %s)"
    async with serving(application) as world:
        application.run(insert, "u-1", '{"n": 1}', '{"name": "OrderPlaced"}')
        application.run(insert, "u-2", None, None)
        assert await received(world, "orders") == [
            (b'{"n": 1}', None, {"name": "OrderPlaced", "_watermill_message_uuid": "u-1"}),
            (b"", None, {"_watermill_message_uuid": "u-2"}),
        ]
        left = application.run("SELECT COUNT(*) FROM watermill_orders")[0][0]
        assert left == (2 if queue else 0)
        if queue:
            assert application.run("SELECT SUM(acked) FROM watermill_orders")[0][0] == 2


async def test_masstransit_table_is_moved_when_due_without_rows_of_a_consumer_outbox(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(tables.MASSTRANSIT)
    mapped(application, profile("masstransit", "OutboxMessage", topic="t"))
    insert = (
        "INSERT INTO `OutboxMessage` (`EnqueueTime`, `SentTime`, `Headers`, `OutboxId`,"
        " `InboxMessageId`, `MessageId`, `ContentType`, `MessageType`, `Body`)"
        " VALUES (%s, UTC_TIMESTAMP(6), %s, %s, %s, %s, 'application/json', 'urn', %s)"
    )
    id = str(uuid4())
    async with serving(application) as world, world.connect() as broker:
        due = moment(world.clock.now_ms()) + timedelta(days=1, microseconds=1)
        application.run(insert, due, '{"MT-Activity-Id":"a"}', id, None, id, "later")
        application.run(insert, None, None, id, None, id, "now")
        application.run(insert, None, None, None, id, id, "of a consumer")
        assert await moved(world) == [b"later", b"now"]
        assert application.run("SELECT `Body` FROM `OutboxMessage`") == (("of a consumer",),)
        async with broker.consumer("t", "s", position="earliest") as consumer:
            (first,) = await arrived(consumer)
            assert first.payload == b"now"
            await consumer.ack(first)
            await world.clock.advance(days=1)
            (second,) = await arrived(consumer)
        assert second.payload == b"later"
        assert second.properties == {
            "MT-Activity-Id": "a",
            "MessageId": id,
            "ContentType": "application/json",
        }


async def test_whole_row_becomes_a_json_object(
    application: Application, mock_clock: MockClock
) -> None:
    application.run(
        "CREATE TABLE rows_of_all_types (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(9)"
        " CHARACTER SET latin1, bytes BLOB, fixed BINARY(2), yes BIT(1), at DATETIME(3),"
        " price DECIMAL(9,2), nothing INT, document JSON, due_ns BIGINT, dedup INT, prio TINYINT)"
    )
    mapping = OutboxMapping(
        "rows_of_all_types",
        topic="t",
        due_column="due_ns",
        due_unit="ns",
        dedup_column="dedup",
        priority_column="prio",
    )
    mapped(application, mapping)
    async with serving(application) as world, world.connect() as broker:
        due_ns = (world.clock.now_ms() + 3_600_000) * 1_000_000 - 1
        for id in (2**63 - 1, 2**63 - 2):
            application.run(
                "INSERT INTO rows_of_all_types VALUES (%s, 'é\"', %s, %s, b'1',"
                " '2030-01-02 03:04:05.678', 1.50, NULL, '{\"a\": [1]}', %s, 5, 7)",
                id,
                bytes(range(60)),
                b"\xfe\x01",
                due_ns,
            )
        async with broker.consumer("t", "s", position="earliest") as consumer:
            await moved(world)
            await world.clock.advance(ms=3_600_000 - 10_000 - 10)
            assert await arrived(consumer) == []
            await world.clock.advance(ms=20)
            (message,) = await arrived(consumer)  # the other has the same dedup key
        assert message.priority == 7
        assert moment(message.due_ms) == moment(-(-due_ns // 1_000_000))
        read = json.loads(message.payload)
        assert read.pop("id") == 2**63 - 2
        assert read.pop("at").removesuffix("000") == "2030-01-02 03:04:05.678"  # MySQL: 6 digits
        assert read == {
            "name": 'é"',
            "bytes": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1"
            "Njc4OTo7",
            "fixed": "fe01",
            "yes": 1,
            "price": 1.5,
            "nothing": None,
            "document": {"a": [1]},
            "due_ns": due_ns,
            "dedup": 5,
            "prio": 7,
        }
