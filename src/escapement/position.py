"""Where in a topic a subscription begins, and how that is written.

::

    latest      what is published or comes due from now on
    earliest    everything the log has
    offset:N    the messages from offset N on
    time:T      shared: what is due from T on, and all that is published later;
                exclusive and failover: from the first message accepted at T or later

T is Unix milliseconds. The same text travels in commands and stands in administration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from escapement.errors import InvalidRequest

# Sums of two such values stay within an int64.
_HIGHEST: Final = (1 << 62) - 1
_PLACE: Final = re.compile(r"(offset|time):([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Position:
    """A place to begin; ``value`` is an offset or Unix milliseconds, 0 where neither is meant."""

    kind: Literal["latest", "earliest", "offset", "time"]
    value: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.value <= _HIGHEST:
            raise InvalidRequest(f"{self.value} is no {self.kind} to begin at")

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that ``str`` of one wrote. Raises ``InvalidRequest``."""
        if text == "latest":
            return LATEST
        if text == "earliest":
            return EARLIEST
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InvalidRequest(
                f"a position is latest, earliest, offset:N or time:MILLISECONDS, not {text!r}"
            )
        return cls("offset" if match[1] == "offset" else "time", int(match[2]))

    def __str__(self) -> str:
        if self.kind in ("latest", "earliest"):
            return self.kind
        return f"{self.kind}:{self.value}"


LATEST: Final = Position("latest")
EARLIEST: Final = Position("earliest")
