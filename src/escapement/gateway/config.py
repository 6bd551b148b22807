"""Where the gateway listens, and what makes that unsafe or impossible."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from escapement.broker.front.certificates import Certificates, TlsFiles
from escapement.errors import InvalidRequest
from escapement.loopback import is_loopback

DEFAULT_GATEWAY_PORT: Final = 7652


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Where the gateway listens.

    Attributes:
      tls_cert, tls_key: PEM files, for HTTPS; both or neither.
    """

    # What errors call the server, the packages that it needs, and the extra that installs them.
    NAME: ClassVar[str] = "gateway"
    PACKAGES: ClassVar[tuple[str, ...]] = ("starlette", "hypercorn", "msgspec")
    EXTRA: ClassVar[str] = "http"

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def check(self, *, insecure: bool) -> None:
        """Check that the server can run and may run.

        Args:
          insecure: whether the operator allows plain HTTP on addresses that other machines reach.

        Raises:
          InvalidRequest: if a package is missing, TLS is incomplete, a file of it cannot be used,
            or tokens could be overheard.
        """
        missing = [name for name in self.PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise InvalidRequest(
                f"The {self.NAME} needs packages that are not installed ({', '.join(missing)}). "
                f"Install them with: pip install 'escapement[{self.EXTRA}]'"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("--tls-cert and --tls-key need each other.")
        if self.tls_cert is not None and self.tls_key is not None:
            Certificates(TlsFiles(self.tls_cert, self.tls_key))
        if self.tls_cert is None and not insecure and not is_loopback(self.host):
            raise InvalidRequest(
                f"--listen {self.host} is not a loopback address, and without TLS everyone on the "
                "network can read the tokens of requests. Give --tls-cert and --tls-key. Behind a "
                "proxy that ends TLS, allow plain HTTP with --insecure."
            )
