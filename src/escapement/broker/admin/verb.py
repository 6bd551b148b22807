"""A verb: a function that runs one operation on a broker and returns plain values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.broker import Broker

# The most rows of one listing, which must fit a frame.
MAX_ROWS: Final = 10_000

Verb = Callable[[Broker, Arguments], Awaitable[Plain]]
