"""Tests of tables on the terminal."""

from __future__ import annotations

import pytest

from escapement.cli.output.table import print_rows


def test_column_that_an_earlier_broker_does_not_send_is_left_blank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """B8: during an upgrade, the command line may be newer than the broker."""
    print_rows([{"subscription": "s"}], ("subscription", "due"), "none")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["subscription", "due"], ["s", "-"],
    ]  # fmt: skip
