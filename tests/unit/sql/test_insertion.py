"""The checks of arguments, and the statement that puts a message into an outbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from escapement import JSON, InvalidRequest, sql

NAMED = (
    "INSERT INTO escapement_outbox (topic, `key`, payload, headers, dedup_key, priority, due_at)"
)


class Cursor:
    """Executes nothing, and notes what it is asked to execute."""

    def __init__(self) -> None:
        self.executed: list[tuple[Any, ...]] = []

    def execute(self, *given: Any) -> None:
        self.executed.append(given)

    def fetchone(self) -> None: ...


class AsyncCursor(Cursor):
    async def execute(self, *given: Any) -> None:  # type: ignore[override]
        self.executed.append(given)


class CompiledAsyncCursor(Cursor):
    """Returns a coroutine from a plain function, as compiled drivers do."""

    def execute(self, *given: Any) -> Any:
        return AsyncCursor.execute(self, *given)  # type: ignore[arg-type]


def test_statement_has_one_placeholder_for_each_parameter() -> None:
    statement, parameters = sql.insertion("orders", b"x")
    assert statement == f"{NAMED} VALUES (%s, %s, FROM_BASE64(%s), %s, %s, %s, NULL)"
    assert parameters == ("public/default/orders", None, "eA==", None, None, 50)
    statement, parameters = sql.insertion(
        "shop/eu/orders",
        {"n": 1},
        delay="3m",
        key="é",
        properties={"a": [1, None]},
        priority=0,
        dedup="d",
        serializer=JSON,
    )
    assert statement.endswith("%s, UTC_TIMESTAMP(3) + INTERVAL %s MICROSECOND)")
    assert parameters == (
        *("shop/eu/orders", "é", "eyJuIjoxfQ==", '{"a":[1,null]}', "d", 0),
        180_000_000,
    )
    assert statement.count("%s") == len(parameters)


def test_time_is_in_utc_and_rounded_up_to_milliseconds() -> None:
    at = datetime(2030, 1, 1, 1, 0, 0, 1, timezone(timedelta(hours=2)))
    statement, parameters = sql.insertion("t", b"", at=at)
    assert statement.endswith(", %s)")
    assert parameters[-1] == "2029-12-31 23:00:00.001"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"topic": "no/topic"}, "topic"),
        ({"payload": "text"}, "serializer"),
        ({"payload": bytes(9 << 20)}, "payload"),
        ({"serializer": (lambda value: "text", bytes)}, "serializer"),
        ({"delay": "soon"}, "delay"),
        ({"delay": timedelta(days=40_000)}, "delay"),
        ({"delay": "1s", "at": datetime(2030, 1, 1, tzinfo=UTC)}, "both delay and at"),
        ({"at": datetime(2030, 1, 1)}, "at must be"),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "at must be"),
        ({"key": b"k"}, "key"),
        ({"key": "k" * 1025}, "key"),
        ({"properties": {"raw": b"\xff"}}, "property 'raw'"),
        ({"properties": {"nan": float("nan")}}, "property 'nan'"),
        ({"properties": ["x"]}, "properties"),
        ({"priority": 256}, "priority"),
        ({"dedup": ""}, "dedup"),
        ({"dedup": "d" * 256}, "dedup"),
    ],
)
def test_bad_argument_is_named_and_nothing_is_executed(
    arguments: dict[str, Any], part: str
) -> None:
    cursor = Cursor()
    with pytest.raises(InvalidRequest, match=part):
        sql.schedule(cursor, **{"topic": "t", "payload": b""} | arguments)
    assert cursor.executed == []


@pytest.mark.parametrize("kind", [AsyncCursor, CompiledAsyncCursor])
def test_asynchronous_cursor_is_refused_and_executes_nothing(kind: type[Cursor]) -> None:
    cursor = kind()
    with pytest.raises(InvalidRequest, match=r"escapement\.sql\.insertion"):
        sql.schedule(cursor, "t", b"")
    assert cursor.executed == []


def test_connection_of_sqlalchemy_executes_the_statement_of_the_driver() -> None:
    class Alchemy:
        executed: Any = None

        def exec_driver_sql(self, *given: Any) -> None:
            self.executed = given

        def execute(self, *given: Any) -> None:
            raise AssertionError("it takes no text")

    connection = Alchemy()
    sql.schedule(connection, "t", b"x")
    assert connection.executed == sql.insertion("t", b"x")


def test_object_that_is_no_cursor_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="DB-API cursor"):
        sql.schedule(object(), "t", b"")
