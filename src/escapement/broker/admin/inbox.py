"""The administrative operations (*verbs*) on the inbox: list its entries, or discard them."""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

from escapement.broker.admin.arguments import Arguments, Plain
from escapement.broker.admin.result import Fields
from escapement.broker.admin.verb import MAX_ROWS, Verb
from escapement.broker.broker import Broker
from escapement.storage.inbox.inbox import Waiting


class Blocked(TypedDict):
    """Why the entries for a topic wait; None: nothing holds them up."""

    reason: str | None


WaitingEntries = Annotated[dict[str, Plain], Fields(Waiting, Blocked)]


class Discarded(TypedDict):
    """How many entries were deleted."""

    discarded: int


async def _list_inbox(broker: Broker, given: Arguments) -> list[WaitingEntries]:
    given.end()
    relay = broker.services.inbox_relay
    entries = await relay.waiting(MAX_ROWS)
    async with broker.answering:
        return [
            one._asdict() | {"reason": one.reason or relay.blocked.get(one.target)}
            for one in entries
        ]


async def _discard_entries(broker: Broker, given: Arguments) -> Discarded:
    target = given.text("target")
    given.end()
    return {"discarded": await broker.services.inbox_relay.discard(target)}


VERBS: Final[dict[str, Verb]] = {
    "inbox.list": _list_inbox,
    "inbox.discard": _discard_entries,
}
