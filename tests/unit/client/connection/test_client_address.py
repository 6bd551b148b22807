"""The address of a broker."""

from __future__ import annotations

import pytest

from escapement.client.connection.address import Address
from escapement.errors import InvalidRequest


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("escapement://localhost", Address("localhost", 7650)),
        ("escapement://10.0.0.7:99/", Address("10.0.0.7", 99)),
        ("escapement://[::1]:7651", Address("::1", 7651)),
        ("escapements://db.example", Address("db.example", 7650, tls=True)),
        ("escapements://[::1]:99", Address("::1", 99, tls=True)),
    ],
)
def test_an_address_is_parsed(url: str, address: Address) -> None:
    assert Address.parse(url) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "url",
    ["", "localhost:7650", "http://h", "escapement://", "escapement://h:x", "escapement://h:70000",
     "escapement://h:0", "escapement://u@h", "escapement://h/path", "escapement://h?a=b"],
)  # fmt: skip
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(
        InvalidRequest, match="not a broker's address: write escapement://host:port"
    ):
        Address.parse(url)
