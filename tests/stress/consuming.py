"""Consumers that acknowledge, fail, release, forget and leave."""

from __future__ import annotations

from typing import Final

import trio

import escapement
from escapement.errors import EscapementError
from stress.history import now_ms, number_of
from stress.world import ACK_WAIT_MS, SUBSCRIPTIONS, WITH_DEAD_LETTERS, World, passes
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
# A message that waits longer than this for its acknowledgement may time out.
SLOW_MS: Final = ACK_WAIT_MS // 2


async def consume(world: World, subscription: str) -> None:
    """Consume until cancelled, with a new consumer after each one that leaves."""
    async with escapement.connect(world.url, settings=PATIENT) as client:
        topic = SUBSCRIPTIONS[subscription]
        while True:
            async with client.consumer(topic, subscription, permits=PERMITS) as inbox:
                while await _take_all(world, subscription, inbox):
                    pass


async def _take_all(world: World, subscription: str, inbox: escapement.Inbox) -> bool:
    """Wait for messages, and empty the inbox; return whether to stay."""
    empty_ms = now_ms()
    batch = await inbox.next_batch()
    assert batch is not None
    arrived_ms = now_ms()
    while batch is not None:
        if not await _take(world, subscription, inbox, batch, empty_ms):
            return False
        if now_ms() - arrived_ms > SLOW_MS:  # some may have timed out before their acknowledgement
            for message in batch:
                world.history.courses[subscription][message.offset].returned += 1
        batch = await inbox.next_batch(timeout_s=0)
    return True


async def _take(
    world: World,
    subscription: str,
    inbox: escapement.Inbox,
    batch: escapement.Batch,
    empty_ms: int,
) -> bool:
    """Do something with each message of a batch; return whether to stay.

    Args:
      empty_ms: the inbox was empty then, so the batch arrived later.
    """
    at_ms = now_ms()
    chosen: dict[str, list[int]] = {action: [] for action in ACTIONS}
    for message in batch:
        number = number_of(message.payload)
        course = world.history.deliver(
            subscription,
            number,
            message.offset,
            message.due_ms,
            message.key or "",
            message.redelivered or message.attempt > 1,
            empty_ms,
            at_ms,
        )
        known = world.history.messages[number]
        first_copy = known.offset in (message.offset, -1)
        if known.poison and first_copy and subscription in WITH_DEAD_LETTERS:
            action = "nack"
        else:
            (action,) = world.chance.choices(list(ACTIONS), list(ACTIONS.values()))
        if world.over and action in ("nack", "forget", "leave") and not known.poison:
            action = "ack"
        course.ack_sent |= action in ("ack", "durable")
        course.returned += action in ("nack", "release", "forget", "leave")
        chosen[action].append(message.offset)
    await inbox.ack(chosen["ack"])
    await inbox.nack(chosen["nack"])
    await inbox.release(chosen["release"])
    if chosen["durable"]:
        try:
            await inbox.ack(chosen["durable"], durable=True)
        except EscapementError as error:
            if not passes(error):
                raise
            return False
        done_ms = now_ms()
        for offset in chosen["durable"]:
            course = world.history.courses[subscription][offset]
            course.durable_ms = min(course.durable_ms, done_ms)
    await trio.sleep(world.chance.uniform(0, 0.05))
    return not chosen["leave"]
