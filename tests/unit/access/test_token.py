"""Tokens: their form, their checksum, and that nothing shows the secret."""

from __future__ import annotations

import hashlib
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.access.token import Token, is_token_id
from escapement.errors import Unauthenticated

TOKEN = Token.new()


def test_token_has_an_id_a_secret_of_256_bits_and_a_checksum() -> None:
    """O1."""
    assert re.fullmatch(r"esc_[0-9a-f]{12}_[0-9a-f]{64}_[0-9a-f]{8}", TOKEN.text)
    assert is_token_id(TOKEN.id)
    assert Token.parse(TOKEN.text) == TOKEN
    assert TOKEN.digest == hashlib.sha256(TOKEN.text.encode()).digest()
    assert TOKEN.has_digest(TOKEN.digest)
    assert not TOKEN.has_digest(Token.new().digest)


def test_new_tokens_differ() -> None:
    made = [Token.new() for _ in range(100)]
    assert len({one.id for one in made}) == len({one.secret for one in made}) == 100


def test_no_text_form_shows_the_secret() -> None:
    assert TOKEN.secret not in f"{TOKEN!r} {TOKEN}"


@given(st.integers(0, len(TOKEN.text) - 1), st.sampled_from(string.printable))
def test_any_mistyped_character_is_found(at: int, character: str) -> None:
    """O1: a mistyped token is refused before a connection is made, and not shown."""
    text = TOKEN.text[:at] + character + TOKEN.text[at + 1 :]
    if text == TOKEN.text:
        return
    with pytest.raises(Unauthenticated, match="mistyped") as caught:
        Token.parse(text)
    assert TOKEN.secret[:20] not in str(caught.value)


@given(st.text(max_size=120))
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Unauthenticated, match="mistyped"):
        Token.parse(text)
