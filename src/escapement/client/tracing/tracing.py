"""The class ``Tracing``: whether and how a client traces with OpenTelemetry."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escapement.client.connection.address import Address

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from escapement.client.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Tracing:
    """How a client traces with OpenTelemetry.

    Attributes:
      provider: the tracer provider. None selects the provider of the process, if the application
        has set one before it connects. A ``NoOpTracerProvider`` turns tracing off.
      each_message: whether each message of a batch gets a span of its own when it is sent, and each
        single message when it is received and when it is acknowledged.
    """

    provider: TracerProvider | None = None
    each_message: bool = False

    def _tracer(self, server: Address | None, client: str) -> Tracer | None:
        """Return the tracer of a client, or None if the client does not trace.

        Args:
          server: the address of the broker, if it is known.
          client: the name of the client, or "".
        """
        # Importing OpenTelemetry takes 50 ms. An application that has set a provider has done it.
        if self.provider is None and "opentelemetry.trace" not in sys.modules:
            return None
        from escapement.client.tracing.tracer import Tracer, provider_in_use

        provider = provider_in_use(self.provider)
        return None if provider is None else Tracer(provider, server, client, self.each_message)
