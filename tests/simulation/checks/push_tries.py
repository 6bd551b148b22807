"""What is seen of the processes that push: their tries, and the posts that reach the endpoint.

A *try* is one delivery of a message to a process that pushes. The process begins one post for it,
unless it releases the message at once. The endpoint notes each post that reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from histories.history import Arrival

# The ends of a try.
ACK: Final = "ack"
NACK: Final = "nack"
REJECT: Final = "reject"
RELEASE: Final = "release"
# The delay of a nack after which the subscription's back-off decides.
BACK_OFF: Final = -1
_LONGEST_WAIT_MS: Final = 3_600_000


@dataclass(slots=True, eq=False)
class Post:
    """A post that reached the endpoint, and its answer.

    Attributes:
      wait_ms, wait_until_ms: the wait that the answer asks for, or its end.
      heard_s: when the process that pushes had the whole answer.
    """

    headers: dict[str, str]
    body: bytes
    received_s: float
    status: int = 0
    wait_ms: int | None = None
    wait_until_ms: int | None = None
    heard_s: float | None = None

    def end(self, heard_ms: int) -> tuple[str, int, str]:
        """Return the end of its try: the kind, the delay of a nack, the detail of a reject."""
        if 200 <= self.status < 300:
            return ACK, 0, ""
        if 400 <= self.status < 500 and self.status != 429:
            return REJECT, 0, f"HTTP {self.status}"
        wait_ms = self.wait_ms
        if self.wait_until_ms is not None:
            wait_ms = self.wait_until_ms - heard_ms
        if wait_ms is None:
            return NACK, BACK_OFF, ""
        return NACK, min(max(wait_ms, 0), _LONGEST_WAIT_MS), ""


@dataclass(slots=True, eq=False)
class Try:
    """One delivery of a message to a process that pushes.

    Attributes:
      taken_s: when the process had it.
      ended_s: when the process decided what becomes of it. None: it has not, or it was killed.
      sure: whether the broker surely learned this in time, unless their connection ended.
    """

    arrival: Arrival
    attempt: int
    taken_s: float
    posts: list[Post] = field(default_factory=list)
    ended_s: float | None = None
    ended_number: int = 0  # counts all ends, of which several may be at one time
    end: str = ""
    delay_ms: int = 0
    detail: str = ""
    sure: bool = False


@dataclass(slots=True, eq=False)
class Listing:
    """An answer to a process that asked for the targets."""

    called_s: float
    answered_s: float
    listed: bool  # whether the target is among them


@dataclass(eq=False)
class Pusher:
    """One process that pushes."""

    listings: list[Listing] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)  # the ends of its pauses, as by SIGCONT
    deliveries: list[Deliveries] = field(default_factory=list)
    killed_s: float = float("inf")


@dataclass(eq=False)
class Deliveries:
    """The consumer of a process, from one change of the target to the next."""

    timeout_ms: int
    concurrency: int
    tries: list[Try] = field(default_factory=list)
