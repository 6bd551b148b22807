"""Parsing of database URLs; passwords are never shown."""

from __future__ import annotations

import pytest

from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress, SslMode
from escapement.storage.engine.mysql.engine import MysqlEngine

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
        ssl_mode=SslMode.VERIFY_CA,
        connect_timeout=2,
        read_timeout=9,
    )


def test_parts_missing_from_a_url_have_defaults() -> None:
    address = MysqlAddress.parse("mysql://localhost/log")
    assert (address.user, address.password, address.port) == ("root", "", 3306)
    assert (address.connect_timeout, address.read_timeout) == (5, 30)
    assert address.ssl_mode is SslMode.PREFERRED


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


@pytest.mark.parametrize(
    ("host", "query", "mode"),
    [
        ("db.example", "", SslMode.PREFERRED),
        ("db.example", "ssl_ca=/ca.pem", SslMode.VERIFY_IDENTITY),
        ("db.example", "ssl-ca=/ca.pem", SslMode.VERIFY_IDENTITY),
        ("db.example", "ssl_cert=/c.pem&ssl_key=/k.pem", SslMode.VERIFY_IDENTITY),
        ("db.example", "ssl_ca=/ca.pem&ssl_verify_identity=0", SslMode.VERIFY_CA),
        ("db.example", "ssl_mode=required", SslMode.VERIFY_IDENTITY),
        ("db.example", "ssl-mode=REQUIRED", SslMode.VERIFY_IDENTITY),
        ("db.example", "ssl-mode=VERIFY-CA", SslMode.VERIFY_CA),
        ("db.example", "ssl_mode=unverified", SslMode.UNVERIFIED),
        ("db.example", "ssl_mode=disabled", SslMode.DISABLED),
        ("127.0.0.1", "ssl_mode=required", SslMode.UNVERIFIED),
        ("localhost", "ssl_mode=required", SslMode.UNVERIFIED),
        ("[::1]", "ssl_mode=required", SslMode.UNVERIFIED),
        ("db.example", "ssl_mode=required&unix_socket=/s", SslMode.UNVERIFIED),
        ("127.0.0.1", "ssl_mode=required&ssl_ca=/ca.pem", SslMode.VERIFY_IDENTITY),
        ("127.0.0.1", "ssl_mode=verify_identity", SslMode.VERIFY_IDENTITY),
    ],
)
def test_option_for_tls_asks_for_verified_tls(host: str, query: str, mode: SslMode) -> None:
    """O2: verification is on by default, except on this machine."""
    assert MysqlAddress.parse(f"mysql://app@{host}/log?{query}").verification is mode


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("ssl_mode=on", "known: disabled, preferred, unverified, required, verify_ca"),
        ("ssl_mode=required&ssl_verify_identity=0", "leave out one"),
        ("ssl_mode=preferred&ssl_ca=/ca.pem", "does not require TLS"),
        ("ssl_mode=disabled&ssl_cert=/c.pem", "does not require TLS"),
    ],
)
def test_contradicting_options_for_tls_are_refused(query: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        MysqlAddress.parse(f"mysql://app@db/log?{query}")
