"""Verbs that a test runs without the audit log.

The row of an action is committed before its change. A test that holds the next commit would hold
the row instead of the change.
"""

from __future__ import annotations

from typing import Any

from escapement.broker.access.caller import Caller
from escapement.broker.admin.admin import VERBS
from escapement.broker.admin.arguments import Arguments
from escapement.testing import World


async def run_verb(world: World, verb: str, /, **arguments: Any) -> Any:
    """Run a verb on the broker of a world, for a caller that may do everything."""
    caller = Caller(world.server.services.access)
    return await VERBS[verb](world.server, Arguments(verb, arguments, caller))
