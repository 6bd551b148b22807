"""A check of the address that a node tells clients and other nodes."""

from __future__ import annotations

import trio

from escapement.event_log import EventLog

_log = EventLog(__name__)


async def warn_if_unknown(address: str) -> None:
    """Log a warning if the host of an address is not known to this machine.

    It is a warning only: clients may use other name servers, or the name may be about to be known.

    Args:
      address: ``host:port``, with an IPv6 address in brackets.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        await trio.socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        _log.warning(
            "node.address_unknown",
            "clients are told the address %s, and this machine knows no %r: %s. If clients do not"
            " know it either, they do not find the topics of this node. See --advertise.",
            address,
            host,
            error,
            address=address,
        )
