"""Content of messages on a terminal."""

from __future__ import annotations

import pytest

from escapement.cli.output.printable import printable
from escapement.cli.output.table import print_record, print_rows, print_values

HOSTILE = "\x1b[31mred\x07\r\nfake line\x9b\u202e"


@pytest.mark.parametrize("form", ["rows", "values", "record"])
def test_message_cannot_control_the_terminal_of_an_operator(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1: keys, properties and payloads are those of anyone who may publish."""
    row = {"key": HOSTILE, "properties": {HOSTILE: HOSTILE}, "names": [HOSTILE]}
    if form == "rows":
        print_rows([row], list(row), "none")
    elif form == "values":
        print_values(list(row), [list(row.values())], "none")
    else:
        print_record(row)
    shown = capsys.readouterr().out
    assert all(c.isprintable() for line in shown.split("\n") for c in line)
    assert not any(line.startswith("fake") for line in shown.splitlines())
    assert r"\x1b[31mred\x07" in shown


def test_ordinary_text_stays_as_it_is() -> None:
    assert printable("Grüße, 世界 🙂") == "Grüße, 世界 🙂"
    assert printable("a\tb\nc\0", keep="\t\n") == "a\tb\nc\\x00"
