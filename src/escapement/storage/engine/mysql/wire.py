"""Opens connections of PyMySQL to a MySQL or MariaDB server."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from pymysql.connections import Connection as Wire
from pymysql.constants import CLIENT

from escapement.errors import StorageError
from escapement.storage.engine.address import MysqlAddress, SslMode
from escapement.storage.engine.mysql.columns import FROM_TEXT

# TCP probes that detect within a minute that the other end of an idle connection has vanished.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 30, 10, 3
# The name by which a server shows our connections.
_PROGRAM: Final = "escapement"


def dial(to: MysqlAddress, database: str | None) -> Wire:
    """Open a connection for statements.

    Raises:
      pymysql.err.MySQLError: if the server cannot be reached, or refuses the connection.
    """
    wire = TlsIfOffered(
        **wire_settings(to),
        database=database,
        conv=FROM_TEXT,
        client_flag=CLIENT.FOUND_ROWS,
        autocommit=None,
        # For a server that accepts the connection and then hangs.
        read_timeout=to.connect_timeout,
        write_timeout=to.connect_timeout,
    )
    wire._read_timeout = wire._write_timeout = to.read_timeout
    _keep_alive(wire._sock)
    return wire


def wire_settings(to: MysqlAddress) -> dict[str, Any]:
    """Return the arguments of PyMySQL that say where the server is, and who connects."""
    return {
        "host": to.host,
        "port": to.port,
        "unix_socket": to.unix_socket,
        "user": to.user,
        "password": to.password.encode(),
        "charset": "utf8mb4",
        "connect_timeout": to.connect_timeout,
        "program_name": _PROGRAM,
        **_tls_settings(to),
    }


def _tls_settings(to: MysqlAddress) -> dict[str, Any]:
    mode = to.verification
    if mode is SslMode.DISABLED:
        return {"ssl_disabled": True}
    if mode is SslMode.PREFERRED:
        return {}
    try:
        context = _context(to, mode)
    except (OSError, ValueError) as error:
        files = [one for one in (to.ssl_ca, to.ssl_cert, to.ssl_key) if one is not None]
        raise StorageError(
            f"{to}: cannot use {' or '.join(files)} for TLS to the database ({error})"
        ) from error
    return {"ssl": context}


def _context(to: MysqlAddress, mode: SslMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = mode is SslMode.VERIFY_IDENTITY
    if mode is SslMode.UNVERIFIED:
        context.verify_mode = ssl.CERT_NONE
    elif to.ssl_ca is not None:
        context.load_verify_locations(to.ssl_ca)
    else:
        context.load_default_certs()
    if to.ssl_cert is not None:
        context.load_cert_chain(to.ssl_cert, to.ssl_key, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; remove its password")


class TlsIfOffered(Wire):  # type: ignore[misc]
    """A PyMySQL connection that is encrypted whenever the server offers TLS.

    Without a context of ours, PyMySQL itself would load all certificates of the system for each
    connection, which takes 35 ms, although it verifies nothing with them.
    """

    def _create_ssl_ctx(self, told: dict[str, Any] | ssl.SSLContext) -> ssl.SSLContext:
        if isinstance(told, ssl.SSLContext):
            return told
        assert not told
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def _keep_alive(sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
