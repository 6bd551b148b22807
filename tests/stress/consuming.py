"""Consumers that acknowledge, fail, release, forget and leave."""

from __future__ import annotations

from typing import Final

import trio

import escapement
from escapement.errors import EscapementError
from histories.history import number_of
from histories.recording import RecordedInbox, connection_of
from stress.world import SUBSCRIPTIONS, WITH_DEAD_LETTERS, World, passes
from support.processes.broker import PATIENT

ACTIONS: Final = {
    "ack": 0.90,
    "durable": 0.03,
    "nack": 0.04,
    "release": 0.01,
    "forget": 0.01,
    "leave": 0.01,
}
PERMITS: Final = 100


async def consume(world: World, subscription: str) -> None:
    """Consume until cancelled, with a new consumer after each one that leaves."""
    async with escapement.connect(world.url, settings=PATIENT) as client:
        topic = SUBSCRIPTIONS[subscription]
        while True:
            async with client.consumer(topic, subscription, permits=PERMITS) as inbox:
                recorded = RecordedInbox(world.history, subscription, inbox, connection_of())
                while await _take(world, subscription, recorded, await inbox.next_batch()):
                    pass
                recorded.leave()


async def _take(
    world: World, subscription: str, inbox: RecordedInbox, batch: escapement.Batch | None
) -> bool:
    """Do something with each message of a batch; return whether to stay."""
    assert batch is not None
    inbox.take(batch)
    chosen: dict[str, list[int]] = {action: [] for action in ACTIONS}
    for message in batch:
        known = world.history.messages[number_of(message.payload)]
        first_copy = known.offset in (message.offset, -1)
        if known.poison and first_copy and subscription in WITH_DEAD_LETTERS:
            action = "nack"
        else:
            (action,) = world.chance.choices(list(ACTIONS), list(ACTIONS.values()))
        if world.over and action in ("nack", "forget", "leave") and not known.poison:
            action = "ack"
        chosen[action].append(message.offset)
    await inbox.ack(chosen["ack"])
    await inbox.nack(chosen["nack"])
    await inbox.release(chosen["release"])
    if chosen["durable"]:
        try:
            await inbox.ack_durably(chosen["durable"])
        except EscapementError as error:
            if not passes(error):
                raise
            return False
    await trio.sleep(world.chance.uniform(0, 0.05))
    return not chosen["leave"]
