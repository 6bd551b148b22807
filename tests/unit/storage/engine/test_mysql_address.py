"""Parsing of database URLs; passwords are never shown."""

from __future__ import annotations

import pytest

from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql import MysqlEngine

SECRET = "s3cr3t"


def test_every_part_of_a_url_is_read() -> None:
    address = MysqlAddress.parse(
        "mysql://app%40shop:p%40ss%2Fw%3Ard@db.example:3307/my%20log"
        "?ssl_ca=/ca.pem&ssl_cert=/c.pem&ssl_key=/k.pem&ssl_verify_identity=0"
        "&connect_timeout=2&read_timeout=9"
    )
    assert address == MysqlAddress(
        user="app@shop",
        password="p@ss/w:rd",
        host="db.example",
        port=3307,
        database="my log",
        ssl_ca="/ca.pem",
        ssl_cert="/c.pem",
        ssl_key="/k.pem",
        ssl_verify_identity=False,
        connect_timeout=2,
        read_timeout=9,
    )


def test_parts_missing_from_a_url_have_defaults() -> None:
    address = MysqlAddress.parse("mysql://localhost/log")
    assert (address.user, address.password, address.port) == ("root", "", 3306)
    assert (address.connect_timeout, address.read_timeout) == (5, 30)
    assert address.ssl_verify_identity


def test_local_socket_and_ipv6_address_are_parsed() -> None:
    local = MysqlAddress.parse("mysql://root@localhost/log?unix_socket=/run/my%20sql.sock")
    assert local.unix_socket == "/run/my sql.sock"
    assert str(local) == "mysql://root@/run/my sql.sock/log"
    assert MysqlAddress.parse("mariadb://[::1]:3306/log").host == "::1"


def test_password_is_never_printed() -> None:
    address = MysqlAddress.parse(f"mysql://app:{SECRET}@db/log")
    engine = MysqlEngine(address)
    for text in (str(address), repr(address), engine.location, repr(engine)):
        assert SECRET not in text
    assert engine.location == "mysql://app@db:3306/log"


@pytest.mark.parametrize(
    "url",
    [
        f"postgres://app:{SECRET}@db/log",
        f"app:{SECRET}@db/log",
        f"mysql://app:{SECRET}@db",
        f"mysql://app:{SECRET}@db/",
        f"mysql://app:{SECRET}@db/log/more",
        f"mysql://app:{SECRET}@db:port/log",
        f"mysql://app:{SECRET}@db:99999/log",
        f"mysql://app:{SECRET}/x@db:3306/log",
        f"mysql://app:{SECRET}@[db/log",
        f"mysql://app:{SECRET}@db/log?read_timeout=0",
        f"mysql://app:{SECRET}@db/log?read_timeout=soon",
        f"mysql://app:{SECRET}@db/log?ssl_verify_identity=no",
        f"mysql://app:{SECRET}@db/log?pasword={SECRET}",
        "",
    ],
)
def test_error_for_an_invalid_url_does_not_show_the_password(url: str) -> None:
    with pytest.raises(InvalidRequest, match="database URL") as caught:
        MysqlAddress.parse(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
