"""Tells systemd, or another service manager, whether the broker is ready.

A unit with ``Type=notify`` is started when the broker accepts connections, not when its process
exists. The protocol is that of sd_notify(3): a datagram to the socket that ``NOTIFY_SOCKET`` names.
Without the variable, nothing happens.
"""

from __future__ import annotations

import os
import socket
from typing import Final, Literal

_VARIABLE: Final = "NOTIFY_SOCKET"

State = Literal["READY=1", "STOPPING=1"]


def notify(state: State) -> None:
    """Tell the service manager the state of this process. Ignore one that cannot be reached."""
    address = os.environ.get(_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.sendto(state.encode(), address)
    except OSError:
        pass  # the manager is gone; it will find out by itself how the process ends
