"""Values of every type of column, from the database to a row, compared with the driver's values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import msgpack
import numpy as np
import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymysql.cursors import Cursor

from escapement.identifier import quoted
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.tables.columns import Column
from escapement.tables.discovery import Discovery
from escapement.tables.fields import column_expression, fields_of, read_row
from support.database.message_tables import CURRENT

INTEGERS: Final = [
    (f"{name} {sign}", values)
    for name, bits in [("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32)]
    for sign, values in [
        ("", [-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1]),
        ("unsigned", [0, 2**bits - 1]),
    ]
]
# The definition of each column, and values for it.
COLUMNS: Final[list[tuple[str, list[Any]]]] = [
    *INTEGERS,
    ("bigint", [-(2**63), 2**63 - 1]),
    ("bigint unsigned zerofill", [0, 42, 2**64 - 1]),
    ("boolean", [True, False]),
    ("bit(1)", [0, 1]),
    ("bit(64)", [0, 5, 2**63, 2**64 - 1]),
    ("year", [1901, 2155, 0]),
    ("decimal(65,30)", ["-" + "9" * 35 + "." + "9" * 30, "0.000000000000000000000000000001", 0]),
    ("decimal(9,2) unsigned zerofill", ["1.50", 0]),
    ("double", [0.1, -1.7976931348623157e308, 5e-324, 1e22, 1e15, 123456789.123456789, -0.0]),
    ("double(12,3)", [1.5, -1234.567]),
    ("float", [0.1, 1.5, -3.402823e38, 1.175494e-38, 123456]),
    ("datetime", ["1000-01-01 00:00:00", "9999-12-31 23:59:59", "2024-02-29 12:30:00"]),
    ("datetime(6)", ["2024-02-29 12:30:00.000001", "0000-00-00 00:00:00"]),
    ("datetime(1)", ["2024-02-29 12:30:00.5", "2024-00-00 00:00:00"]),
    ("timestamp null", ["1970-01-01 00:00:01", "2038-01-19 03:14:07"]),
    ("timestamp(3) null", ["2024-03-31 02:30:00.123"]),
    ("date", ["1000-01-01", "9999-12-31", "0000-00-00", "2024-02-00"]),
    ("time", ["-838:59:59", "838:59:59", "00:00:00", "-00:00:01"]),
    ("time(6)", ["-838:59:58.999999", "12:00:00.000001"]),
    ("time(2)", ["-00:00:00.05"]),
    ("char(5)", ["", "a", "äöü€😀"]),
    ("varchar(20)", ["", "a\0b", "NULL", "'\"\\"]),
    ("varchar(20) character set latin1", ["äöü"]),
    ("varchar(20) character set utf16", ["äöü€😀"]),
    ("tinytext", ["x" * 255]),
    ("mediumtext", ["y" * 100_000]),
    ("longtext", ["ü" * 2_000_000]),
    ("enum('a','ä,b','')", ["a", "ä,b", ""]),
    ("set('a','b','ü')", ["", "a", "a,b,ü"]),
    ("binary(4)", [b"\xff", b"abcd"]),
    ("varbinary(20)", [b"", b"\x00\xff", b"text"]),
    ("tinyblob", [bytes(255)]),
    ("mediumblob", [bytes(range(256)) * 400]),
    ("longblob", [bytes(range(256)) * 8000]),
]
MARIADB_COLUMNS: Final[list[tuple[str, list[Any]]]] = [
    ("uuid", ["123e4567-e89b-12d3-a456-426655440000"]),
    ("inet6", ["::1", "2001:db8::ff00:42:8329"]),
    ("inet4", ["192.0.2.1"]),
    ("text compressed", ["x" * 3000]),
]
GEOMETRIES: Final = [
    ("point", "POINT(1 2)"),
    ("linestring", "LINESTRING(0 0,1 1)"),
    ("polygon", "POLYGON((0 0,1 0,1 1,0 0))"),
    ("multipoint", "MULTIPOINT(0 0,1 1)"),
    ("multilinestring", "MULTILINESTRING((0 0,1 1))"),
    ("multipolygon", "MULTIPOLYGON(((0 0,1 0,1 1,0 0)))"),
    ("geometrycollection", "GEOMETRYCOLLECTION(POINT(1 2))"),
    ("geometry", "POINT(3 4)"),
]


@pytest.fixture(scope="module")
def connection(mysql_url_of_module: str) -> Iterator[Connection]:
    engine = MysqlEngine(MysqlAddress.parse(mysql_url_of_module))
    with closing(engine.connect()) as connection:
        yield connection


@pytest.fixture(scope="module")
def cursor(mysql_url_of_module: str) -> Iterator[Cursor]:
    """Return a cursor of the plain driver, in a session that accepts every value."""
    address = MysqlAddress.parse(mysql_url_of_module)
    with (
        closing(
            pymysql.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                database=address.database,
                charset="utf8mb4",
                autocommit=True,
            )
        ) as driver,
        driver.cursor() as cursor,
    ):
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        yield cursor


def create(cursor: Cursor, connection: Connection, definitions: list[str]) -> list[Column]:
    """Create a message table with these columns, and return the columns as they were found."""
    cursor.execute("DROP TABLE IF EXISTS my_message")
    cursor.execute(CURRENT)
    added = ", ".join(f"ADD COLUMN `c``{i}` {text}" for i, text in enumerate(definitions))
    cursor.execute(f"ALTER TABLE my_message {added}")
    table = Discovery().look(connection).good["my_message"]
    return [found for found in table.layout.further if found.name.startswith("c`")]


def rows_of(connection: Connection, columns: list[Column]) -> list[dict[str, Any]]:
    """Return all rows, as a consumer gets them."""
    expressions = ", ".join(map(column_expression, columns))
    fields = fields_of(columns)
    found = connection.execute(f"SELECT {expressions} FROM my_message ORDER BY id").rows
    return [
        read_row(
            fields,
            msgpack.packb([x.encode() if isinstance(x, str) else x for x in row]),
        )
        for row in found
    ]


def insert(cursor: Cursor, values: list[list[Any]]) -> None:
    """Insert rows with the given values of each column, and one with NULL in all of them."""
    names = ", ".join(quoted(f"c`{i}") for i in range(len(values)))
    places = ", ".join(["%s"] * len(values))
    for row in range(max(map(len, values)) + 1):
        given = [column[row] if row < len(column) else None for column in values]
        cursor.execute(
            f"INSERT INTO my_message (id, {names}) VALUES (%s, {places})", [row + 1, *given]
        )


def expected(cursor: Cursor, columns: list[Column]) -> list[list[Any]]:
    """Return all rows as the driver returns them, with bits as numbers."""
    names = ", ".join(quoted(column.name) for column in columns)
    cursor.execute(f"SELECT {names} FROM my_message ORDER BY id")

    def value(column: Column, found: Any) -> Any:
        if column.data_type == "bit" and found is not None:
            return int.from_bytes(found)
        return found

    return [list(map(value, columns, row)) for row in cursor.fetchall()]


def test_values_of_every_type_are_those_of_the_driver(
    cursor: Cursor, connection: Connection
) -> None:
    """V11: columns of any type reach the consumer as typed values."""
    cursor.execute("SELECT VERSION()")
    row = cursor.fetchone()
    assert row is not None
    every = COLUMNS + (MARIADB_COLUMNS if "mariadb" in row[0].lower() else [])
    columns = create(cursor, connection, [definition for definition, _ in every])
    insert(cursor, [values for _, values in every])
    for got, driver in zip(rows_of(connection, columns), expected(cursor, columns), strict=True):
        assert list(got) == [column.name for column in columns]
        for column, mine, theirs in zip(columns, got.values(), driver, strict=True):
            if column.data_type == "float" and mine is not None:
                # The driver gets only 6 digits.
                assert float(f"{mine:.6g}") == theirs, column
            else:
                assert mine == theirs, column
            assert type(mine) is type(theirs), column


def test_json_is_parsed_although_mariadb_stores_it_as_text(
    cursor: Cursor, connection: Connection
) -> None:
    """V11: a check tells it from another LONGTEXT."""
    columns = create(cursor, connection, ["json", "json", "longtext"])
    assert [column.data_type for column in columns] == ["json", "json", "longtext"]
    text = '{"a": [1, 2.5, null, "ü"], "b": true}'
    insert(cursor, [[text, "7"], [None, "[]"], [text]])
    first, second, empty = rows_of(connection, columns)
    value = {"a": [1, 2.5, None, "ü"], "b": True}
    assert list(first.values()) == [value, None, text]
    assert list(second.values()) == [7, [], None]
    assert list(empty.values()) == [None, None, None]


def test_geometries_are_in_the_well_known_binary_format(
    cursor: Cursor, connection: Connection
) -> None:
    columns = create(cursor, connection, [kind for kind, _ in GEOMETRIES])
    names = ", ".join(quoted(f"c`{i}") for i in range(len(GEOMETRIES)))
    places = ", ".join(["ST_GeomFromText(%s)"] * len(GEOMETRIES))
    texts = [text for _, text in GEOMETRIES]
    cursor.execute(f"INSERT INTO my_message (id, {names}) VALUES (1, {places})", texts)
    cursor.execute("INSERT INTO my_message (id) VALUES (2)")
    first, empty = rows_of(connection, columns)
    stored, _ = expected(cursor, columns)
    # The driver's bytes begin with the SRID.
    assert list(first.values()) == [value[4:] for value in stored]
    assert list(empty.values()) == [None] * len(GEOMETRIES)


@given(
    st.lists(
        st.tuples(
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
        max_size=50,
    )
)
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_floating_point_numbers_arrive_exactly(
    cursor: Cursor, connection: Connection, numbers: list[tuple[float, float]]
) -> None:
    columns = create(cursor, connection, ["float", "double"])
    insert(cursor, [[repr(single) for single, _ in numbers], [d for _, d in numbers]])
    rows = [list(row.values()) for row in rows_of(connection, columns)]
    assert rows.pop() == [None, None]
    for (single, double), found in zip(numbers, rows, strict=True):
        assert np.float32(found[0]) == single
        assert found[1] == double
