"""Asking what may be asked twice: a request whose answer was lost is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio

from escapement.client.line import Line
from escapement.errors import Disconnected
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command

# How verbs end that only look, or that say how something is to be from now on. The others make
# something, end it or move it: done twice they would do more, or complain.
_TWICE: Final = {
    "list", "get", "stats", "show", "count", "peek", "forecast", "select",
    "update", "enable_delayed_message", "disable_delayed_message", "pause", "resume", "close",
}  # fmt: skip


async def ask_again(line: Line, make: Callable[[int], Command]) -> Command:
    """Ask until there is an answer, over as many connections as that takes.

    Raises:
      Disconnected: if there is none in time, or this side has closed.
    """
    deadline_s = anyio.current_time() + line.settings.request_timeout_s
    while True:
        try:
            return await line.ask(make, deadline_s)
        except Disconnected:
            if line.closed is not None or anyio.current_time() >= deadline_s:
                raise


async def ask_verb(line: Line, verb: str, arguments: dict[str, Any]) -> Any:
    """What the broker answers to a verb; asked again only if that does no harm.

    Raises as ``ask_again``, where it is asked once also if the connection is lost.
    """

    def make(number: int) -> Command:
        return wire.Admin(number, verb, arguments)

    # Of a wrong type it is asked once, too: who takes it apart says so.
    twice = str(verb).rpartition(".")[2] in _TWICE
    answer = await (ask_again(line, make) if twice else line.ask(make))
    assert isinstance(answer, wire.AdminReply)
    return answer.result
