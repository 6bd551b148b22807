"""The request for a first token: only the broker's user can make it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from escapement.access.token import Token
from escapement.errors import StorageError
from escapement.storage.bootstrap_request import FILE_NAME, BootstrapRequest

TOKEN = Token.new()
REQUEST = BootstrapRequest("root", TOKEN.id, TOKEN.digest)


def test_request_is_read_as_it_was_written_and_has_no_secret(tmp_path: Path) -> None:
    """O1: the file has mode 0600 and only the hash of the token."""
    assert BootstrapRequest.read(tmp_path) is None
    path = REQUEST.write(tmp_path)
    REQUEST.write(tmp_path)  # a second request replaces the first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert BootstrapRequest.read(tmp_path) == REQUEST
    assert TOKEN.secret not in path.read_text()
    assert os.listdir(tmp_path) == [FILE_NAME]
    BootstrapRequest.remove(tmp_path)
    BootstrapRequest.remove(tmp_path)
    assert BootstrapRequest.read(tmp_path) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_file_that_others_can_open_is_not_trusted(tmp_path: Path, mode: int) -> None:
    REQUEST.write(tmp_path).chmod(mode)
    with pytest.raises(StorageError, match="mode 0600"):
        BootstrapRequest.read(tmp_path)


def test_link_and_pipe_are_not_trusted(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    REQUEST.write(elsewhere)
    (tmp_path / FILE_NAME).symlink_to(elsewhere / FILE_NAME)
    with pytest.raises(StorageError, match="cannot be read"):
        BootstrapRequest.read(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    os.mkfifo(tmp_path / FILE_NAME, 0o600)
    with pytest.raises(StorageError, match="mode 0600"):
        BootstrapRequest.read(tmp_path)


def test_file_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = REQUEST.write(tmp_path)
    path.chmod(0o600)
    monkeypatch.setattr("escapement.storage.bootstrap_request._ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(StorageError, match="user"):
        BootstrapRequest.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "7",
        '{"role": "root"}',
        '{"role": "a b", "id": "000000000000", "digest": "00"}',
        '{"role": "root", "id": "000000000000", "digest": "00"}',
        '{"role": "root", "id": 7, "digest": 7}',
        "x" * 5_000,
    ],
)
def test_file_that_is_no_request_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE_NAME
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(StorageError, match="is not a request"):
        BootstrapRequest.read(tmp_path)


def test_unwritable_directory_is_reported_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="as the user of the broker"):
        REQUEST.write(tmp_path / "file")
