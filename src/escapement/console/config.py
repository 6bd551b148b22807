"""Where the console listens, and the environment that its pages name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from escapement.gateway.config import GatewayConfig

DEFAULT_CONSOLE_PORT: Final = 7653


@dataclass(frozen=True, slots=True)
class ConsoleConfig(GatewayConfig):
    """Where the console listens.

    Attributes:
      banner: the name of the environment, such as "production", which each page shows.
    """

    NAME: ClassVar[str] = "console"
    PACKAGES: ClassVar[tuple[str, ...]] = (*GatewayConfig.PACKAGES, "jinja2", "cron_descriptor")
    EXTRA: ClassVar[str] = "console"

    banner: str = ""
