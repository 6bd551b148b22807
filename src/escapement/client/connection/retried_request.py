"""Requests that are sent again if the connection, or the lease of the broker, is lost meanwhile.

A request with a long column of offsets or digests is sent in parts, so that the broker serves
other clients between the parts. A *verb* is the name of an administrative request, such as
``topics.get``. *Lines* are the client's lasting connections to brokers, one for each bundle of
topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import numpy as np
import numpy.typing as npt

from escapement.client.connection.line import Line
from escapement.client.connection.lines import Lines
from escapement.client.connection.retry import Retry
from escapement.errors import Disconnected, LeaseLost, ShuttingDown, WrongBundle
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command
from escapement.protocol.limits import LIMIT_REASON

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
    "own", "preview", "overview", "stop", "status", "drain", "undrain", "move", "bundles",
    "secrets", "lateness", "findings",
}  # fmt: skip


async def ask_again(
    lines: Lines, topic: str, make: Callable[[int], Command], twice: bool = True
) -> Command:
    """Send a request about a topic to the broker of its bundle, until it answers.

    A request that had no effect is sent again: if another bundle has the topic, or the broker hands
    the bundle over.

    Args:
      topic: the name of the topic.
      make: creates the command for a request id.
      twice: whether the request may take effect twice, so that it is sent again after a reconnect,
        and if the broker has lost its lease.

    Raises:
      Disconnected: if no answer arrives within ``request_timeout_s``, or the application has
        closed the client.
      EscapementError: if the broker refuses.
    """

    async def find() -> Line:
        return await lines.of_topic(topic)

    return await _ask(lines, find, make, twice, lambda bundle: lines.note_bundle(topic, bundle))


async def ask_bundle(
    lines: Lines, bundle: int, make: Callable[[int], Command], twice: bool = True
) -> Command:
    """Send a request to the broker of a bundle; see ``ask_again``.

    Raises:
      WrongBundle: if only the broker of another bundle carries the request out.
    """

    async def find() -> Line:
        return lines.of_bundle(bundle)

    return await _ask(lines, find, make, twice, None)


async def ask_onward(
    lines: Lines, bundle: int, make: Callable[[int], Command], twice: bool = True
) -> Command:
    """Send a request to the broker of a bundle, and then to that of each bundle that is named.

    A broker names another bundle if the client cannot know which broker carries the request out.
    Raises the errors of ``ask_again``.
    """
    at = bundle

    async def find() -> Line:
        return lines.of_bundle(at)

    def elsewhere(named: int) -> None:
        nonlocal at
        at = named

    return await _ask(lines, find, make, twice, elsewhere)


async def _ask(
    lines: Lines,
    find: Callable[[], Awaitable[Line]],
    make: Callable[[int], Command],
    twice: bool,
    elsewhere: Callable[[int], None] | None,
) -> Command:
    deadline_s = anyio.current_time() + lines.settings.request_timeout_s
    retry, moves = Retry(), 0
    while True:
        try:
            return await _ask_line(await find(), make, twice, deadline_s)
        except WrongBundle as error:
            if error.bundle is None or elsewhere is None or _is_over(lines, deadline_s):
                raise
            elsewhere(error.bundle)
            moves += 1
            if moves == 1:
                continue
        except ShuttingDown:
            # It had no effect. Another broker may take over soon, or the same one starts again.
            if _is_over(lines, deadline_s):
                raise
        except LeaseLost:
            # The broker ends, and the next owner may be found after a reconnect.
            if not twice or _is_over(lines, deadline_s):
                raise
        await anyio.sleep(retry.next_s(anyio.current_time()))


async def _ask_line(
    line: Line, make: Callable[[int], Command], twice: bool, deadline_s: float
) -> Command:
    while True:
        try:
            return await line.ask(partial(_understood, line, make), deadline_s)
        except Disconnected:
            if not twice or line.closed is not None or anyio.current_time() >= deadline_s:
                raise


def _understood(line: Line, make: Callable[[int], Command], request_id: int) -> Command:
    """Create a command, without its reason if the broker at the line does not know this field.

    A broker of an earlier version would end the connection.
    """
    command = make(request_id)
    if (
        not isinstance(command, wire.Admin | wire.Cancel | wire.Reschedule)
        or not command.reason
        or line.link is None
        or LIMIT_REASON in line.link.welcome.limits
    ):
        return command
    return replace(command, reason="")


def _is_over(lines: Lines, deadline_s: float) -> bool:
    return lines.closed is not None or anyio.current_time() >= deadline_s


async def ask_in_parts(
    lines: Lines,
    topic: str,
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
    return [(part, await ask_again(lines, topic, partial(make, part))) for part in parts]


async def ask_verb_of(line: Line, verb: str, /, **arguments: Any) -> Any:
    """Send a verb to the broker of a line, and return the broker's answer.

    If the connection is lost, the request is sent again only if the verb is idempotent.

    Raises:
      Disconnected: if no answer arrives in time, or the connection is lost during a request
        that is not sent again.
      EscapementError: if the broker refuses.
    """
    make = partial(wire.Admin, verb=verb, arguments=arguments)
    deadline_s = anyio.current_time() + line.settings.request_timeout_s
    return result_of(await _ask_line(line, make, may_ask_twice(verb), deadline_s))


def result_of(answer: Command) -> Any:
    """Return the result in the answer to a verb."""
    assert isinstance(answer, wire.AdminReply)
    return answer.result


def may_ask_twice(verb: Any) -> bool:
    """Return whether a verb may be sent again if the connection is lost before the answer."""
    # If the verb is not a str, the command raises the error.
    return str(verb).rpartition(".")[2] in _TWICE
