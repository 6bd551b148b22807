"""Message tables in a database: found, altered, dropped, rejected, and created."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Final, cast

import pytest

from escapement.errors import AlreadyExists, StorageError
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection, Result
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.tables.ddl import create_table
from escapement.tables.directives import Directives
from escapement.tables.discovery import Discovery, MessageTable
from escapement.tables.poll import Target, index_warning, poll
from escapement.tables.priorities import MOST_KNOWN, InUse, Wanted, priorities_in_use
from support.database.message_tables import CURRENT, FIRST, comment_of, named

DIRECTIVES: Final = Directives(
    ack_wait_ms=1500,
    min_backoff_ms=1500,
    max_backoff_ms=60_000,
    purge_after_ms=86_400_000,
    batch_size=10,
    cache_size=10_000,
    poll_interval_ms=250,
)
# The statements of a look in full: tables, columns and indexes, warnings of each, tables once more.
LOOK: Final = 7
# The statements that drop a column of the first edition, if it is more than DROP COLUMN.
DROPS: Final = {
    "id": "ALTER TABLE my_message DROP PRIMARY KEY, ADD PRIMARY KEY (time_scheduled),"
    " DROP INDEX id_idx, DROP COLUMN id"
}


@pytest.fixture
def connection(mysql_url: str) -> Iterator[Connection]:
    with closing(MysqlEngine(MysqlAddress.parse(mysql_url)).connect()) as connection:
        yield connection


def the_table(connection: Connection) -> MessageTable:
    """Return the only message table of the database, which can be served."""
    found = Discovery().look(connection)
    assert found.rejected == {}
    (table,) = found.good.values()
    return table


def reason(connection: Connection) -> str:
    """Return why the only message table of the database is rejected."""
    found = Discovery().look(connection)
    assert found.good == {}
    (table,) = found.rejected.values()
    assert "\n" not in table.reason
    return table.reason


def advised(message: str) -> str:
    """Return the ALTER TABLE at the end of a message."""
    found = re.search(r"ALTER TABLE .*(?=\.$)", message)
    assert found is not None, message
    return found[0]


def let_tables_be_old(connection: Connection) -> None:
    """Let the server believe that no table was created or altered lately."""
    connection.execute("SET timestamp = UNIX_TIMESTAMP() + 100")


def questions(connection: Connection) -> int:
    (row,) = connection.execute("SHOW SESSION STATUS LIKE 'Questions'").rows
    return int(row[1])


# -- both editions -------------------------------------------------------------


def test_table_of_the_current_edition_is_found(connection: Connection) -> None:
    """V8: its DDL as it is documented."""
    connection.execute(CURRENT)
    table = the_table(connection)
    assert (table.name, table.spelling, table.layout.edition) == (
        "my_message",
        "vitess",
        "current",
    )
    assert table.directives.max_backoff_ms == 3_600_000
    assert [one.name for one in table.layout.further] == ["tenant_id", "message"]
    assert table.layout.further[0].data_type == "bigint"
    assert table.layout.primary_key == ("id",)
    assert table.warnings == ()


def test_table_of_the_first_edition_is_found(connection: Connection) -> None:
    """V8: its DDL as it is documented."""
    connection.execute(FIRST)
    table = the_table(connection)
    assert table.layout.edition == "first"
    assert table.directives.max_backoff_ms is None
    (message,) = table.layout.further
    assert (message.name, message.column_type) == ("message", "varchar(128)")
    assert table.layout.primary_key == ("time_scheduled", "id")
    assert table.warnings == ()


def test_created_table_is_found_with_its_directives(connection: Connection) -> None:
    create_table(connection, "mails", DIRECTIVES)
    table = the_table(connection)
    assert (table.name, table.spelling, table.directives) == ("mails", "escapement", DIRECTIVES)
    assert [one.name for one in table.layout.further] == ["message"]
    assert table.warnings == ()
    assert index_warning(connection, table) is None
    connection.execute("""INSERT INTO mails (message) VALUES ('{"to": "ada"}')""")
    assert connection.execute("SELECT id, priority, epoch, time_next FROM mails").rows == [
        (1, 50, 0, 0)
    ]
    with pytest.raises(AlreadyExists, match="Table mails exists already"):
        create_table(connection, "mails", DIRECTIVES)


def test_other_tables_are_ignored(connection: Connection) -> None:
    connection.execute("CREATE TABLE a (id INT) COMMENT 'not a vitess_message'")
    connection.execute("CREATE TABLE b (id INT) COMMENT 'vitess-message,ack wait 30'")
    connection.execute("CREATE TABLE c (id INT)")
    connection.execute("CREATE VIEW d AS SELECT id FROM c")
    found = Discovery().look(connection)
    assert (found.good, found.rejected) == ({}, {})


def test_tables_of_other_databases_are_ignored(connection: Connection) -> None:
    (row,) = connection.execute("SELECT DATABASE()").rows
    connection.execute(f"CREATE DATABASE `{row[0]}_other`")
    try:
        connection.execute(named(CURRENT, "x").replace("`x`", f"`{row[0]}_other`.`x`"))
        assert Discovery().look(connection).good == {}
    finally:
        connection.execute(f"DROP DATABASE `{row[0]}_other`")


# -- rejected tables -----------------------------------------------------------


def test_table_whose_columns_cannot_be_read_is_rejected(
    connection: Connection, mysql_url: str
) -> None:
    """V8: DELETE alone shows a table, and not its columns."""
    connection.execute(CURRENT)
    connection.execute(named(FIRST, "other"))
    address = MysqlAddress.parse(mysql_url)
    connection.execute("CREATE USER reader IDENTIFIED BY 'secret'")
    try:
        connection.execute(f"GRANT DELETE ON `{address.database}`.my_message TO reader")
        connection.execute(f"GRANT SELECT ON `{address.database}`.other TO reader")
        reader = MysqlEngine(replace(address, user="reader", password="secret"), creates=False)
        with closing(reader.connect()) as session:
            found = Discovery().look(session)
        assert list(found.good) == ["other"]
        assert "GRANT SELECT, UPDATE, DELETE" in found.rejected["my_message"].reason
    finally:
        connection.execute("DROP USER reader")


@pytest.mark.parametrize("marker", ["vitess_mesage", "escapement-message", "tasks"])
def test_misspelt_marker_rejects_the_table(connection: Connection, marker: str) -> None:
    """V8: a table with a directive is not taken for an ordinary one."""
    connection.execute(CURRENT.replace("vitess_message", marker))
    assert reason(connection) == (
        "Table my_message is not a message table. Begin its COMMENT with escapement_message"
        f" instead of '{marker}'."
    )


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        *((CURRENT, name) for name in ("id", "priority", "epoch", "time_next", "time_acked")),
        *((FIRST, name) for name in ("id", "time_next", "epoch", "time_created", "time_acked")),
    ],
    ids=lambda value: {CURRENT: "current", FIRST: "first"}.get(value, value),
)
def test_dropped_column_rejects_the_table_until_the_advice_is_followed(
    connection: Connection, ddl: str, column: str
) -> None:
    connection.execute(ddl)
    edition = the_table(connection).layout.edition
    drop = f"ALTER TABLE my_message DROP COLUMN {column}"
    connection.execute(DROPS.get(column, drop) if edition == "first" else drop)
    assert reason(connection).startswith(f"Table my_message has no column {column}. ")
    connection.execute(advised(reason(connection)))
    if column == "id":
        assert "Column id of table my_message is not unique" in reason(connection)
        connection.execute(advised(reason(connection)))
    assert the_table(connection).layout.edition == edition


@pytest.mark.parametrize(
    "directive",
    ["vt_ack_wait", "vt_purge_after", "vt_batch_size", "vt_cache_size", "vt_poller_interval"],
)
@pytest.mark.parametrize("ddl", [CURRENT, FIRST], ids=["current", "first"])
def test_missing_directive_rejects_the_table(
    connection: Connection, ddl: str, directive: str
) -> None:
    connection.execute(re.sub(rf",{directive}=\d+", "", ddl))
    assert reason(connection).startswith(f"Table my_message has no directive {directive}. ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("time_next DATETIME", "time_next of table my_message has the type datetime"),
        ("time_acked INT", "time_acked of table my_message has the type int"),
        ("epoch TINYINT NOT NULL", "epoch of table my_message has the type tinyint"),
        ("epoch FLOAT", "epoch of table my_message has the type float"),
        ("priority VARCHAR(9)", "priority of table my_message has the type varchar"),
        ("time_next BIGINT NOT NULL", "time_next of table my_message is NOT NULL"),
        ("epoch BIGINT AS (id * 2) STORED", "epoch of table my_message is generated"),
        ("epoch BIGINT AS (id * 2) VIRTUAL", "epoch of table my_message is generated"),
    ],
)
def test_odd_type_rejects_the_table_until_the_advice_is_followed(
    connection: Connection, change: str, said: str
) -> None:
    connection.execute(CURRENT)
    if " AS " in change:  # a plain column does not become a generated one by MODIFY
        connection.execute("ALTER TABLE my_message DROP COLUMN epoch")
        connection.execute(f"ALTER TABLE my_message ADD COLUMN {change}")
    else:
        connection.execute(f"ALTER TABLE my_message MODIFY COLUMN {change}")
    assert said in reason(connection)
    if "VIRTUAL" not in change:
        connection.execute(advised(reason(connection)))
        assert the_table(connection).layout.edition == "current"


@pytest.mark.parametrize(
    "definition",
    ["VARCHAR(40)", "BINARY(16)", "CHAR(36)", "BIGINT UNSIGNED", "DECIMAL(20,0)", "DATETIME(3)"],
)
def test_id_may_have_any_type(connection: Connection, definition: str) -> None:
    connection.execute(CURRENT.replace("id bigint NOT NULL", f"id {definition} NOT NULL", 1))
    assert the_table(connection).layout.id.data_type == re.split(r"\W", definition.lower())[0]


def test_further_columns_may_have_any_type(connection: Connection) -> None:
    connection.execute(CURRENT)
    types = ["DATETIME(6)", "ENUM('a','b')", "SET('a')", "BLOB", "DOUBLE", "BIT(3)", "YEAR"]
    for number, name in enumerate(types):
        connection.execute(f"ALTER TABLE my_message ADD COLUMN extra{number} {name} FIRST")
    connection.execute("ALTER TABLE my_message ADD COLUMN twice BIGINT AS (id * 2) VIRTUAL")
    names = [one.name for one in the_table(connection).layout.further]
    assert names == [*(f"extra{n}" for n in reversed(range(7))), "tenant_id", "message", "twice"]


def test_engine_without_transactions_is_rejected(connection: Connection) -> None:
    # MyISAM of MySQL has no descending indexes.
    connection.execute(CURRENT.rstrip().replace(" desc)", ")") + " engine=MyISAM")
    assert "uses MyISAM" in reason(connection)
    connection.execute(advised(reason(connection)))
    assert the_table(connection).name == "my_message"


def test_name_that_cannot_be_a_topic_is_rejected(connection: Connection) -> None:
    connection.execute(named(CURRENT, "my messages"))
    assert "'my messages' cannot be a topic name" in reason(connection)


def test_bad_tables_do_not_hide_good_ones(connection: Connection) -> None:
    connection.execute(CURRENT)
    connection.execute("CREATE TABLE broken (id INT) COMMENT 'vitess_message'")
    connection.execute(named(FIRST, "slow").replace("vt_ack_wait=30", "vt_ack_wait=30s"))
    found = Discovery().look(connection)
    assert list(found.good) == ["my_message"]
    assert sorted(found.rejected) == ["broken", "slow"]
    assert "vt_ack_wait" in found.rejected["slow"].reason


# -- repeated looks ------------------------------------------------------------


def test_look_at_unchanged_tables_returns_the_same_objects(connection: Connection) -> None:
    connection.execute(CURRENT)
    connection.execute("CREATE TABLE broken (id INT) COMMENT 'vitess_message'")
    discovery = Discovery()
    found = discovery.look(connection)
    connection.execute("INSERT INTO my_message (id, message) VALUES (1, '{}')")
    connection.execute("CREATE TABLE other (id INT)")
    assert discovery.look(connection) is found


def test_altered_comment_is_seen_and_other_tables_stay_the_same(connection: Connection) -> None:
    """V13: the directives follow the COMMENT."""
    connection.execute(CURRENT)
    connection.execute(named(FIRST, "other"))
    discovery = Discovery()
    before = discovery.look(connection)
    comment = comment_of(CURRENT).replace("vt_ack_wait=30", "vt_ack_wait=0.5")
    connection.execute(f"ALTER TABLE my_message COMMENT '{comment}'")
    after = discovery.look(connection)
    assert before.good["my_message"].directives.ack_wait_ms == 30_000
    assert after.good["my_message"].directives.ack_wait_ms == 500
    assert after.good["other"] is before.good["other"]

    connection.execute("ALTER TABLE my_message COMMENT 'vitess_message'")
    after = discovery.look(connection)
    assert "has no directives" in after.rejected["my_message"].reason
    connection.execute(f"ALTER TABLE my_message COMMENT '{comment}'")
    assert discovery.look(connection).good["my_message"].directives.ack_wait_ms == 500
    connection.execute("ALTER TABLE my_message COMMENT ''")
    assert list(discovery.look(connection).good) == ["other"]


def test_added_and_dropped_columns_are_seen(connection: Connection) -> None:
    connection.execute(CURRENT)
    discovery = Discovery()
    discovery.look(connection)
    connection.execute("ALTER TABLE my_message ADD COLUMN note TEXT AFTER id")
    further = discovery.look(connection).good["my_message"].layout.further
    assert [one.name for one in further] == ["note", "tenant_id", "message"]
    connection.execute("ALTER TABLE my_message DROP COLUMN tenant_id")
    further = discovery.look(connection).good["my_message"].layout.further
    assert [one.name for one in further] == ["note", "message"]
    connection.execute("ALTER TABLE my_message DROP COLUMN time_acked")
    found = discovery.look(connection)
    assert "no column time_acked" in found.rejected["my_message"].reason
    connection.execute(advised(found.rejected["my_message"].reason))
    assert list(discovery.look(connection).good) == ["my_message"]


def test_dropped_key_is_seen(connection: Connection) -> None:
    connection.execute(FIRST)
    discovery = Discovery()
    discovery.look(connection)
    connection.execute("ALTER TABLE my_message DROP INDEX id_idx")
    assert "is not unique" in discovery.look(connection).rejected["my_message"].reason


def test_dropped_and_renamed_tables_are_seen(connection: Connection) -> None:
    """V13: a dropped table is no longer found."""
    connection.execute(CURRENT)
    connection.execute(named(FIRST, "other"))
    discovery = Discovery()
    assert sorted(discovery.look(connection).good) == ["my_message", "other"]
    connection.execute("DROP TABLE my_message")
    assert list(discovery.look(connection).good) == ["other"]
    connection.execute("RENAME TABLE other TO another")
    assert list(discovery.look(connection).good) == ["another"]


class _Altering:
    """A connection before whose statement with a text another session alters a table."""

    def __init__(self, connection: Connection, text: str, alter: Callable[[], object]) -> None:
        self._connection = connection
        self._text = text
        self._alter = alter

    def execute(self, sql: str) -> Result:
        if self._text in sql:
            self._alter()
        return self._connection.execute(sql)


@pytest.mark.parametrize("before", ["information_schema.COLUMNS", "information_schema.STATISTICS"])
def test_look_that_meets_an_alter_table_changes_nothing(
    connection: Connection, before: str
) -> None:
    """V13: the columns of the next definition do not reject the table with the COMMENT of now."""
    connection.execute(CURRENT)
    discovery = Discovery()
    found = discovery.look(connection)

    def alter() -> None:
        connection.execute(
            "ALTER TABLE my_message DROP COLUMN tenant_id, DROP INDEX poller_idx,"
            f" COMMENT '{comment_of(CURRENT)},vt_message_cols=id'"
        )

    altering = cast(Connection, _Altering(connection, before, alter))
    assert discovery.look(altering, in_full=True) is found
    after = discovery.look(connection)
    assert after.good["my_message"].directives.message_cols == ("id",)


def test_first_look_that_meets_an_alter_table_fails(connection: Connection) -> None:
    """V13: it must not say that there are no tables."""
    connection.execute(CURRENT)
    altering = _Altering(
        connection,
        "information_schema.COLUMNS",
        lambda: connection.execute("RENAME TABLE my_message TO mine"),
    )
    with pytest.raises(StorageError, match="altered while") as caught:
        Discovery().look(cast(Connection, altering))
    assert caught.value.retryable


def test_table_that_is_being_renamed_is_kept(connection: Connection, mysql_url: str) -> None:
    """V13: MariaDB leaves the table out for sessions with a named lock, which brokers have."""
    connection.execute(CURRENT)
    connection.execute("CREATE TABLE other (id INT)")
    connection.execute("DO GET_LOCK(CONCAT(DATABASE(), '.a'), 0)")
    discovery = Discovery()
    found = discovery.look(connection)
    engine = MysqlEngine(MysqlAddress.parse(mysql_url))
    with closing(engine.connect()) as reader, closing(engine.connect()) as writer:
        reader.snapshot()
        reader.execute("SELECT * FROM other")
        rename = "RENAME TABLE my_message TO mine, other TO another"
        with ThreadPoolExecutor(1) as pool:
            renaming = pool.submit(writer.execute, rename)
            waiting = f"SELECT STATE FROM information_schema.PROCESSLIST WHERE ID = {writer.id}"
            while "metadata lock" not in str(connection.execute(waiting).rows):
                pass
            assert [discovery.look(connection) is found for _ in range(3)] == [True] * 3
            reader.rollback()
            renaming.result()
    assert list(discovery.look(connection).good) == ["mine"]


def test_look_at_many_unchanged_tables_has_one_statement(connection: Connection) -> None:
    for number in range(300):
        connection.execute(named(CURRENT if number % 2 else FIRST, f"m{number}"))
    let_tables_be_old(connection)
    discovery = Discovery()
    for in_full, statements in [(False, LOOK), (False, 1), (True, LOOK), (False, 1)]:
        before = questions(connection)
        found = discovery.look(connection, in_full=in_full)
        assert questions(connection) - before - 1 == statements
        assert (len(found.good), len(found.rejected)) == (300, 0)


def test_each_alter_table_is_seen_by_the_first_statement_of_a_look(
    connection: Connection,
) -> None:
    """V13: so a broker with many tables need not read all their definitions often."""
    alters = [
        "COMMENT 'vitess_message'",
        "ADD COLUMN note TEXT",
        "DROP COLUMN tenant_id",
        "CHANGE COLUMN tenant_id customer_id BIGINT",
        "MODIFY COLUMN message VARCHAR(99)",
        "MODIFY COLUMN message VARCHAR(99), ALGORITHM=COPY",
        "DROP INDEX poller_idx",
        "ADD UNIQUE INDEX (id, tenant_id)",
    ]
    daily = " PARTITION BY RANGE (id) (PARTITION p1 VALUES LESS THAN (9))"
    names = [f"m{number}" for number in range(2 * len(alters))]
    for name in names:
        options = daily if int(name[1:]) >= len(alters) else ""
        connection.execute(named(CURRENT, name) + options)
    connection.execute("DO SLEEP(1.1)")  # CREATE_TIME has whole seconds
    let_tables_be_old(connection)
    discovery = Discovery()
    found = discovery.look(connection)
    assert sorted(found.good) == sorted(names)
    for name, alter in zip(names, 2 * alters, strict=True):
        connection.execute(f"ALTER TABLE {name} {alter}")
        before, found = found, discovery.look(connection)
        kept = [one for one in names if found.good.get(one) is before.good.get(one, 0)]
        assert found is not before, (name, alter)
        assert name not in kept, (name, alter)
    assert discovery.look(connection) is found


def test_look_at_a_database_without_message_tables_has_two_statements(
    connection: Connection,
) -> None:
    connection.execute("CREATE TABLE other (id INT)")
    before = questions(connection)
    Discovery().look(connection)
    assert questions(connection) - before - 1 == 2


# -- due rows ------------------------------------------------------------------


def target(table: MessageTable, *priorities: int | None, most: int = 10) -> Target:
    """Return a target with these known priorities, rows until 30 and ``most`` rows of each."""
    return Target(table, priorities, 30, 0, most * len(priorities), priorities)


@pytest.mark.parametrize("rows", [0, 1, 5, 1000])
@pytest.mark.parametrize(
    ("ddl", "index"), [(CURRENT, "poller_idx"), (FIRST, "next_idx")], ids=["current", "first"]
)
def test_missing_index_is_a_warning_until_the_advice_is_followed(
    connection: Connection, ddl: str, index: str, rows: int
) -> None:
    connection.execute(ddl)
    table = the_table(connection)
    edition = table.layout.edition
    names = ["id", "time_next", *(["time_scheduled"] if edition == "first" else [])]
    marks = ", ".join("?" * len(names))
    connection.begin()
    connection.execute_many(
        f"INSERT INTO my_message ({', '.join(names)}) VALUES ({marks})",
        [(number,) * len(names) for number in range(rows)],
    )
    connection.commit()
    connection.execute("ANALYZE TABLE my_message")
    assert index_warning(connection, table) is None
    connection.execute(f"ALTER TABLE my_message DROP INDEX {index}")
    warning = index_warning(connection, the_table(connection))
    assert warning is not None
    assert f"`{index}`" in warning
    connection.execute(advised(warning))
    assert index_warning(connection, the_table(connection)) is None


@pytest.mark.parametrize(
    ("ddl", "index", "warns"),
    [
        (CURRENT, "priority", True),
        (CURRENT, "time_next", True),
        (CURRENT, "priority, time_next", True),
        (CURRENT, "time_acked", True),  # all waiting messages are sorted
        (CURRENT, "time_acked, priority, time_next", False),
        (CURRENT, "time_acked, priority, time_next, id", False),
        (FIRST, "time_scheduled", True),
        (FIRST, "time_acked, time_next", False),
        (FIRST, "time_next, epoch", False),
    ],
)
@pytest.mark.parametrize("rows", [0, 3000])
def test_index_that_does_not_find_due_rows_is_a_warning(
    connection: Connection, ddl: str, index: str, warns: bool, rows: int
) -> None:
    """V3: although the index has a column of the condition, or the table has few rows."""
    connection.execute(ddl)
    edition = the_table(connection).layout.edition
    old = {"current": "poller_idx", "first": "next_idx"}[edition]
    connection.execute(f"ALTER TABLE my_message DROP INDEX {old}, ADD INDEX other ({index})")
    names = ["id", "time_acked", *(["time_scheduled"] if edition == "first" else [])]
    marks = ", ".join("?" * len(names))
    connection.begin()
    connection.execute_many(
        f"INSERT INTO my_message ({', '.join(names)}) VALUES ({marks})",
        [(number,) * len(names) for number in range(rows)],
    )
    connection.commit()
    connection.execute("ANALYZE TABLE my_message")
    warning = index_warning(connection, the_table(connection))
    assert (warning is not None) == warns
    if warning is not None:
        connection.execute(advised(warning))
        assert index_warning(connection, the_table(connection)) is None


@pytest.mark.parametrize("type", ["INT", "INT UNSIGNED", "BIGINT"])
def test_few_statements_find_all_priorities_without_reading_their_rows(
    connection: Connection, type: str
) -> None:
    """V9: also if very many rows have the same priority."""
    connection.execute(CURRENT)
    connection.execute(f"ALTER TABLE my_message MODIFY COLUMN priority {type} NULL")
    table = the_table(connection)
    priorities = [*range(300), 5_000, 1_000_000, 2_000_000_000]
    rows = [50] * 20_000 + priorities
    connection.begin()
    connection.execute_many(
        "INSERT INTO my_message (id, priority) VALUES (?, ?)", list(enumerate(rows))
    )
    connection.execute("INSERT INTO my_message (id, priority, time_acked) VALUES (-1, 777, 5)")
    connection.commit()

    def reads() -> int:
        return sum(int(n) for _, n in connection.execute("SHOW STATUS LIKE 'Handler_read%'").rows)

    reads_before, before = reads(), questions(connection)
    in_use = priorities_in_use(connection, {7: Wanted(table, None)})
    assert questions(connection) - before <= 40
    assert reads() - reads_before < 2_000
    assert in_use == {7: InUse(tuple(priorities), ends=True)}
    connection.execute("INSERT INTO my_message (id, priority) VALUES (-2, NULL)")
    reads_before = reads()
    in_use = priorities_in_use(connection, {7: Wanted(table, 298)})
    assert reads() - reads_before < 1_000
    assert in_use == {7: InUse((299, *priorities[300:], None), ends=True)}
    before = questions(connection)
    (polled,) = poll(connection, [target(table, 50)])
    assert questions(connection) - before <= 40
    assert polled.in_use == InUse((*priorities, None), ends=True)
    assert {row.priority for row in polled.rows} == set(priorities[:256])


def test_more_priorities_than_can_be_known_are_found_in_parts(connection: Connection) -> None:
    connection.execute(CURRENT)
    connection.execute("ALTER TABLE my_message MODIFY COLUMN priority INT NULL")
    table = the_table(connection)
    priorities: list[int | None] = [number * number for number in range(2 * MOST_KNOWN + 100)]
    priorities.append(None)
    connection.begin()
    connection.execute_many(
        "INSERT INTO my_message (id, priority) VALUES (?, ?)", list(enumerate(priorities))
    )
    connection.commit()
    found: list[int | None] = []
    ends = []
    for _ in range(3):
        after = found[-1] if found else None
        (in_use,) = priorities_in_use(connection, {0: Wanted(table, after)}).values()
        found += in_use.values
        ends.append(in_use.ends)
    assert found == priorities
    assert ends == [False, False, True]


def test_priorities_of_tables_are_found_without_an_index(connection: Connection) -> None:
    connection.execute(CURRENT)
    connection.execute("ALTER TABLE my_message DROP INDEX poller_idx")
    table = the_table(connection)
    connection.execute("INSERT INTO my_message (id, priority) VALUES (1, 7), (2, 9), (3, 100)")
    assert priorities_in_use(connection, {0: Wanted(table, None), 1: Wanted(table, 7)}) == {
        0: InUse((7, 9, 100), ends=True),
        1: InUse((9, 100), ends=True),
    }


def test_poll_finds_the_oldest_due_rows_of_each_priority(connection: Connection) -> None:
    """V5: NULL in time_next means now, and old rows of a low priority are found too."""
    connection.execute(CURRENT)
    connection.execute(
        "INSERT INTO my_message (id, priority, epoch, time_next, time_acked) VALUES"
        " (1, 50, 0, 10, NULL), (2, 50, 3, 20, NULL), (3, 7, 0, 30, NULL), (4, 7, 0, 31, NULL),"
        " (5, 0, 0, NULL, 5), (6, 50, 0, NULL, NULL), (7, -3, 0, 0, NULL)"
    )
    table = the_table(connection)

    def found(*priorities: int, most: int = 10) -> tuple[list[tuple[object, ...]], object, bool]:
        (polled,) = poll(connection, [target(table, *priorities, most=most)])
        return [row[:4] for row in polled.rows], polled.in_use, polled.is_full

    in_50 = [(6, 50, 0, None), (1, 50, 0, 10), (2, 50, 3, 20)]
    more_urgent = [(7, -3, 0, 0), (3, 7, 0, 30)]
    assert found(50, 7, -3) == ([*more_urgent, *in_50], None, False)
    assert found(50, 7, -3, most=1)[0] == [*more_urgent, *in_50[:2]]  # without and with a time
    assert found(50, 7, -3, most=1)[2]
    assert found(50)[:2] == ([*more_urgent, *in_50], InUse((-3, 7, 50), ends=True))
    assert found(*range(1000))[:2] == ([*more_urgent, *in_50], InUse((-3, 7, 50), ends=True))


def test_poll_finds_rows_of_the_same_time_in_the_order_of_their_ids(connection: Connection) -> None:
    """V5: most rows have the default of 0 in time_next, or NULL."""
    connection.execute(CURRENT)
    for id in (1, 3, 5, 7, 2, 4, 6, 8):
        connection.execute(f"INSERT INTO my_message (id) VALUES ({id})")
        connection.execute(f"INSERT INTO my_message (id, time_next) VALUES ({id + 10}, NULL)")
        connection.execute(f"INSERT INTO my_message (id, time_next) VALUES ({id + 20}, 9)")
    (polled,) = poll(connection, [target(the_table(connection), 50, most=5)])
    ids = [row.id for row in polled.rows]
    assert ids[:10] == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]
    assert ids[10:] == sorted(ids[10:])


def test_poll_finds_rows_whose_priority_is_null(connection: Connection) -> None:
    """V5: NULL counts as 50."""
    connection.execute(CURRENT)
    connection.execute("ALTER TABLE my_message MODIFY COLUMN priority INT NULL")
    connection.execute("INSERT INTO my_message (id, priority) VALUES (1, NULL), (2, 50)")
    table = the_table(connection)
    for known, found in (((50,), InUse((50, None), ends=True)), ((50, None), None)):
        (polled,) = poll(connection, [target(table, *known, most=5)])
        assert polled.in_use == found
        assert [row[:2] for row in polled.rows] == [(1, 50), (2, 50)]


def test_new_row_of_the_first_edition_is_due_at_time_scheduled(connection: Connection) -> None:
    """V8: an absent priority counts as 50, and time_scheduled is the first time_next."""
    connection.execute(FIRST)
    connection.execute(
        "INSERT INTO my_message (time_scheduled, id, time_next, epoch, time_acked) VALUES"
        " (1, 1, NULL, NULL, NULL), (2, 2, 20, 1, NULL), (3, 3, NULL, 1, 9),"
        " (40, 4, NULL, NULL, NULL), (5, 5, 50, 2, NULL)"
    )
    (polled,) = poll(connection, [target(the_table(connection), 50)])
    assert [row[:4] for row in polled.rows] == [(1, 50, 0, 1), (2, 50, 1, 20)]


def test_one_statement_polls_tables_with_ids_of_different_types(connection: Connection) -> None:
    ids = {
        "BIGINT UNSIGNED": ("18446744073709551615", "18446744073709551615"),
        "BIGINT": ("-9223372036854775808", -(1 << 63)),
        "VARBINARY(9)": ("x'00ff'", b"\x00\xff"),
        "VARCHAR(40)": ("'caf\u00e9 '", "caf\u00e9 "),
        "DECIMAL(30, 5)": ("123456789012345678901234.12345", "123456789012345678901234.12345"),
        "DATETIME(6)": ("'2026-12-24 18:00:00.000001'", "2026-12-24 18:00:00.000001"),
    }
    for number, (type, (literal, _)) in enumerate(ids.items()):
        ddl = CURRENT.replace("my_message", f"t{number}").replace("id bigint", f"id {type}")
        connection.execute(ddl)
        connection.execute(f"INSERT INTO t{number} (id) VALUES ({literal})")
    tables = Discovery().look(connection).good
    targets = [target(table, 50) for _, table in sorted(tables.items())]
    for some in (targets[:3], targets[3:], targets * 4):
        polled = poll(connection, some)
        assert [one.rows[0].id for one in polled] == [
            ids_of
            for target in some
            for ids_of in [list(ids.values())[int(target.table.name[1:])][1]]
        ]
