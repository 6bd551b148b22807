"""Tables are created, altered, rejected and dropped while a broker serves the database."""

from __future__ import annotations

import gc
import weakref
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import trio

from escapement import NotFound, sql
from escapement.errors import InvalidRequest, TableRejected
from escapement.identifier import quoted
from escapement.testing import arrived
from escapement.testing.clock import START_MS
from support.database.message_tables import CURRENT, FIRST, comment_of, named
from support.roles import begin, connected, new_token
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock

NS = 1_000_000
# A broker has seen a change of a table after this time.
SEEN_S = 2


def topic_of(shop: Shop, name: str) -> str:
    return f"table://{shop.address.database}/{name}"


async def test_altered_directives_apply_to_the_next_deliveries(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: consumers stay, and rows in flight keep their deadlines."""
    topic = shop.create(comment=comment(batch_size=1, poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            first = shop.insert()
            assert len(await taken(world, consumer, seconds=2)) == 1
            kept = shop.row(first, "time_next")
            altered = comment(ack_wait=600, batch_size=4, poller_interval=1)
            shop.run(f"ALTER TABLE mails COMMENT '{altered}'")
            await world.clock.advance(seconds=SEEN_S)
            shop.fill(4, tenant_id=1)
            await world.clock.advance(seconds=2)
            assert len(await anext(consumer.batches())) == 4
            waits_s = [time // NS - world.clock.now_ms() for (time,) in shop.rows("time_next")]
            assert all(597_000 < wait_ms <= 600_000 for wait_ms in waits_s[1:])
            assert shop.row(first, "time_next") == kept


async def test_added_and_dropped_columns_are_told_with_the_next_rows(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V11."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:

            async def columns(**values: Any) -> list[str]:
                id = shop.insert(**values)
                (message,) = await taken(world, consumer, seconds=2)
                assert message.row["id"] == id
                assert {name: message.row[name] for name in values} == values
                assert [field.name for field in consumer.fields or ()] == list(message.row)
                await consumer.ack([message], durable=True)
                return list(message.row)

            assert await columns(tenant_id=1) == ["id", "tenant_id", "message"]
            shop.run("ALTER TABLE mails ADD COLUMN tag VARCHAR(9) AFTER id")
            await world.clock.advance(seconds=SEEN_S)
            assert await columns(tag="x") == ["id", "tag", "tenant_id", "message"]
            shop.run("ALTER TABLE mails DROP COLUMN tenant_id, MODIFY COLUMN message VARCHAR(99)")
            await world.clock.advance(seconds=SEEN_S)
            assert await columns(message="no JSON") == ["id", "tag", "message"]


async def test_consumer_knows_the_columns_of_a_table_without_rows(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V11: before it waits for a row."""
    topic = shop.create()
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            names = [field.name for field in consumer.fields or ()]
            assert names == ["id", "tenant_id", "message"]


async def test_dropped_column_delays_rows_that_wait_in_memory_until_it_is_seen(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V11: a claim names a column that does not exist any more."""
    topic = shop.create(comment=comment(poller_interval=1))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            await world.clock.advance(seconds=3)
            shop.run("ALTER TABLE mails DROP COLUMN tenant_id")
            id = shop.insert()
            (message,) = await taken(world, consumer, seconds=SEEN_S + 2)
            assert message.row == {"id": id, "message": None}
            assert shop.row(id, "epoch") == (1,)


async def test_dropped_table_ends_its_consumers(shop: Shop, mock_clock: MockClock) -> None:
    """V9: the error names the table, and other tables are served on."""
    topic, other = shop.create(), shop.create("texts")
    async with serving_tables(shop) as world, world.connect() as broker:
        async with (
            broker.consumer(topic, "table") as consumer,
            broker.consumer(other, "table") as texts,
        ):
            shop.insert()
            (message,) = await taken(world, consumer, seconds=1)
            shop.run("DROP TABLE mails")
            await world.clock.advance(seconds=SEEN_S)
            with pytest.raises(NotFound, match=rf"{topic} was dropped or renamed"):
                await consumer.receive()
            id = shop.insert("texts")
            (message,) = await taken(world, texts, seconds=31)
            assert message.row["id"] == id
        with pytest.raises(NotFound):
            async with broker.consumer(topic, "table"):
                pass
        # A new table of the same name is another table.
        shop.create()
        id = shop.insert()
        await world.clock.advance(seconds=SEEN_S)
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, seconds=1)
            assert message.row["id"] == id


async def test_dropped_tables_use_no_memory(shop: Shop, mock_clock: MockClock) -> None:
    """Tables are created and dropped again and again."""
    gone = []
    async with serving_tables(shop) as world, world.connect() as broker:
        for _ in range(3):
            topic = shop.create()
            await world.clock.advance(seconds=SEEN_S)
            table = await world.server.services.tables.find(topic)
            gone.append(weakref.ref(table))
            del table
            async with broker.consumer(topic, "table") as consumer:
                shop.insert()
                assert len(await taken(world, consumer, seconds=2)) == 1
                shop.run("DROP TABLE mails")
                await world.clock.advance(seconds=SEEN_S)
        for _ in range(15):
            await world.clock.advance(seconds=1)
        gc.collect()
        assert [one() for one in gone] == [None] * 3


async def test_table_with_the_name_of_no_topic_refuses_consumers_with_the_listed_reason(
    shop: Shop, mock_clock: MockClock
) -> None:
    """The client and the broker say the same as the list."""
    shop.create()
    shop.run("RENAME TABLE mails TO `mails$x`")
    async with serving_tables(shop) as world, world.connect() as broker:
        await world.clock.advance(seconds=SEEN_S)
        (listed,) = world.server.services.tables.listed()
        assert listed["state"].startswith("A message table is a topic, but 'mails$x' cannot be")
        assert listed["state"].endswith("Rename it.")
        with pytest.raises(InvalidRequest) as caught:
            async with broker.consumer(listed["table"], "table"):
                pass
        assert str(caught.value) == listed["state"]
        with pytest.raises(InvalidRequest) as caught:
            await world.server.services.tables.find(listed["table"])
        assert str(caught.value) == listed["state"]


async def test_list_shows_only_tables_that_the_role_may_see(
    shop: Shop, mock_clock: MockClock
) -> None:
    """O1: rejected tables are listed by the same rule."""
    shop.create()
    shop.run("RENAME TABLE mails TO `mails$x`")
    mails = shop.create()
    async with serving_tables(shop) as world, connected(world, await begin(world)) as root:
        await world.clock.advance(seconds=SEEN_S)
        listed = await root.admin("tables.list")
        assert [one["table"] for one in listed] == [mails, f"{mails}$x"]
        await root.admin("grants.add", role="r", pattern=mails, actions=["peek"])
        async with connected(world, await new_token(root, "r")) as broker:
            assert await broker.admin("tables.list") == listed[:1]
            await root.admin("grants.add", role="r", pattern=f"{mails}*", actions=["peek"])
            assert await broker.admin("tables.list") == listed


async def test_rejected_table_refuses_consumers_with_its_reason(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9: it is served once it is correct, and rejected again when it is not."""
    topic = shop.create(comment=comment(ack_wait=None))
    id = shop.insert()
    async with serving_tables(shop) as world, world.connect() as broker:
        with pytest.raises(TableRejected, match="has no directive ack_wait"):
            async with broker.consumer(topic, "table"):
                pass
        shop.run(f"ALTER TABLE mails COMMENT '{comment()}'")
        await world.clock.advance(seconds=SEEN_S)
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, seconds=1)
            assert message.row["id"] == id
            shop.run("ALTER TABLE mails DROP COLUMN epoch")
            await world.clock.advance(seconds=SEEN_S)
            with pytest.raises(TableRejected, match="ADD COLUMN `epoch`"):
                await consumer.receive()
        with pytest.raises(TableRejected, match="ADD COLUMN `epoch`"):
            async with broker.consumer(topic, "table"):
                pass


async def test_created_table_is_served(shop: Shop, mock_clock: MockClock) -> None:
    """V9."""
    async with serving_tables(shop) as world, world.connect() as broker:
        with pytest.raises(NotFound):
            async with broker.consumer(topic_of(shop, "mails"), "table"):
                pass
        topic = shop.create()
        id = shop.insert()
        await world.clock.advance(seconds=SEEN_S)
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, seconds=1)
            assert message.row["id"] == id


@pytest.mark.parametrize("ddl", [CURRENT, FIRST])
async def test_both_editions_are_delivered(shop: Shop, mock_clock: MockClock, ddl: str) -> None:
    """V8: as their documentation defines them."""
    shop.run(ddl)
    first = ddl == FIRST
    scheduled = "time_scheduled" if first else "time_next"
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic_of(shop, "my_message"), "table") as consumer:
            shop.insert("my_message", id=1, **{scheduled: 1})
            later_ns = (START_MS + 100_000) * NS
            shop.insert("my_message", id=2, **{scheduled: later_ns})
            (message,) = await taken(world, consumer, seconds=31)
            assert message.row == {"id": 1, "message": None} | (
                {} if first else {"tenant_id": None}
            )
            assert shop.row(1, "epoch, time_acked", "my_message") == (1, None)
            await consumer.ack([message], durable=True)
            assert shop.row(1, "time_next", "my_message") == (None,)
            await world.clock.advance(ms=START_MS + 99_999 - world.clock.now_ms())
            assert await arrived(consumer) == []
            (message,) = await taken(world, consumer, ms=1_000)
            (time_next,) = shop.row(2, "time_next", "my_message")
            wait_ms = time_next // NS - world.clock.now_ms()
            assert await taken(world, consumer, ms=wait_ms - 1) == []
            (again,) = await taken(world, consumer, ms=31)
            assert (again.row, again.redelivered) == (message.row, True)
            assert shop.row(2, "epoch", "my_message") == (2,)
            await consumer.ack([again], durable=True)
            assert await taken(world, consumer, days=1) == []


IDS: list[tuple[str, list[Any]]] = [
    ("VARCHAR(40)", ["a", "ä 'q\" \\", "", "7", "07", "b "]),
    ("VARCHAR(40) COLLATE utf8mb4_bin", ["a", "A"]),
    ("BINARY(4)", [b"\xff\x00\x01\x02", b"abcd"]),
    ("VARBINARY(16)", [b"", b"\xff\xfe"]),
    ("BIGINT UNSIGNED", [0, 1 << 63, (1 << 64) - 1]),
    ("BIT(64)", [1, 1 << 63, (1 << 64) - 1]),
    ("BIGINT", [-(1 << 63), -1, (1 << 63) - 1]),
    ("DECIMAL(40,3)", [Decimal("12345678901234567890123456789.125"), Decimal("-0.001")]),
    ("DATETIME(6)", ["2026-12-24 18:00:00.000001"]),
    ("DECIMAL(40,0)", ["9" * 40, 7]),
    ("CHAR(36)", ["123e4567-e89b-12d3-a456-426655440000"]),
]


@pytest.mark.parametrize(("type", "ids"), IDS, ids=[type for type, _ in IDS])
async def test_ids_of_any_type_are_delivered_retried_and_acknowledged(
    shop: Shop, mock_clock: MockClock, type: str, ids: list[Any]
) -> None:
    """V8."""
    shop.run(CURRENT.replace("id bigint NOT NULL", f"id {type} NOT NULL"))
    for id in ids:
        shop.insert("my_message", id=id)
    async with serving_tables(shop) as world, world.connect() as broker:
        topic = topic_of(shop, "my_message")
        async with broker.consumer(topic, "table") as consumer:
            messages = await taken(world, consumer, seconds=1)
            found = [message.row["id"] for message in messages]
            assert len(found) == len(ids)
            assert all(str(id) in map(str, found) for id in ids)
            await consumer.nack(messages, timedelta(seconds=5))
            again = await taken(world, consumer, seconds=6)
            assert sorted(map(str, (message.row["id"] for message in again))) == sorted(
                map(str, found)
            )
            assert {epoch for (epoch,) in shop.rows("epoch", "my_message")} == {2}
            by_ids = await world.server.services.tables.acknowledge(
                topic, [id if isinstance(id, int | bytes) else str(id) for id in found[:1]]
            )
            assert by_ids == 1
            assert await consumer.ack(again, durable=True) == len(ids) - 1
            acked = shop.rows("time_next IS NULL AND time_acked IS NOT NULL", "my_message")
            assert acked == ((1,),) * len(ids)
            assert await taken(world, consumer, hours=1) == []


@pytest.mark.parametrize(
    ("before", "after", "id"),
    [
        ("BIGINT", "VARCHAR(40)", "abc"),
        ("BIGINT", "DECIMAL(20,2)", Decimal("8.50")),
        ("BIGINT", "BIGINT UNSIGNED", 1 << 63),
        ("VARCHAR(40)", "BIGINT", 8),
        ("VARCHAR(40)", "VARBINARY(40)", b"\xff\xfe"),
    ],
)
@pytest.mark.parametrize("looks", [False, True])
async def test_changed_type_of_ids_ends_the_consumers(
    shop: Shop, mock_clock: MockClock, before: str, after: str, id: Any, looks: bool
) -> None:
    """V13: a poll that finds ids of the new type before the broker knows it stops nothing."""
    shop.run(CURRENT.replace("id bigint NOT NULL", f"id {before} NOT NULL"))
    topic = topic_of(shop, "my_message")
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            shop.insert("my_message", id=1)
            assert len(await taken(world, consumer, seconds=2)) == 1
            shop.run(f"ALTER TABLE my_message MODIFY id {after} NOT NULL")
            shop.insert("my_message", id=id)
            if not looks:
                broker.hint(f"{shop.address.database}.my_message")
            await world.clock.advance(seconds=SEEN_S)
            with pytest.raises(NotFound, match="type of the ids"):
                await consumer.receive()
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, seconds=1)
            assert message.row["id"] == id
            await consumer.ack([message], durable=True)
            (again,) = await taken(world, consumer, seconds=60)
            assert again.redelivered
            assert again.row["id"] != id


async def test_wider_ids_keep_the_consumers(shop: Shop, mock_clock: MockClock) -> None:
    """V13."""
    shop.run(CURRENT.replace("id bigint NOT NULL", "id INT NOT NULL"))
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic_of(shop, "my_message"), "table") as consumer:
            shop.insert("my_message", id=1)
            (message,) = await taken(world, consumer, seconds=2)
            shop.run("ALTER TABLE my_message MODIFY id BIGINT NOT NULL")
            await world.clock.advance(seconds=SEEN_S)
            assert await consumer.ack([message], durable=True) == 1
            shop.insert("my_message", id=1 << 40)
            (message,) = await taken(world, consumer, seconds=31)
            assert message.row["id"] == 1 << 40


async def test_rejected_and_dropped_tables_are_logged_once(
    shop: Shop, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """V8."""
    shop.create()
    shop.create("texts", comment(ack_wait=None))
    async with serving_tables(shop) as world:
        await world.clock.advance(seconds=20)
        shop.run("DROP TABLE mails")
        await world.clock.advance(seconds=20)
    said = [record.getMessage() for record in caplog.records]
    assert len([one for one in said if "texts is not served: Table texts has no" in one]) == 1
    assert len([one for one in said if "mails was dropped or renamed" in one]) == 1


LITERALS: dict[str, str] = {
    "TINYINT": "-5",
    "INT(8) ZEROFILL": "7",
    "BIGINT(12) UNSIGNED ZEROFILL": "7",
    "BIGINT UNSIGNED": "18446744073709551615",
    "BIT(64)": "b'1000000000000000000000000000000000000000000000000000000000000001'",
    "YEAR": "2026",
    "DECIMAL(20,5)": "-12345.67890",
    "DECIMAL(9,2) UNSIGNED ZEROFILL": "1.5",
    "DATE": "'2026-01-02'",
    "DATETIME": "'2026-01-02 03:04:05'",
    "DATETIME(3)": "'2026-01-02 03:04:05.120'",
    "TIME": "'-10:11:12'",
    "TIME(6)": "'838:59:58.999999'",
    "ENUM('a','b,c')": "'b,c'",
    "SET('a','b')": "'a,b'",
    "VARCHAR(50)": "'ÄbC '",
    "VARCHAR(50) CHARACTER SET latin1": "'é'",
    "VARCHAR(20) CHARACTER SET utf16": "'x'",
    "BINARY(4)": "x'00ff0000'",
}
MARIADB_LITERALS: dict[str, str] = {
    "UUID": "'123e4567-e89b-12d3-a456-426655440000'",
    "INET6": "'::1'",
    "DECIMAL(60,38)": "'0.12345678901234567890123456789012345678'",
}


async def test_ids_of_received_rows_acknowledge_them(shop: Shop, mock_clock: MockClock) -> None:
    """V7, V8, V17: by ``ack_rows`` and ``sql.ack``, in a session of any time zone."""
    literals = LITERALS | (MARIADB_LITERALS if shop.on_mariadb else {})
    database = shop.address.database
    for number, (type, literal) in enumerate(literals.items()):
        definition = CURRENT.replace("id bigint NOT NULL", f"id {type} NOT NULL")
        shop.run(named(definition, f"t{number}"))
        shop.run(f"INSERT INTO t{number} (id) VALUES ({literal})")
    async with serving_tables(shop) as world, world.connect() as broker:
        for number, type in enumerate(literals):
            name = f"t{number}"
            async with broker.consumer(topic_of(shop, name), "table") as consumer:
                (message,) = await taken(world, consumer, seconds=1)
                with shop.session() as cursor:
                    cursor.execute("SET time_zone = '-07:00'")
                    sql.ack(cursor, message)
                    assert cursor.rowcount == 1, type
                    cursor.connection.rollback()
                assert await broker.ack_rows(f"{database}.{name}", [message.row["id"]]) == 1, type
                assert await broker.ack_rows(f"{database}.{name}", [message.row["id"]]) == 0, type
                assert shop.rows("time_acked IS NULL", name) == ((0,),), type


@pytest.mark.parametrize(
    ("type", "better"),
    [
        ("FLOAT", "BIGINT NOT NULL, or DECIMAL(40, 10) NOT NULL if ids have fractions."),
        ("DOUBLE", "BIGINT NOT NULL, or DECIMAL(40, 10) NOT NULL if ids have fractions."),
        ("TIMESTAMP(3)", "DATETIME(6) NOT NULL."),
    ],
)
async def test_id_of_an_inexact_type_is_rejected_until_it_is_corrected(
    shop: Shop, mock_clock: MockClock, type: str, better: str
) -> None:
    topic = shop.create()
    default = " DEFAULT '2026-01-01'" if type.startswith("TIME") else ""
    shop.run(f"ALTER TABLE mails MODIFY id {type} NOT NULL{default}")
    async with serving_tables(shop) as world, world.connect() as broker:
        with pytest.raises(TableRejected) as caught:
            async with broker.consumer(topic, "table"):
                pass
        said = str(caught.value)
        assert f"Column id of table mails has the type {type.lower().partition('(')[0]}" in said
        assert said.endswith(better)
        shop.run(said[said.index("ALTER TABLE") :].partition(", or")[0].rstrip("."))
        await world.clock.advance(seconds=SEEN_S)
        async with broker.consumer(topic, "table"):
            pass


async def test_table_without_the_index_is_delivered(shop: Shop, mock_clock: MockClock) -> None:
    """V9."""
    topic = shop.create(comment=comment(cache_size=7))
    shop.run("ALTER TABLE mails DROP INDEX poller_idx")
    shop.fill(30, tenant_id=1)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            ids: list[int] = []
            while len(ids) < 30:
                messages = await taken(world, consumer, ms=50)
                ids += [message.row["id"] for message in messages]
                await consumer.ack(messages, durable=True)
                assert world.clock.lease_ms() < 3_000
            assert ids == list(range(1, 31))


async def test_columns_of_odd_types_and_names_arrive(shop: Shop, mock_clock: MockClock) -> None:
    """V11."""
    topic = shop.create()
    odd = {
        "what?": ("BIT(12)", 2049),
        "sel`ect": ("DECIMAL(30,10)", Decimal("-1.5000000000")),
        "from": ("TIME(3)", timedelta(hours=-3, milliseconds=-5)),
        "größe": ("SET('a','b','c')", "a,c"),
        "100%": ("VARBINARY(9)", b"\x00\xff%s"),
    }
    for name, (type, _) in odd.items():
        shop.run(f"ALTER TABLE mails ADD COLUMN {quoted(name)} {type}")
    names = ", ".join(quoted(name).replace("%", "%%") for name in odd)
    values = [value for _, value in odd.values()]
    shop.run(f"INSERT INTO mails ({names}) VALUES ({', '.join(['%s'] * 5)})", *values)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, seconds=1)
            assert message.row == {"id": 1, "tenant_id": None, "message": None} | {
                name: value for name, (_, value) in odd.items()
            }


async def test_message_cols_chooses_the_columns_that_are_sent(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V11: in their order, and columns of the broker too."""
    topic = shop.create(comment=comment(message_cols="message|id|time_next|epoch"))
    id = shop.insert(message="[1]", tenant_id=4)
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            (message,) = await taken(world, consumer, seconds=1)
            assert list(message.row) == ["message", "id", "time_next", "epoch"]
            assert message.row["id"] == id
            # The values of the row before it was sent.
            assert (message.row["time_next"], message.row["epoch"]) == (0, 0)


async def test_marker_in_the_comment_of_another_spelling(shop: Shop, mock_clock: MockClock) -> None:
    """V9: a table of Vitess is served as it stands."""
    shop.run(named(CURRENT, "a.b-c"))
    assert comment_of(CURRENT).startswith("vitess_message")
    shop.run("INSERT INTO `a.b-c` (id) VALUES (4)")
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic_of(shop, "a.b-c"), "table") as consumer:
            (message,) = await taken(world, consumer, seconds=1)
            assert message.row["id"] == 4
