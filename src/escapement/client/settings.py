"""How patient a client is. Every wait has an end, and it is one of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """All in seconds. The defaults suit a broker in the same region."""

    # To connect and shake hands; then it is tried again.
    connect_timeout_s: float = 10.0
    # For the answer to a request, also that acknowledgements are durable, reconnecting included;
    # then it raises.
    request_timeout_s: float = 30.0
    # For publishes and acknowledgements to be answered when a block ends without error.
    close_timeout_s: float = 10.0
    # So often the broker is asked whether it is there, and learns that we are; None never
    # asks. (It closes connections from which it hears nothing for a minute and a half.)
    heartbeat_s: float | None = 15.0
    # After so long without an answer the connection is given up.
    heartbeat_timeout_s: float = 10.0
    # Bounds of the random wait between attempts to connect: the bound doubles from first to
    # longest. In the first minute of an outage no wait is longer than a second.
    reconnect_first_s: float = 0.1
    reconnect_longest_s: float = 10.0
