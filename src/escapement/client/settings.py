"""The timeouts of a client. Every wait of a client is bounded by one of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The timeouts of a client, all in seconds.

    The defaults suit a broker in the same region.

    Attributes:
      connect_timeout_s: the longest time for one attempt to connect, with the handshake.
      request_timeout_s: the longest wait for an answer to a request, or for acknowledgements
        to become durable, with reconnecting. After it the call raises.
      close_timeout_s: the longest wait for the answers to publishes and acknowledgements when
        a block ends without an error.
      heartbeat_s: the interval of the heartbeat, by which client and broker check each other;
        None sends none. The broker closes connections that are silent for 90 seconds.
      heartbeat_timeout_s: the longest wait for an answer to the heartbeat. After it the client
        reconnects.
      reconnect_first_s, reconnect_longest_s: the first and the longest bound of the random
        wait between attempts to connect. The bound doubles. In the first minute of an outage
        no wait is longer than a second.
    """

    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    close_timeout_s: float = 10.0
    heartbeat_s: float | None = 15.0
    heartbeat_timeout_s: float = 10.0
    reconnect_first_s: float = 0.1
    reconnect_longest_s: float = 10.0
