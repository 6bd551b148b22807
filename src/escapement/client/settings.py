"""The settings of a client: the timeouts that bound its waits for the broker, and its reason."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.errors import InvalidRequest
from escapement.protocol.limits import MAX_REASON_CHARS


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client. Timeouts are in seconds.

    The defaults suit a broker in the same region.

    Attributes:
      connect_timeout_s: the longest time for one attempt to connect, including the handshake. It is
        shorter at a broker that has gone silent, if the client knows others.
      request_timeout_s: the longest wait for the answer to a request, or for acknowledgements
        to become durable, including the time to reconnect. After it the call raises
        ``Disconnected``.
      close_timeout_s: the longest wait for the answers to publishes and acknowledgements when
        the ``with`` block of ``connect`` or of a consumer ends.
      heartbeat_s: the interval of the heartbeat, by which client and broker check that the other
        is alive. None sends no heartbeat. The broker closes connections that are silent for 90
        seconds.
      heartbeat_timeout_s: the longest wait for an answer to the heartbeat. After it the client
        reconnects, and tries the other brokers first. So it notices a broker that hangs after at
        most the sum of both, which must be shorter than ``send_timeout`` of its producers.
      reconnect_first_s, reconnect_longest_s: the client waits for a random time between two
        attempts to connect, up to a bound. The bound is ``reconnect_first_s`` at first, and
        doubles with each failure, up to ``reconnect_longest_s``. In the first minute of an
        outage no wait is longer than a second.
      reason: why the client makes its administrative requests, such as "ticket 4711". The audit log
        of the broker shows it. At most 500 characters. ``Broker.because`` gives a reason for single
        requests.
      observer: whether the client also accepts a node that owns no bundle. Such a node answers the
        verb ``cluster.status``, and nothing else.
    """

    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    close_timeout_s: float = 10.0
    # Together they are little longer than the lease of a broker, ten seconds, so that a client soon
    # finds the next owner of its topics. A shorter timeout would give up busy brokers.
    heartbeat_s: float | None = 5.0
    heartbeat_timeout_s: float = 7.0
    reconnect_first_s: float = 0.1
    reconnect_longest_s: float = 10.0
    reason: str = ""
    observer: bool = False

    def __post_init__(self) -> None:
        """Check the reason.

        Raises:
          InvalidRequest: if it is too long.
        """
        check_reason(self.reason)


def check_reason(reason: str) -> str:
    """Return a reason for the audit log. Raise ``InvalidRequest`` if it is too long."""
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidRequest(f"The reason may have at most {MAX_REASON_CHARS} characters.")
    return reason
