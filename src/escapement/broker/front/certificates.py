"""The broker's TLS: its certificate, the authority of its clients, and the role of a client.

The files are read at the start and by ``reload``. Connections that exist keep their keys. If a file
is not valid, the certificates that are in use stay.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from escapement.errors import InvalidRequest
from escapement.event_log import EventLog
from escapement.protocol.limits import MAX_NAME_CHARS

_log = EventLog(__name__)

LEAST_VERSION: Final = ssl.TLSVersion.TLSv1_2
# Whether each client needs a certificate, or may have one.
ClientCertificates = Literal["required", "optional"]
CLIENT_CERTIFICATES: Final[tuple[ClientCertificates, ...]] = get_args(ClientCertificates)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of the broker's TLS, in PEM format.

    ``cert`` has the broker's certificate, followed by those between it and its authority.
    ``client_ca`` has the authorities of clients. If it is set, clients need a certificate, unless
    ``client_certificates`` is "optional". A certificate of another authority is always refused.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_certificates: ClientCertificates = "required"


class Certificates:
    """The TLS settings of new connections."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files; blocking.

        Raises:
          InvalidRequest: if a file cannot be used. The message names it.
        """
        self._files = files
        self.context = _context(files)

    def reload(self) -> None:
        """Read the files again, for new connections; blocking.

        If one cannot be used, that is logged, and nothing changes.
        """
        try:
            self.context = _context(self._files)
        except InvalidRequest as error:
            _log.error("tls.reload_failed", "the TLS certificate in use stays: %s", error)
        else:
            _log.info("tls.reloaded", "reloaded the TLS certificate from %s", self._files.cert)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = LEAST_VERSION
    # Otherwise a client could ask for any number of new handshakes on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # A password would be asked for on the terminal.
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"cannot use --tls-cert {files.cert} with --tls-key {files.key}: {_reason(error)}"
        ) from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"cannot use --tls-client-ca {files.client_ca}: {_reason(error)}"
            ) from error
        optional = files.client_certificates == "optional"
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; remove its password, and let only the broker read it")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        # OpenSSL gives no reason for files without any PEM block.
        return (error.reason or "not a PEM file").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def role_of(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the role that a verified client certificate names, or None.

    The role is the URI of the subject's alternative names, such as a SPIFFE id. Without a URI it is
    the common name of the subject. A certificate with several URIs, or several common names, names
    no role.

    Args:
      certificate: what ``SSLObject.getpeercert`` returns: None or empty without a certificate.
    """
    if not certificate:
        return None
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    names = [
        value
        for relative in certificate.get("subject", ())
        for field, value in relative
        if field == "commonName"
    ]
    found = uris or names
    if len(found) != 1:
        return None
    role: str = found[0]
    return role if role.isprintable() and 0 < len(role) <= MAX_NAME_CHARS else None
