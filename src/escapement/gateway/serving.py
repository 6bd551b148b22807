"""Serves the gateway or the console: applications that can end the requests that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from escapement.errors import InvalidRequest
from escapement.gateway.config import GatewayConfig
from escapement.http.server import Certificate, address_text, serve_http


class App(Protocol):
    """An ASGI application that can end the requests that wait."""

    asgi: Any

    def stop(self) -> None:
        """End the requests that wait, and refuse further ones of this kind."""


async def serve_app(
    config: GatewayConfig,
    app: App,
    until: Callable[[], Awaitable[None]],
    ready: Callable[[str], None],
) -> None:
    """Serve an application until the awaitable of ``until`` has finished.

    The server then accepts no more requests, ends those that wait, and finishes the others.

    Args:
      ready: called with the address, when the server accepts requests.

    Raises:
      InvalidRequest: if the address cannot be bound.
    """

    certificate = None
    if config.tls_cert is not None and config.tls_key is not None:
        certificate = Certificate(config.tls_cert, config.tls_key)

    async def stopping() -> None:
        await until()
        app.stop()

    try:
        await serve_http(
            app.asgi,
            config.host,
            config.port,
            stopping,
            certificate=certificate,
            ready=lambda port: ready(address_text(config.host, port)),
        )
    except OSError as error:
        raise InvalidRequest(
            f"The {config.NAME} cannot listen on {address_text(config.host, config.port)}: "
            f"{error.strerror or error}. Give another address with --listen."
        ) from error
