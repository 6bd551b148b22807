"""The statements that `escapement stream` accepts."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.cli.input.stream_statement import StreamStatement, stream_statement
from escapement.identifier import quoted

NAME = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("STREAM * FROM shop.mails", None),
        ("stream * from shop.mails;", None),
        ("  STREAM*FROM shop . mails ; ", None),
        ("STREAM id FROM shop.mails", ("id",)),
        ("STREAM id ,message,\n`a b` FROM `shop`.`mails`", ("id", "message", "a b")),
        ("STREAM from FROM shop.mails", ("from",)),
    ],
)
def test_statement_names_a_table_and_columns(text: str, columns: tuple[str, ...] | None) -> None:
    """V19."""
    found = stream_statement(text)
    assert found == StreamStatement("shop", "mails", columns)
    assert found.name == "shop.mails"


@given(NAME, NAME, st.none() | st.lists(NAME, min_size=1, max_size=4, unique_by=str.lower))
def test_any_name_can_be_written_in_backticks(
    database: str, table: str, columns: list[str] | None
) -> None:
    chosen = "*" if columns is None else ", ".join(map(quoted, columns))
    text = f"STREAM {chosen} FROM {quoted(database)}.{quoted(table)}"
    names = None if columns is None else tuple(columns)
    assert stream_statement(text) == StreamStatement(database, table, names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mails",
        "SELECT * FROM shop.mails",
        "STREAM FROM shop.mails",
        "STREAM id, FROM shop.mails",
        "STREAM id message FROM shop.mails",
        "STREAM *, id FROM shop.mails",
        "STREAM * FROM shop.eu.mails",
        "STREAM * FROM shop.my-mails",
        "STREAM * FROM shop.mails WHERE id = 1",
        "STREAM * FROM shop.mails; STREAM * FROM shop.mails",
        "STREAM * FROM shop.``",
        "STREAM * FROM shop.`mails",
    ],
)
def test_other_statements_are_refused_with_a_correct_one(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"STREAM \* FROM shop\.my_message"):
        stream_statement(text)


def test_database_may_be_left_out() -> None:
    found = stream_statement("STREAM * FROM `my mails`")
    assert found == StreamStatement(None, "my mails", None)
    assert found.name == "my mails"


def test_column_that_is_named_twice_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="twice"):
        stream_statement("STREAM id, `ID` FROM shop.mails")
