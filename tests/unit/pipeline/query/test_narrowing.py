"""Which messages a query needs, by its WHERE clause."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from escapement.pipeline.query.narrowing import Narrowing, narrowed
from escapement.pipeline.selection import Selection, Span
from support.seeds import seeds

HOUR_MS = 3_600_000
START_MS = 1_795_600_000_000 // HOUR_MS * HOUR_MS


def written(ms: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return f"{at:%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"


def rows(rng: random.Random) -> list[tuple[Any, ...]]:
    found = []
    for topic in ("a", "b", "a b"):
        for offset in range(8):
            times = [START_MS + rng.choice([0, 1, HOUR_MS, 24 * HOUR_MS]) for _ in "12"]
            due, published = times
            found.append((topic, offset, due, written(due), published, written(published)))
    return found


class Queries:
    """Random queries over ``messages`` with conditions that narrow, and others beside them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def query(self) -> str:
        alias = self.rng.choice(["", "", " m", " AS m"])
        self.prefix = self.rng.choice(["", "m."]) if alias else ""
        select = self.rng.choice(["topic, offset", "count(*)", "DISTINCT offset", "max(offset)"])
        after = self.rng.choice(["", " ORDER BY 1", " GROUP BY topic", " LIMIT 3", ";", " -- AND"])
        where = f" WHERE {self.condition(3)}" if self.rng.random() < 0.95 else ""
        sql = f"SELECT {select} FROM messages{alias}{where}{after}"
        if self.rng.random() < 0.1 and after in ("", " GROUP BY topic"):
            sql += f" UNION ALL SELECT {select} FROM messages WHERE offset > 3"
        return sql if self.rng.random() < 0.5 else sql.replace("FROM", "\n from\t/* or */ ")

    def condition(self, depth: int) -> str:
        kind = self.rng.random()
        if depth and kind < 0.45:
            return f"{self.condition(depth - 1)} {self.word('AND')} {self.condition(depth - 1)}"
        if depth and kind < 0.55:
            return f"{self.condition(depth - 1)} {self.word('OR')} {self.condition(depth - 1)}"
        if depth and kind < 0.6:
            return f"NOT {self.condition(depth - 1)}"
        if depth and kind < 0.7:
            return f"({self.condition(depth - 1)})"
        if depth and kind < 0.75:
            one, other = self.condition(depth - 1), self.condition(0)
            return f"CASE WHEN {one} THEN 0 ELSE 1 AND {other} AND 1 END"
        if depth and kind < 0.8:
            return f"{self.rng.choice([0, 1])} BETWEEN 0 AND {self.simple()}"
        return self.simple()

    def word(self, text: str) -> str:
        return self.rng.choice([text, text.lower()])

    def column(self, name: str) -> str:
        return self.prefix + self.rng.choice([name, name, name.upper(), f'"{name}"'])

    def simple(self) -> str:
        operator = self.rng.choice(["=", "==", "<", "<=", ">", ">=", "<>", "IS"])
        at = START_MS + self.rng.choice([0, 1, HOUR_MS, 24 * HOUR_MS])
        text = written(at)[: self.rng.choice([10, 16, 19, 23])]
        time, topic = self.rng.choice(["deliver_at", "published_at"]), self.column("topic")
        texts = ["'a'", "'b'", "'a b'", "'a'' OR 1=1'", "'AND'", '"offset"']
        return self.rng.choice(
            [
                f"{topic} {operator} {self.rng.choice(texts)}",
                f"{topic} = 'a'",
                f"{topic} IN ('a', 'a b')",
                f"{topic} IN ('a')",
                f"{topic} NOT IN ('a')",
                f"{topic} = 'A' COLLATE NOCASE",
                f"{self.column('offset')} {operator} {self.rng.randint(0, 8)}",
                f"{self.column('offset')} {operator} 2.5",
                f"{self.column('offset')} + 1 > 3",
                f"{self.column(time)} {operator} '{text}'",
                f"{self.column(time)} {operator} '2026-13-77'",
                f"{self.column(time + '_ms')} {operator} {at}",
                "1 = 1",
                "'x AND ' || topic = 'x AND a'",
                # SQLite reads a quoted name that does not exist as text.
                """"z AND topic = 'a' AND z" > ''""",
            ]
        )


def result(found: list[tuple[Any, ...]], sql: str) -> list[Any]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            "CREATE TABLE messages (topic TEXT, offset INTEGER, deliver_at_ms INTEGER,"
            " deliver_at TEXT, published_at_ms INTEGER, published_at TEXT)"
        )
        database.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", found)
        return database.execute(sql).fetchall()


@pytest.mark.parametrize("seed", seeds(range(6)))
def test_narrowing_leaves_out_no_message_of_the_result(seed: int) -> None:
    """V15: SQLite returns the same for the needed messages as for all messages."""
    rng = random.Random(seed)
    every, queries = rows(rng), Queries(rng)
    narrow = 0
    for _ in range(300):
        sql = queries.query()
        found = narrowed(sql)
        selection = found.selection
        needed = [
            row
            for row in every
            if (found.topics is None or row[0] in found.topics)
            and selection.offsets.meets(row[1], row[1])
            and selection.due.meets(row[2], row[2])
            and selection.published.meets(row[4], row[4])
        ]
        narrow += len(needed) < len(every)
        assert result(needed, sql) == result(every, sql), sql
    assert narrow > 30, "the queries narrow too rarely"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("topic = 'a'", Narrowing(frozenset({"a"}))),
        ("m.topic in ('a','b') AND topic IN ('b', 'c');", Narrowing(frozenset({"b"}))),
        ("topic = 'it''s' GROUP BY 1", Narrowing(frozenset({"it's"}))),
        ("offset BETWEEN 3 AND 5 AND topic = 'a'", Narrowing(frozenset({"a"}))),
        ("offset >= 3 AND m.offset < 7 AND 1", Narrowing(None, Selection(Span(3, 7)))),
        (
            "deliver_at < '2026-12-24 18:00'",
            Narrowing(None, Selection(due=Span(0, 1_798_135_200_001))),
        ),
        ("published_at_ms > 10", Narrowing(None, Selection(published=Span(10)))),
        ("topic = 'a' OR topic = 'b'", Narrowing()),
        ("NOT topic = 'a'", Narrowing()),
    ],
)
def test_conditions_with_constants_narrow(where: str, expected: Narrowing) -> None:
    """V15."""
    assert narrowed(f"SELECT * FROM messages AS m WHERE {where}") == expected


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT 1",
        "SELECT * FROM messages",
        "SELECT * FROM messages a JOIN messages b ON 1 WHERE a.topic = 'a'",
        "SELECT * FROM messages a, messages b WHERE topic = 'a'",
        "SELECT * FROM messages LEFT JOIN x WHERE topic = 'a'",
        "WITH m AS (SELECT 1) SELECT * FROM messages WHERE topic = 'a'",
        "SELECT (SELECT 1 FROM messages) FROM messages WHERE topic = 'a'",
        "SELECT * FROM x WHERE topic = 'a'",
    ],
)
def test_other_queries_need_all_messages(sql: str) -> None:
    """V15."""
    assert narrowed(sql) == Narrowing()
