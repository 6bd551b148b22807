"""Requests that are sent again if the connection is lost before the answer arrives.

Requests with a long column are split, so that the broker serves other clients in between.
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
# A function such as ``Broker.admin``, which sends a verb with its arguments.
Ask = Callable[..., Awaitable[Any]]

# Rows of a column in one request. The broker handles that many in a few milliseconds.
REQUEST_ROWS: Final = 32_768
# The endings of idempotent verbs, which read something or set a state. The other verbs create,
# delete or move something: repeated, they would act twice or fail.
_TWICE: Final = {
    "list", "get", "stats", "show", "count", "peek", "forecast", "select",
    "update", "enable_delayed_message", "disable_delayed_message", "pause", "resume", "close",
}  # fmt: skip


async def ask_again(line: Line, make: Callable[[int], Command]) -> Command:
    """Send a request until it is answered, on as many connections as needed.

    Raises:
      Disconnected: if no answer arrives in time, or this side has closed the connection.
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
    """Send a column in as many requests as needed, one after the other, as ``ask_again``.

    Returns:
      The parts of the column, each with its answer.
    """
    parts = [column[low : low + REQUEST_ROWS] for low in range(0, len(column), REQUEST_ROWS)]
    return [(part, await ask_again(line, partial(make, part))) for part in parts]


async def ask_verb(line: Line, verb: str, /, **arguments: Any) -> Any:
    """Return the broker's answer to a verb; send it again only if the verb is idempotent.

    Raises:
      Disconnected: if no answer arrives in time, or the connection is lost during a request
        that is not sent again.
    """

    def make(number: int) -> Command:
        return wire.Admin(number, verb, arguments)

    # A verb of a wrong type is also sent once; the command raises the error.
    twice = str(verb).rpartition(".")[2] in _TWICE
    answer = await (ask_again(line, make) if twice else line.ask(make))
    assert isinstance(answer, wire.AdminReply)
    return answer.result
