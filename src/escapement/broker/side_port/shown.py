"""The broker that the side port shows.

The server replaces the broker after damage of the index, while the side port goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from escapement.broker.broker import Broker
from escapement.broker.upkeep.census import CensusTaker


@dataclass(slots=True)
class Shown:
    """The present broker of the process, and the number of its connections."""

    broker: Broker | None = None
    connections: Callable[[], int] = field(default=lambda: 0)
    _census_taker: CensusTaker | None = None

    def show(self, broker: Broker, connections: Callable[[], int]) -> None:
        """Show a broker that has just started, and accepts connections now."""
        self.broker, self.connections = broker, connections
        self._census_taker = broker.services.census_taker()

    def hide(self) -> None:
        """Show no broker, because it has ended and another one may start."""
        self.broker, self.connections, self._census_taker = None, lambda: 0, None

    @property
    def census_taker(self) -> CensusTaker | None:
        """The census taker of the broker; None without a broker."""
        return self._census_taker
