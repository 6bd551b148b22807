"""Roles of a broker in a test: tokens, and clients that connect with them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import escapement
from escapement.access.token import Token
from escapement.testing import World


async def begin(world: World) -> Token:
    """Create the first token, of a superuser."""
    token = Token.new()
    await world.server.services.access.bootstrap("root", token.id, token.digest)
    return token


@contextlib.asynccontextmanager
async def connected(world: World, token: Token) -> AsyncIterator[escapement.Broker]:
    settings = escapement.Settings(heartbeat_s=None, close_timeout_s=0)
    async with world.connect(token=token.text, settings=settings) as broker:
        yield broker


async def new_token(root: escapement.Broker, role: str, **arguments: Any) -> Token:
    token = Token.new()
    await root.admin("tokens.create", role=role, id=token.id, digest=token.digest, **arguments)
    return token
