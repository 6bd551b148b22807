"""Where the console listens, the environment that its pages name, and links to other tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from escapement.errors import InvalidRequest
from escapement.gateway.config import GatewayConfig

DEFAULT_CONSOLE_PORT: Final = 7653
# The place of the id of a trace in ``trace_url``.
TRACE_ID: Final = "{trace_id}"


@dataclass(frozen=True, slots=True)
class ConsoleConfig(GatewayConfig):
    """Where the console listens.

    Attributes:
      banner: the name of the environment, such as "production", which each page shows.
      trace_url: the address of a trace, with ``TRACE_ID`` in it; "" for no links to traces.
    """

    NAME: ClassVar[str] = "console"
    PACKAGES: ClassVar[tuple[str, ...]] = (*GatewayConfig.PACKAGES, "jinja2", "cron_descriptor")
    EXTRA: ClassVar[str] = "console"

    banner: str = ""
    trace_url: str = ""

    def check(self, *, insecure: bool) -> None:
        """Check also the address of a trace. See ``GatewayConfig.check``."""
        GatewayConfig.check(self, insecure=insecure)
        is_web = self.trace_url.startswith(("https://", "http://"))
        if self.trace_url and not (is_web and TRACE_ID in self.trace_url):
            raise InvalidRequest(
                f"--trace-url {self.trace_url} is not the address of a trace. Write it as in "
                f"https://jaeger.example/trace/{TRACE_ID}."
            )

    def trace_link(self, trace_id: str) -> str:
        """Return the address of a trace; "" if there are no links to traces."""
        return self.trace_url.replace(TRACE_ID, trace_id)
