"""A desk: the commands about one noun on one connection, and the methods that carry them out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from escapement.protocol.commands import Command

AtOnce = Callable[[Any], None]
Waiting = Callable[[Any], Awaitable[None]]


class RequestHandler:
    """The base of all desks: it takes no command and has nothing open.

    Each map goes from a kind of command to the method that carries it out. If the method raises
    ``EscapementError``, the session refuses the request by its id.
    """

    # Commands that only touch memory: carried out before the next command.
    at_once: Mapping[type[Command], AtOnce] = {}
    # Commands that wait. The commands behind them wait too.
    in_turn: Mapping[type[Command], Waiting] = {}
    # Commands that need the database: each runs in a task, and delays no other command.
    aside: Mapping[type[Command], Waiting] = {}

    def release(self) -> None:
        """Close everything that is open, because the connection has ended."""
