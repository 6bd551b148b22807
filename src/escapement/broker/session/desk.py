"""A desk: what one connection may ask about one noun, and how each request is carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from escapement.protocol.commands import Command

AtOnce = Callable[[Any], None]
Waiting = Callable[[Any], Awaitable[None]]


class Desk:
    """The base of all desks: it takes nothing and has nothing open.

    Each map goes from a kind of command to the method that carries it out, which may
    raise ``EscapementError``: the session then refuses the request by its id.
    """

    # Touches memory only: done before the next command is looked at.
    at_once: Mapping[type[Command], AtOnce] = {}
    # Waits, and whatever the peer sent behind it waits too.
    in_turn: Mapping[type[Command], Waiting] = {}
    # Needs the database: a task of the session, beside what comes behind it.
    aside: Mapping[type[Command], Waiting] = {}

    def release(self) -> None:
        """The connection has ended: give up what it had open."""
