"""Requests that are sent again if the connection is lost before the answer arrives.

A request with a long column of offsets or digests is sent in parts, so that the broker serves
other clients between the parts. A *verb* is the name of an administrative request, such as
``topics.get``. *Line* is the client's lasting connection to a broker, across reconnects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import numpy as np
import numpy.typing as npt

from escapement.client.connection.line import Line
from escapement.errors import Disconnected
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command

Dtype = TypeVar("Dtype", bound=np.generic)
# The type of ``Broker.admin``: a function that sends a verb with its arguments, and returns the
# broker's answer.
Ask = Callable[..., Awaitable[Any]]

# The most rows of a column in one request. The broker handles this many in a few milliseconds.
REQUEST_ROWS: Final = 32_768
# The last words of verbs that are idempotent: they read something or set a state, so they may be
# sent twice. All other verbs create, delete or move something. They would act twice, or fail.
_TWICE: Final = {
    "list", "get", "stats", "show", "next", "count", "peek", "forecast", "select",
    "update", "enable_delayed_message", "disable_delayed_message", "pause", "resume", "close",
    "preview", "stop",
}  # fmt: skip


async def ask_again(line: Line, make: Callable[[int], Command]) -> Command:
    """Send a request, and send it again after each reconnect, until the broker answers.

    Args:
      make: creates the command for a request id.

    Raises:
      Disconnected: if no answer arrives within ``request_timeout_s``, or the application has
        closed the line.
      EscapementError: if the broker refuses.
    """
    deadline_s = anyio.current_time() + line.settings.request_timeout_s
    while True:
        try:
            return await line.ask(make, deadline_s)
        except Disconnected:
            if line.closed is not None or anyio.current_time() >= deadline_s:
                raise


async def ask_in_parts(
    line: Line,
    column: npt.NDArray[Dtype],
    make: Callable[[npt.NDArray[Dtype], int], Command],
) -> list[tuple[npt.NDArray[Dtype], Command]]:
    """Send a column in several requests, each with at most ``REQUEST_ROWS`` rows.

    The requests are sent one after the other. Each is sent again after a reconnect.

    Args:
      make: creates the command for a part of the column and a request id.

    Returns:
      The parts of the column, each with the broker's answer.

    Raises:
      The errors of ``ask_again``. The requests before the failed one have taken effect.
    """
    parts = [column[low : low + REQUEST_ROWS] for low in range(0, len(column), REQUEST_ROWS)]
    return [(part, await ask_again(line, partial(make, part))) for part in parts]


async def ask_verb(line: Line, verb: str, /, **arguments: Any) -> Any:
    """Send a verb with its arguments, and return the broker's answer.

    If the connection is lost, the request is sent again only if the verb is idempotent.

    Raises:
      Disconnected: if no answer arrives in time, or the connection is lost during a request
        that is not sent again.
      EscapementError: if the broker refuses.
    """

    def make(number: int) -> Command:
        return wire.Admin(number, verb, arguments)

    # If the verb is not a str, the command raises the error.
    twice = str(verb).rpartition(".")[2] in _TWICE
    answer = await (ask_again(line, make) if twice else line.ask(make))
    assert isinstance(answer, wire.AdminReply)
    return answer.result
