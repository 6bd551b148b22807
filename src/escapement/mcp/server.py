"""The server of the protocol: it lists the tools, and carries out calls."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

import trio
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)
from pydantic import ValidationError

from escapement.durations import format as duration_text
from escapement.errors import EscapementError, Unauthenticated
from escapement.event_log import EventLog
from escapement.gateway.clients import Clients
from escapement.mcp import changing, looking, scheduling
from escapement.mcp.limits import Limits
from escapement.mcp.tool import UNTRUSTED_HINT, Call, Tool

TOOLS: Final[dict[str, Tool]] = {
    tool.name: tool for tool in (*looking.TOOLS, *scheduling.TOOLS, *changing.TOOLS)
}
# The most calls that are carried out at a time. Further ones are refused.
MOST_CALLS: Final = 32

_log = EventLog(__name__)


class AgentServer:
    """The tools of one agent.

    Args:
      clients: the connection to the brokers, which is opened by the first call.
      limits: what the agent may do.
      now_ms: returns the wall-clock time.
    """

    def __init__(self, clients: Clients, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._clients = clients
        self._limits = limits
        self._now_ms = now_ms
        self._counting = trio.Lock()
        self._running = 0
        self.protocol: Final[Server[Any]] = Server(
            "escapement",
            version=version("escapement"),
            instructions=_instructions(limits),
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def _list(self, context: Any, given: PaginatedRequestParams | None) -> ListToolsResult:
        """List the tools that the agent may call."""
        return ListToolsResult(tools=[one.shown() for one in TOOLS.values() if self._has(one)])

    async def _call(self, context: Any, given: CallToolRequestParams) -> CallToolResult:
        """Carry out a call. Every failure is a result, whose text tells the agent the reason."""
        if self._running >= MOST_CALLS:
            return _failed(f"{MOST_CALLS} calls are in progress. Wait for their results.")
        self._running += 1
        try:
            return await self._result(given.name, given.arguments or {})
        except ValidationError as error:
            return _failed(_mistakes(given.name, error))
        except Unauthenticated as error:
            return _failed(f"The broker does not accept the token of this server. {_text(error)}")
        except EscapementError as error:
            again = " It may succeed later: wait, and call again." if error.retryable else ""
            return _failed(_text(error) + again)
        except Exception:
            _log.exception("mcp.bug", "a call of %s failed because of a bug", given.name)
            return _failed("The server could not carry out the call. Its log has the reason.")
        finally:
            self._running -= 1

    async def _result(self, name: str, given: dict[str, Any]) -> CallToolResult:
        tool = TOOLS.get(name)
        if tool is None:
            return _failed(f"There is no tool {name!r:.80}. List the tools to see their names.")
        if not self._has(tool):
            return _failed(
                f"{name} changes something, and this server only reads. Nothing was changed. Its "
                "operator may start `escapement mcp` with --allow-write."
            )
        arguments = tool.arguments.model_validate(given)
        async with self._clients.use("") as client:
            call = Call(client, self._limits, self._now_ms, self._counting)
            result = await tool.run(call, arguments)
        return CallToolResult(
            content=[TextContent(text=result.model_dump_json())],
            structured_content=result.model_dump(mode="json"),
        )

    def _has(self, tool: Tool) -> bool:
        return self._limits.may_write or not tool.writes


def _instructions(limits: Limits) -> str:
    """Return the text that tells the agent about the server as a whole."""
    if limits.may_write:
        may = (
            f"Messages may be scheduled at most {duration_text(limits.max_delay_ms)} ahead, "
            f"with payloads of at most {limits.max_payload_bytes} bytes and at most "
            f"{limits.max_pending_per_key} pending messages per key."
        )
    else:
        may = "This server only reads: no tool changes anything."
    return (
        "escapement is a message broker that delivers each message when it is due. A message is in "
        "a topic, and all subscriptions of the topic get it. "
        f"{may} Allowed topics: {limits.topics_in_words()}. {UNTRUSTED_HINT}"
    )


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def _text(error: EscapementError) -> str:
    """Return the text of an error as a sentence."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _mistakes(name: str, error: ValidationError) -> str:
    """Return the mistakes in the arguments of a call, as text."""
    found = [
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}."
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return f"The arguments of {name} are not valid. {' '.join(found)} Nothing was done."
