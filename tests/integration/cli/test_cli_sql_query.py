"""`escapement sql query`: SQL over the messages of a log."""

from __future__ import annotations

import csv
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from escapement import testing
from escapement.cli.main import run
from escapement.pipeline.query import query as query_module
from escapement.pipeline.source.part import Part
from escapement.storage import schema
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from support.code_blocks import DOCS, blocks
from support.storage.eventful_log import CONFIG, HOUR_MS, TOPIC, Expected, fill

Ask = Callable[..., list[dict[str, Any]]]


@dataclass
class FilledLog:
    """A log with a long history, the options that name it, and its expected messages."""

    engine: Engine
    options: list[str]
    expected: list[Expected]


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FilledLog]:
    url = request.getfixturevalue("mysql_url_of_module") if request.param == "mysql" else None
    directory = tmp_path_factory.mktemp("log")
    engine = open_engine(url, directory)
    expected = fill(engine)
    yield FilledLog(engine, options(url, directory), expected)
    engine.close()


def options(url: str | None, directory: Path) -> list[str]:
    if url is None:
        return ["--data", str(directory)]
    address = MysqlAddress.parse(url)
    return [
        *("--log", f"mysql://{address.host}:{address.port}/{address.database}"),
        *("--user", address.user),
    ]


@pytest.fixture
def ask(log: FilledLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that runs a query and returns the rows as dictionaries."""
    return asking(log.engine, log.options, capsys, monkeypatch)


def asking(
    engine: Engine,
    where: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Ask:
    if engine.kind == "mysql":
        monkeypatch.setenv("ESCAPEMENT_PASSWORD", engine._address.password)  # type: ignore[attr-defined]

    def ask(sql: str, *words: str) -> list[dict[str, Any]]:
        code = run(["sql", "query", sql, *words, "-o", "json", *where])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return ask


def refused(log: FilledLog, capsys: pytest.CaptureFixture[str], sql: str, *words: str) -> str:
    assert run(["sql", "query", sql, *words, *log.options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err


def written(ms: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return f"{at:%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"


def row(one: Expected) -> dict[str, Any]:
    return {
        "topic": TOPIC,
        "offset": one.offset,
        "deliver_at": written(one.deliver_ms),
        "deliver_at_ms": one.deliver_ms,
        "published_at": written(one.published_ms),
        "published_at_ms": one.published_ms,
        "key": one.key.decode() if one.key else None,
        "properties": json.dumps(one.properties, ensure_ascii=False),
        "priority": one.priority,
        "attempt": one.attempt,
        "state": one.state,
        "payload": one.payload.decode(),
    }


def test_queries_return_what_a_naive_model_returns(log: FilledLog, ask: Ask) -> None:
    """V15: acknowledged, cancelled, retried, moved and relocated messages, each once."""
    model = [row(one) for one in log.expected]
    middle = log.expected[-1].published_ms + HOUR_MS // 2
    assert ask("SELECT * FROM messages ORDER BY offset") == model
    for where, holds in {
        f"topic = '{TOPIC}' AND offset >= 250 AND offset < 320": lambda r: 250 <= r["offset"] < 320,
        f"deliver_at > '{written(middle)}'": lambda r: r["deliver_at_ms"] > middle,
        f"deliver_at_ms <= {middle}": lambda r: r["deliver_at_ms"] <= middle,
        f"published_at < '{written(middle - HOUR_MS)}'": lambda r: (
            r["published_at_ms"] < middle - HOUR_MS
        ),
        "topic = 'shop/eu/other'": lambda r: False,
        "state = 'fired' OR offset = 150": lambda r: r["state"] == "fired" or r["offset"] == 150,
        "properties ->> '$.größe' = '3'": lambda r: json.loads(r["properties"]).get("größe") == "3",
        "key IS NULL AND priority > 100": lambda r: r["key"] is None and r["priority"] > 100,
    }.items():
        assert ask(f"SELECT * FROM messages WHERE {where} ORDER BY offset") == [
            one for one in model if holds(one)
        ], where
    grouped = ask("SELECT state, count(*) AS n, min(deliver_at) AS first FROM messages GROUP BY 1")
    counts = Counter(one["state"] for one in model)
    assert {one["state"]: one["n"] for one in grouped} == counts
    assert {one["state"]: one["first"] for one in grouped} == {
        state: min(one["deliver_at"] for one in model if one["state"] == state) for state in counts
    }
    (pairs,) = ask(
        "SELECT count(*) AS n FROM messages a NATURAL JOIN (SELECT offset FROM messages)"
    )
    assert pairs == {"n": len(model)}
    (pairs,) = ask("SELECT count(*) AS n FROM messages a JOIN messages b USING (topic, offset)")
    assert pairs == {"n": len(model)}
    assert ask("SELECT count(*) AS n FROM messages") == [{"n": len(model)}]
    assert ask("SELECT 1 AS one") == [{"one": 1}]


def test_states_are_those_of_the_subscription_named(log: FilledLog, ask: Ask) -> None:
    """V15, Q2."""
    theirs = {"acked": "acknowledged", "cancelled": "cancelled", "to_be_fired": "pending"}
    rows = ask("SELECT state FROM messages ORDER BY offset", "--subscription", "s")
    assert [one["state"] for one in rows] == [
        theirs.get(one.state, "in retry" if one.attempt else "waiting") for one in log.expected
    ]


def test_only_what_the_query_needs_is_read(
    log: FilledLog, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V15: columns, offsets, and topics, none of which is planned if none is needed."""
    read: list[tuple[list[str], int]] = []
    batches = query_module._batches

    def noted(engine: Engine, part: Part, schema: Any) -> Iterator[Any]:
        for batch in batches(engine, part, schema):
            read.append((list(schema.names), len(batch)))
            yield batch

    monkeypatch.setattr(query_module, "_batches", noted)

    def reading(sql: str) -> tuple[list[str], int]:
        read.clear()
        ask(sql)
        return (read[0][0] if read else []), sum(count for _, count in read)

    few = "SELECT payload FROM messages WHERE offset >= 300 AND offset < 310"
    assert reading(few) == (["offset", "payload"], 10)
    assert reading("SELECT max(deliver_at_ms) FROM messages") == (["deliver_at"], 302)
    assert reading("SELECT count(*) FROM messages") == (["offset"], 302)
    assert reading("SELECT * FROM messages WHERE topic IN ('a', 'b')") == ([], 0)
    assert reading("SELECT 1") == ([], 0)


def test_wrong_queries_are_refused_in_one_line(
    log: FilledLog, capsys: pytest.CaptureFixture[str], ask: Ask
) -> None:
    """V15: nothing is written, and no other file or table is read."""
    for sql, said in (
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("", "incomplete input"),
        ("SELECT ofset FROM messages", "no such column: ofset; the columns are topic, offset"),
        ("SELECT * FROM orders", "no such table: orders"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT ?", "bindings"),
        ("SELECT json(payload) FROM messages", "malformed JSON"),
        ("DELETE FROM messages", "a query may only read"),
        ("INSERT INTO messages (offset) VALUES (1)", "a query may only read"),
        ("DROP TABLE messages", "a query may only read"),
        ("CREATE TABLE x AS SELECT * FROM messages", "a query may only read"),
        ("ATTACH '/tmp/x' AS x", "a query may only read"),
        ("PRAGMA journal_mode = WAL", "a query may only read"),
        ("SELECT load_extension('/tmp/x')", "a query may only read"),
        ("BEGIN", "a query may only read"),
    ):
        assert said in refused(log, capsys, sql), sql
    everything = "SELECT offset FROM messages"
    assert "topic public/default/no does not" in refused(log, capsys, everything, "--topic", "no")
    assert "no topic has a subscription no" in refused(
        log, capsys, everything, "--subscription", "no"
    )
    assert len(ask(everything)) == len(log.expected)


def test_password_in_the_url_is_refused_with_the_options_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["sql", "query", "SELECT 1", "--log", "mysql://a:hidden@db.example/log"]) == 1
    said = capsys.readouterr().err
    assert "the URL of --log must have no password" in said
    assert "--password-file" in said
    assert "Spark" not in said
    assert "hidden" not in said


def test_rows_are_printed_as_table_json_or_csv(
    log: FilledLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """V15: bytes that are not text are shown, and control characters do not reach a terminal."""
    sql = "SELECT offset AS n, x'ff41' AS b, 'a,\x1b' AS t, NULL AS z FROM messages"
    assert run(["sql", "query", sql, "--limit", "2", *log.options]) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        ["n", "b", "t", "z"],
        ["50", r"\xffA", r"a,\x1b", "-"],
        ["150", r"\xffA", r"a,\x1b", "-"],
    ]
    assert err == "only the first 2 rows are shown; see --limit and -o csv\n"
    assert run(["sql", "query", sql, "--limit", "1", "-o", "csv", *log.options]) == 0
    out = capsys.readouterr().out
    assert list(csv.reader(io.StringIO(out))) == [
        ["n", "b", "t", "z"],
        ["50", r"\xffA", "a,\x1b", ""],
    ]
    assert run(["sql", "query", sql, "--limit", "1", "-o", "json", *log.options]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 50, "b": "/0E=", "t": "a,\x1b", "z": None}
    assert run(["sql", "query", f"{sql} WHERE 0", *log.options]) == 0
    assert capsys.readouterr().out == "no rows\n"


def test_empty_log_has_no_messages(
    engine: Engine,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V15: before and after the first start of a broker; a database of another kind is refused."""
    url = request.getfixturevalue("mysql_url") if engine.kind == "mysql" else None
    ask = asking(engine, options(url, tmp_path), capsys, monkeypatch)
    engine.connect().close()
    words = ["sql", "query", "SELECT * FROM messages", *options(url, tmp_path)]
    assert run(words) == 1
    assert "there is no log in this database" in capsys.readouterr().err
    schema.migrate(engine)
    assert ask("SELECT count(*) AS n FROM messages") == [{"n": 0}]


def test_query_runs_beside_a_busy_broker(
    engine: Engine,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V15: it sees each message as soon as the message is confirmed."""
    url = request.getfixturevalue("mysql_url") if engine.kind == "mysql" else None
    testing.run(_busy, engine, asking(engine, options(url, tmp_path), capsys, monkeypatch))


async def _busy(engine: Engine, ask: Ask) -> None:
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        for topic in ("a", "b"):
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with await broker.producer(topic) as producer:
                for number in range(5):
                    await producer.send_many([b"%d" % number] * 3)
                    if number == 2:
                        await world.checkpoint()
                    found = ask(f"SELECT payload FROM messages WHERE topic LIKE '%/{topic}'")
                    assert len(found) == 3 * (number + 1)
                    assert found[-1] == {"payload": str(number)}
        await broker.admin("topics.delete", topic="a", force=True)
        assert ask("SELECT DISTINCT topic FROM messages") == [{"topic": "public/default/b"}]


def test_queries_of_the_guide_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """V15."""
    engine = open_engine(None, tmp_path)
    testing.run(_orders, engine)
    engine.close()
    shells = blocks(DOCS / "guides/sql.md", "shell")
    queries = [words for shell in shells for words in shell.commands() if "query" in words]
    assert len(queries) == 6
    for words in queries:
        assert run([*words[1:], *options(None, tmp_path)]) == 0, capsys.readouterr().err
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) > 1 or "in retry" in words[3], words


async def _orders(engine: Engine) -> None:
    async with testing.start(config=CONFIG, engine=engine, start_ms=now_ms()) as world:
        async with world.connect() as broker:
            await broker.admin("namespaces.create", namespace="shop/eu")
            await broker.admin("subscriptions.create", topic=TOPIC, subscription="billing")
            async with await broker.producer(TOPIC) as producer:
                orders = [json.dumps({"customer": n % 3}).encode() for n in range(9)]
                await producer.send_many(orders, delay=timedelta(hours=1))


def now_ms() -> int:
    return int(time.time() * 1000)
