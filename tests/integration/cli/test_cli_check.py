"""`escapement check`: its options, its output and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from escapement.cli.main import run
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from support.storage.eventful_log import fill

SECRET = "s3cr3t-and-never-shown"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a broker on SQLite that has crashed."""
    data = tmp_path / "data"
    data.mkdir()
    fill(SqliteEngine(data / FILE_NAME), data / "index")
    engine = SqliteEngine(data / FILE_NAME)
    connection = engine.connect()
    connection.execute("UPDATE leases SET expires_at_ms = 0")
    connection.close()
    engine.close()
    return data


def test_check_and_repair_with_the_settings_of_a_file(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O7: the exit code is 0 if nothing is wrong any more."""
    file = tmp_path / "escapement.toml"
    file.write_text(f'data = "{data}"')
    words = ["check", "--config", str(file)]
    assert run(words) == 0
    assert capsys.readouterr().out.endswith("No problem found.\n")
    segment = max((data / "index").glob("*.segment"))
    segment.write_bytes(segment.read_bytes()[:-1])
    assert run([*words, "-o", "json"]) == 1
    (bad,) = [
        one
        for one in json.loads(capsys.readouterr().out)
        if one["severity"] not in ("ok", "notice")
    ]
    assert (bad["check"], bad["severity"]) == ("index files", "error")
    assert "escapement check --repair" in bad["remedy"]
    assert segment.exists()
    assert run([*words, "--repair"]) == 0
    out = capsys.readouterr().out
    assert "Mended: the index was deleted." in out
    assert out.endswith("No problem found.\n")
    assert not segment.exists()
    assert run(words) == 0


def test_damaged_file_of_sqlite_is_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """O7: also if the check cannot go on."""
    file = data / FILE_NAME
    content = bytearray(file.read_bytes())
    for page in range(3 * 16384, len(content), 16384):
        content[page : page + 64] = b"\xff" * 64
    file.write_bytes(content)
    assert run(["check", "--data", str(data), "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (bad, *_) = [one for one in found if one["severity"] == "error"]
    assert bad["check"] == "database"
    assert "restore it from a backup" in bad["remedy"]


def test_log_that_does_not_exist_is_not_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O7"""
    assert run(["check", "--data", str(tmp_path / "none")]) == 1
    assert f"There is no log at {tmp_path / 'none' / FILE_NAME}" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_database_that_cannot_be_reached_is_an_error_without_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O7"""
    url = f"mysql://broker:{SECRET}@127.0.0.1:1/escapement"
    assert run(["check", "--data", str(tmp_path), "--log", url, "-o", "json"]) == 1
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    (found,) = json.loads(captured.out)
    assert (found["check"], found["severity"]) == ("database", "error")
    assert found["remedy"]
