"""TLS connections to MySQL: certificates, names and servers without TLS."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from escapement.broker.binary_logs import BinaryLogs
from escapement.errors import StorageError
from escapement.storage.binary_log import BinaryLog
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql.engine import MysqlEngine
from support.database.servers import MysqlServer, private_server

DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """A certificate authority with a self-signed certificate."""

    home: Path

    def __post_init__(self) -> None:
        self.home.mkdir()
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._name = _named(f"authority {self.home.name}")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._certificate(self._name, self._key).add_extension(basic, critical=True)
        self.ca = self._write("ca.pem", certificate)

    def certify(self) -> tuple[Path, Path]:
        """Return the paths of a certificate and a key for a server at 127.0.0.1."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._certificate(_named("server"), key).add_extension(names, critical=False)
        key_path = self.home / "key.pem"
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return self._write("cert.pem", certificate), key_path

    def _certificate(self, subject: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )

    def _write(self, name: str, certificate: x509.CertificateBuilder) -> Path:
        path = self.home / name
        signed = certificate.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "trusted")


@pytest.fixture(scope="module")
def tls_server(trusted: Authority) -> Iterator[MysqlServer]:
    certificate, key = trusted.certify()
    files = f"--ssl-ca={trusted.ca}", f"--ssl-cert={certificate}", f"--ssl-key={key}"
    binary_log = "--log-bin", "--server-id=1", "--binlog-format=ROW"
    with private_server("--tls-version=TLSv1.2,TLSv1.3", *files, *binary_log) as s:
        yield s


def engine_at(url: str, **options: str) -> MysqlEngine:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return MysqlEngine(MysqlAddress.parse(f"{url}?{query}"))


def test_connection_to_a_trusted_server_is_encrypted(
    tls_server: MysqlServer, trusted: Authority
) -> None:
    connection = engine_at(tls_server.url("private"), ssl_ca=str(trusted.ca)).connect()
    ((_, cipher),) = connection.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'").rows
    assert cipher
    blob = bytes(17 << 20)
    assert connection.execute("SELECT LENGTH(?)", (blob,)).rows == [(len(blob),)]
    connection.close()


def test_connection_without_ssl_ca_is_encrypted_if_the_server_supports_tls(
    tls_server: MysqlServer, private_mysql: MysqlServer
) -> None:
    for server, private in ((tls_server, True), (private_mysql, False)):
        connection = engine_at(server.url("private")).connect()
        ((_, cipher),) = connection.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'").rows
        assert bool(cipher) is private
        assert not connection.ended  # the server has sent nothing that was not read
        connection.close()


def test_server_of_another_authority_is_refused(tls_server: MysqlServer, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    with pytest.raises(StorageError, match="certificate is not trusted") as caught:
        engine_at(tls_server.url("private"), ssl_ca=str(stranger.ca)).connect()
    assert not caught.value.retryable


def test_server_of_another_name_is_refused_unless_ssl_verify_identity_is_0(
    tls_server: MysqlServer, trusted: Authority
) -> None:
    url = tls_server.url("private").replace("127.0.0.1", "localhost")
    with pytest.raises(StorageError, match="certificate is not trusted"):
        engine_at(url, ssl_ca=str(trusted.ca)).connect()
    engine_at(url, ssl_ca=str(trusted.ca), ssl_verify_identity="0").connect().close()


def test_server_without_tls_is_refused_if_ssl_ca_is_set(
    private_mysql: MysqlServer, trusted: Authority
) -> None:
    with pytest.raises(StorageError, match="SSL is required") as caught:
        engine_at(private_mysql.url("private"), ssl_ca=str(trusted.ca)).connect()
    assert not caught.value.retryable


def test_required_tls_is_verified_unless_the_server_is_local(
    tls_server: MysqlServer, trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O2: without ssl_ca, the authorities of the system are trusted."""
    url = tls_server.url("private")
    engine_at(url, ssl_mode="required").connect().close()
    monkeypatch.setattr(MysqlAddress, "is_local", False)
    with pytest.raises(StorageError, match="certificate is not trusted"):
        engine_at(url, ssl_mode="required").connect()
    engine_at(url, ssl_mode="unverified").connect().close()
    engine_at(url).connect().close()
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.ca))
    connection = engine_at(url, ssl_mode="required").connect()
    ((_, cipher),) = connection.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'").rows
    assert cipher
    connection.close()


def test_disabled_tls_is_not_used(tls_server: MysqlServer) -> None:
    connection = engine_at(tls_server.url("private"), ssl_mode="disabled").connect()
    ((_, cipher),) = connection.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'").rows
    assert not cipher
    connection.close()


def test_unusable_file_is_named(tls_server: MysqlServer) -> None:
    with pytest.raises(StorageError, match=r"cannot use /missing.pem for TLS to the database"):
        engine_at(tls_server.url("private"), ssl_ca="/missing.pem").connect()


# -- the reader of the binary log ----------------------------------------------


@pytest.fixture
def reader(tls_server: MysqlServer) -> Iterator[str]:
    """Return the URL of a database for a user who may read the binary log, with TLS only."""
    tls_server.admin("CREATE DATABASE shop")
    tls_server.admin("CREATE TABLE shop.t (id INT PRIMARY KEY AUTO_INCREMENT)")
    tls_server.admin("CREATE USER reader IDENTIFIED BY 'secret' REQUIRE SSL")
    tls_server.admin("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader")
    tls_server.admin("GRANT SELECT ON shop.* TO reader")
    yield tls_server.url("shop", "reader", "secret")
    tls_server.admin("DROP USER reader")
    tls_server.admin("DROP DATABASE shop")


async def test_binary_log_is_read_over_verified_tls(
    tls_server: MysqlServer, trusted: Authority, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O2, V9."""
    found = trio.Event()
    address = MysqlAddress.parse(f"{reader}?ssl_ca={trusted.ca}")
    logs = BinaryLogs([address], [lambda database, table: found.set()])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        with trio.fail_after(60):
            while not found.is_set():  # the reader reports only rows from its beginning on
                await trio.to_thread.run_sync(tls_server.admin, "INSERT INTO shop.t VALUES ()")
                with trio.move_on_after(0.05):
                    await found.wait()
        nursery.cancel_scope.cancel()
    assert "no binary log" not in caplog.text


async def test_wrong_authority_switches_the_reader_of_the_binary_log_off_with_a_warning(
    reader: str,
    tmp_path: Path,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """O2: the connection of the stream itself is refused too."""
    stranger = Authority(tmp_path / "stranger")
    address = MysqlAddress.parse(f"{reader}?ssl_ca={stranger.ca}")
    with pytest.raises(StorageError, match="certificate is not trusted"):
        MysqlEngine(address).connect()
    with pytest.raises(pymysql.err.OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
        BinaryLog(address, ["shop"])._read(lambda database, table: None)
    logs = BinaryLogs([address], [lambda database, table: pytest.fail("a row was read")])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.run)
        mock_clock.autojump_threshold = 0.5
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "no binary log" in record.message
    assert "certificate is not trusted" in record.message
