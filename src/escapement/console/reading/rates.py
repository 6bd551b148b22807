"""Rates of counters: how fast they grew between two readings of a page."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

# The most readings that are kept, and the shortest time between two of them.
MOST_READINGS: Final = 2000
LEAST_MS: Final = 1000


class Reading(NamedTuple):
    """The values of some counters at a time, and the rates until then."""

    at_ms: int
    values: dict[str, int]
    rates: dict[str, float | None]


class Rates:
    """The last reading of each thing that has counters, such as a subscription."""

    def __init__(self) -> None:
        self._readings: OrderedDict[str, Reading] = OrderedDict()  # read longest ago first

    def of(self, name: str, values: Mapping[str, int], now_ms: int) -> dict[str, float | None]:
        """Return how much each counter of a thing grew in a second, since the reading before.

        A rate is None at the first reading, and if the counter has fallen. Then a broker has
        started again, or has deleted a part of its log, and the growth is not known.
        """
        last = self._readings.get(name)
        if last is not None and now_ms - last.at_ms < LEAST_MS:
            return last.rates
        rates: dict[str, float | None] = dict.fromkeys(values)
        if last is not None:
            seconds = (now_ms - last.at_ms) / 1000
            for counter, value in values.items():
                grown = value - last.values.get(counter, 0)
                rates[counter] = grown / seconds if grown >= 0 else None
        elif len(self._readings) >= MOST_READINGS:
            self._readings.popitem(last=False)
        self._readings[name] = Reading(now_ms, dict(values), rates)
        self._readings.move_to_end(name)
        return rates
