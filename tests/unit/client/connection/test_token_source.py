"""Where a client has its token from."""

from __future__ import annotations

from pathlib import Path

import pytest

import escapement
import escapement.sync
from escapement.access.token import Token
from escapement.client.connection.token_source import FILE_VARIABLE, TOKEN_VARIABLE, TokenSource
from escapement.errors import InvalidRequest, Unauthenticated

TOKENS = [Token.new().text for _ in range(4)]


def test_first_source_that_is_given_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O1: an argument, the variable, the file that a variable names."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert TokenSource().read() == ""
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text(f" {TOKENS[0]}\n")
    other.write_text(TOKENS[1])
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    assert TokenSource().read() == TOKENS[0]
    monkeypatch.setenv(TOKEN_VARIABLE, TOKENS[2])
    assert TokenSource().read() == TOKENS[2]
    assert TokenSource(file=other).read() == TOKENS[1]
    assert TokenSource(TOKENS[3]).read() == TOKENS[3]
    with pytest.raises(InvalidRequest, match="not both"):
        TokenSource(TOKENS[3], file)


def test_file_is_read_again_at_each_connection(tmp_path: Path) -> None:
    """A token is replaced while the client runs."""
    file = tmp_path / "token"
    file.write_text(TOKENS[0])
    source = TokenSource(file=file)
    file.write_text(TOKENS[1])
    assert source.read() == TOKENS[1]
    file.write_bytes(b"\xff")
    with pytest.raises(Unauthenticated, match="not a text"):
        source.read()
    file.unlink()
    with pytest.raises(Unauthenticated, match="No such file"):
        source.read()


@pytest.mark.parametrize("connect", [escapement.connect, escapement.sync.connect])
def test_mistyped_token_is_refused_before_the_client_connects(
    connect: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O1: the error says where the token is, and does not show it."""
    file, wrong = tmp_path / "token", TOKENS[0][:-1]
    file.write_text(wrong)
    with pytest.raises(Unauthenticated, match=r"In the argument token: .* mistyped") as first:
        connect(token=wrong)  # type: ignore[operator]
    with pytest.raises(Unauthenticated, match=f"In the file {file}") as second:
        connect(token_file=file)  # type: ignore[operator]
    monkeypatch.setenv(TOKEN_VARIABLE, wrong)
    with pytest.raises(Unauthenticated, match=f"In {TOKEN_VARIABLE}") as third:
        connect()  # type: ignore[operator]
    for caught in (first, second, third):
        assert Token.parse(TOKENS[0]).secret not in str(caught.value)


@pytest.mark.parametrize("wrong", [b"x", 7, [], object()])
def test_token_of_a_wrong_type_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="token must be a str"):
        escapement.connect(token=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="token_file must be a path"):
        escapement.connect(token_file=wrong)  # type: ignore[arg-type]
