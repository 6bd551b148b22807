"""Agents in a test. Their server runs in the same process, and its broker on a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import mcp
import trio
from mcp_types import Tool, ToolAnnotations

import escapement
from escapement.gateway.clients import Clients
from escapement.mcp.limits import Limits
from escapement.mcp.server import AgentServer
from escapement.testing import World

# An agent that may write, with the usual limits.
WRITER: Final = Limits(may_write=True)


class Agent:
    """An agent. Its client checks each result against the schema that the server announced."""

    def __init__(self, client: mcp.Client, tools: list[Tool]) -> None:
        self.client = client
        self.tools = {tool.name: tool for tool in tools}

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result. The result as text must be the same."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        (block,) = result.content
        assert block.type == "text"
        assert escapement.JSON.loads(block.text.encode()) == result.structured_content
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must fail, and return what the agent reads."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        (block,) = result.content
        assert block.type == "text"
        return block.text

    def hints(self, tool: str) -> ToolAnnotations:
        """Return the hints of a tool."""
        found = self.tools[tool].annotations
        assert found is not None
        return found


@asynccontextmanager
async def agent(
    world: World, limits: Limits = WRITER, token: str | None = None
) -> AsyncIterator[Agent]:
    """Start an agent, and its server in this process."""
    settings = escapement.Settings(heartbeat_s=None, close_timeout_s=0)

    def connect(_: str) -> Any:
        return world.connect(name="mcp", token=token, settings=settings)

    async with trio.open_nursery() as nursery:
        clients = Clients(connect, nursery)
        server = AgentServer(clients, limits, world.clock.now_ms)
        async with mcp.Client(server.protocol) as client:
            yield Agent(client, (await client.list_tools()).tools)
        await clients.close()
