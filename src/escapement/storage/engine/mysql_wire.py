"""Opens connections of PyMySQL to a MySQL or MariaDB server."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from pymysql.connections import Connection as Wire
from pymysql.constants import CLIENT

from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql_columns import FROM_TEXT

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
    tls: dict[str, Any] = {}
    if to.ssl_ca is not None:
        tls = {
            "ssl_ca": to.ssl_ca,
            "ssl_verify_cert": True,
            "ssl_verify_identity": to.ssl_verify_identity,
        }
    return {
        "host": to.host,
        "port": to.port,
        "unix_socket": to.unix_socket,
        "user": to.user,
        "password": to.password.encode(),
        "charset": "utf8mb4",
        "connect_timeout": to.connect_timeout,
        "program_name": _PROGRAM,
        "ssl_cert": to.ssl_cert,
        "ssl_key": to.ssl_key,
        **tls,
    }


class TlsIfOffered(Wire):  # type: ignore[misc]
    """A PyMySQL connection that is encrypted whenever the server offers TLS.

    Without certificate options, PyMySQL itself would load all certificates of the system for each
    connection, which takes 35 ms, although it verifies nothing with them.
    """

    def _create_ssl_ctx(self, told: dict[str, Any]) -> ssl.SSLContext:
        if told:
            context: ssl.SSLContext = super()._create_ssl_ctx(told)
            return context
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
