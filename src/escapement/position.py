"""The position in a topic where a subscription begins.

::

    latest      messages published or due from now on
    earliest    all messages in the log
    offset:N    messages from offset N on
    time:T      shared: messages due from T on, and all messages published later;
                exclusive and failover: from the first message accepted at T or later

T is Unix time in milliseconds. Protocol commands and administration use the same text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from escapement.errors import InvalidRequest

# The highest offset or time of a position. The sum of two such numbers fits an int64.
_HIGHEST: Final = (1 << 62) - 1
_PATTERN: Final = re.compile(r"(offset|time):([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Position:
    """The position in a topic where a subscription begins.

    ``value`` is the offset or the time in Unix milliseconds, 0 for latest and earliest.
    """

    kind: Literal["latest", "earliest", "offset", "time"]
    value: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.value <= _HIGHEST:
            raise InvalidRequest(f"a subscription cannot begin at {self.kind} {self.value}")

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse a position in its text form, such as ``offset:17``. Raises ``InvalidRequest``."""
        if text == "latest":
            return LATEST
        if text == "earliest":
            return EARLIEST
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise InvalidRequest(
                f"a position must be latest, earliest, offset:N or time:MILLISECONDS, not {text!r}"
            )
        return cls("offset" if match[1] == "offset" else "time", int(match[2]))

    def __str__(self) -> str:
        if self.kind in ("latest", "earliest"):
            return self.kind
        return f"{self.kind}:{self.value}"


LATEST: Final = Position("latest")
EARLIEST: Final = Position("earliest")
