"""Rows of message tables as lines of output."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from escapement.cli.output.rows import RowForm, RowPrinter
from escapement.errors import NotFound, RemoteProtocolError
from escapement.field import Field

FIELDS = (
    Field("id", "bigint"),
    Field("price", "decimal"),
    Field("at", "time"),
    Field("message", "json"),
    Field("raw", "varbinary"),
    Field("ratio", "float"),
    Field("note", "varchar"),
)
FULL = [b"7", b"1.50", b"-00:00:01", b'{"a": 1}', b"\x00\xff", b"0.10000000149011612", b"hi"]
EMPTY: list[bytes | None] = [b"12345", None, None, b"null", b"", None, b""]


def printed(
    capsys: pytest.CaptureFixture[str],
    form: RowForm,
    *rows: Sequence[bytes | None],
    columns: Sequence[str] | None = None,
    fields: tuple[Field, ...] = FIELDS,
) -> list[str]:
    RowPrinter(form, columns, "shop.mails").print(fields, map(msgpack.packb, rows))
    return capsys.readouterr().out.split("\n")


def test_table_has_names_and_aligned_values(capsys: pytest.CaptureFixture[str]) -> None:
    """V19: as a database tool prints a result."""
    assert printed(capsys, "table", FULL, EMPTY) == [
        "   id  price  at         message   raw     ratio  note",
        '    7   1.50  -00:00:01  {"a": 1}  0x00ff    0.1  hi',
        "12345   NULL  NULL       null      0x       NULL",
        "",
    ]


def test_csv_tells_null_from_an_empty_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "csv", FULL, EMPTY) == [
        "id,price,at,message,raw,ratio,note",
        '7,1.50,-00:00:01,"{""a"": 1}",0x00ff,0.1,hi',
        '12345,,,null,0x,,""',
        "",
    ]


def test_json_has_an_object_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, end = printed(capsys, "json", FULL, EMPTY)
    assert end == ""
    assert json.loads(first) == {
        "id": 7,
        "price": "1.50",
        "at": "-00:00:01",
        "message": {"a": 1},
        "raw": "AP8=",
        "ratio": 0.1,
        "note": "hi",
    }
    assert list(json.loads(second).values()) == [12345, None, None, None, "", None, ""]


def test_chosen_columns_are_printed_in_the_order_of_the_statement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = ["NOTE", "id"]
    assert printed(capsys, "csv", FULL, columns=columns) == ["note,id", "hi,7", ""]
    assert printed(capsys, "json", FULL, columns=columns) == ['{"note": "hi", "id": 7}', ""]


def test_unknown_column_is_refused_with_the_names_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(NotFound, match=r"shop\.mails has no column nope\. It has id, price, at"):
        printed(capsys, "table", FULL, columns=["id", "nope"])


def test_payload_that_is_not_a_row_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RemoteProtocolError, match="field id"):
        printed(capsys, "table", FULL, [b"x", *FULL[1:]])
    assert capsys.readouterr().out == ""


def test_names_are_printed_again_when_the_columns_have_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = RowPrinter("table", None, "shop.mails")
    note = Field("note", "varchar")
    for fields, row in (
        ((note,), [b"a"]),
        ((note,), [b"longer"]),
        ((note, FIELDS[0]), [b"b", b"1"]),
        ((note, FIELDS[0]), [b"c", b"22"]),
    ):
        printer.print(fields, [msgpack.packb(row)])
    lines = ["note", "a", "longer", "note  id", "b      1", "c     22", ""]
    assert capsys.readouterr().out.split("\n") == lines


def test_control_characters_of_a_table_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A row can neither break a line nor control the terminal."""
    fields = (Field("note", "text"), Field("id", "int"))
    lines = printed(capsys, "table", ["a\n\x1b[31mü漢".encode(), b"1"], fields=fields)
    assert lines == ["note" + " " * 12 + "id", r"a\n\x1b[31mü漢   1", ""]


@given(st.lists(st.lists(st.none() | st.text(), min_size=2, max_size=2), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_of_any_text_can_be_read_again(
    capsys: pytest.CaptureFixture[str], rows: list[list[str | None]]
) -> None:
    fields = (Field("a", "text"), Field("b,", "text"))
    packed = [[None if text is None else text.encode() for text in row] for row in rows]
    RowPrinter("csv", None, "t").print(fields, map(msgpack.packb, packed))
    read = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert read == [["a", "b,"], *[[text or "" for text in row] for row in rows]]
