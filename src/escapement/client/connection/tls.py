"""The client's TLS: which authorities it trusts, and the certificate that it shows.

The certificate and the name of the broker are always verified. The files are read for each
connection, so a client that reconnects uses a renewed certificate.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Final

from escapement.errors import InvalidRequest

CA_FILE_VARIABLE: Final = "ESCAPEMENT_CA_FILE"
CERT_FILE_VARIABLE: Final = "ESCAPEMENT_CERT_FILE"
KEY_FILE_VARIABLE: Final = "ESCAPEMENT_KEY_FILE"

# The reason if a broker with TLS ends a connection in its handshake. It sends no alert then.
CLOSED: Final = (
    "it closed the connection; if it asks for a client certificate, name its file as cert_file and "
    f"key_file, or {CERT_FILE_VARIABLE} and {KEY_FILE_VARIABLE}"
)


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """The files of a client's TLS, in PEM format.

    Attributes:
      ca: the authorities to trust; None: those of the system.
      cert, key: the client's certificate and its key. The key may be in the file of the
        certificate.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, ca: str | None, cert: str | None, key: str | None) -> ClientFiles:
        """Return the given files, or those that the environment names.

        Raises:
          InvalidRequest: if there is a key without a certificate.
        """
        ca = ca or os.environ.get(CA_FILE_VARIABLE) or None
        if not cert and not key:
            cert = os.environ.get(CERT_FILE_VARIABLE) or None
            key = os.environ.get(KEY_FILE_VARIABLE) or None
        if key and not cert:
            raise InvalidRequest("key_file needs a cert_file with the certificate of the key")
        return cls(ca, cert or None, key or None)

    def context(self) -> ssl.SSLContext:
        """Read the files; blocking. Without ``ca`` that takes some 30 ms.

        Raises:
          InvalidRequest: if a file cannot be used. The message names it.
        """
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"cannot use ca_file {self.ca}: {_text(error)}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
            except (OSError, ValueError) as error:
                key = "" if self.key is None else f" with key_file {self.key}"
                raise InvalidRequest(
                    f"cannot use cert_file {self.cert}{key}: {_text(error)}"
                ) from error
        return context


def reason_of(error: ssl.SSLError) -> str:
    """Return why a handshake failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}): name the file of its "
            f"authority as ca_file or {CA_FILE_VARIABLE}, and connect to a name in the certificate"
        )
    if error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS: connect to escapement://, or start it with --tls-cert"
    return f"TLS failed: {_text(error)}"


def _no_password() -> str:
    raise ValueError("the key is encrypted; remove its password")


def _text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        # OpenSSL gives no reason for files without any PEM block.
        return (error.reason or "not a PEM file").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
