"""Passwords of databases appear in no process list, log, error or output of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from escapement.cli.main import VISIBLE, run
from escapement.storage.engine.address import MysqlAddress
from support.database.accounts import PASSWORD, account
from support.database.servers import SqlServer
from support.processes.process_list import command_lines

TIMEOUT_S: Final = 120
# How often to look at the processes. A process of the bench lives for seconds.
LOOK_S: Final = 0.02
SECRETS: Final = (PASSWORD, "p%2Fw%40rd%3Asecret")  # as it is, and as it stands in a URL


def shown_in(text: str) -> bool:
    return any(secret in text for secret in SECRETS)


@pytest.fixture
def address(mysql_server: SqlServer, mysql_url: str) -> Iterator[MysqlAddress]:
    with account(mysql_server, mysql_url, "ALL") as address:
        yield address


def test_password_is_in_no_process_list_and_no_output_of_a_bench(
    address: MysqlAddress, mysql_server: SqlServer, tmp_path: Path
) -> None:
    """O6: the bench starts a broker, and gives it the URL of the log."""
    url = f"mysql://{address.user}:{SECRETS[1]}@{address.host}:{address.port}/{address.database}"
    bench = ["bench", "publish", "--messages", "20000", "--data", str(tmp_path / "data")]
    ran = subprocess.Popen(
        [sys.executable, "-m", "escapement", *bench],
        env=os.environ | {"ESCAPEMENT_LOG": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen: set[str] = set()
    try:
        while True:
            seen.update(command_lines())
            try:
                said, _ = ran.communicate(timeout=LOOK_S)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        ran.kill()
    assert ran.returncode == 0, said
    assert mysql_server.admin(f"SELECT COUNT(*) FROM {address.database}.generations") == ((1,),)
    assert any("escapement serve" in line for line in seen)
    assert not any(shown_in(line) for line in seen)
    assert not shown_in(said)


@pytest.mark.parametrize("form", ["{url}", "--log={url}"])
def test_password_on_a_command_line_gives_a_warning_without_it(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """O6: the warning names the better ways."""
    url = f"mysql://broker:{SECRETS[1]}@127.0.0.1:1/shop"
    words = ["sql", "install"] if form == "{url}" else ["migrate"]
    assert run([*words, form.format(url=url)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(VISIBLE)
    assert "environment variable" in VISIBLE
    assert not shown_in(said.out + said.err)


@pytest.mark.parametrize("source", ["variable", "password variable", "file"])
def test_password_from_elsewhere_gives_no_warning_and_is_in_no_error(
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """O6"""
    url = "mysql://broker@127.0.0.1:1/shop"
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    options = ["--log", url]
    if source == "variable":
        monkeypatch.setenv("ESCAPEMENT_LOG", url.replace("broker", f"broker:{SECRETS[1]}"))
        options = []
    elif source == "password variable":
        monkeypatch.setenv("ESCAPEMENT_LOG_PASSWORD", PASSWORD)
    else:
        options += ["--log-password-file", str(file)]
    for command, code in ((["migrate"], 1), (["doctor"], 1), (["config", "show"], 0)):
        monkeypatch.chdir(tmp_path)
        assert run([*command, *options]) == code
        said = capsys.readouterr()
        assert "broker@127.0.0.1:1" in said.out + said.err or "***" in said.out
        assert VISIBLE not in said.err
        assert not shown_in(said.out + said.err)
