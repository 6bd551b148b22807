"""A verb: a function that does one thing to a broker and answers in plain values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.broker import Broker

# Rows of one listing: it must fit a frame.
MAX_ROWS: Final = 10_000

Verb = Callable[[Broker, Arguments], Awaitable[Plain]]
