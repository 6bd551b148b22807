"""Clients that send and acknowledge messages in transactions of the application's database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import trio

import escapement
from escapement import sql
from escapement.errors import AlreadyProcessed
from histories.history import Message, payload_of
from histories.recording import RecordedInbox, connection_of
from stress.application import Application, Cursor, Session
from stress.producing import draw_delay_ms
from stress.world import IN_TRANSACTIONS, KEYED, PLAIN, World
from support.processes.broker import PATIENT

_BATCH: Final = 6
_ROLLED_BACK_SHARE: Final = 0.15
# The share of the committed batches that are also acknowledged in the usual way, as applications
# should. The others wait for a relay.
_ACKED_SHARE: Final = 0.5
_PERMITS: Final = 40


async def send_in_transactions(world: World, application: Application) -> None:
    """Insert messages for all topics into the outbox until the run is over."""
    history, session = world.history, Session(application.shop)
    while not world.over:
        batch = []
        for _ in range(world.chance.randint(1, _BATCH)):
            topic, delay_ms = world.chance.choice([PLAIN, KEYED]), draw_delay_ms(world)
            message = history.publish(topic, "", history.now_ms() + delay_ms)
            # Rows are moved after their commit, so they have no place in the order of other keys.
            message.key = f"o{message.number}"
            batch.append((message, delay_ms))
        commits = world.chance.random() >= _ROLLED_BACK_SHARE
        insert = partial(session.transact, partial(_schedule, batch), commits=commits)
        stored = await trio.to_thread.run_sync(insert)
        for message, _ in batch:
            if stored:
                history.confirm(message, -1)
            message.refused = stored is False
        history.counts["sent in transactions"] += bool(stored) * len(batch)
        history.counts["rolled back"] += not commits
        await trio.sleep(world.chance.uniform(0, 2 * world.publish_pause_s))
    session.close()


def _schedule(batch: Sequence[tuple[Message, int]], cursor: Cursor) -> None:
    for message, delay_ms in batch:
        delay = timedelta(milliseconds=delay_ms)
        sql.schedule(cursor, message.topic, payload_of(message), key=message.key, delay=delay)


async def process_in_transactions(
    world: World, application: Application, subscription: str
) -> None:
    """Consume until cancelled, and write an effect for each message."""
    topic, session = IN_TRANSACTIONS[subscription], Session(application.shop)
    async with escapement.connect(world.url, settings=PATIENT) as client:
        while True:
            async with client.consumer(topic, subscription, permits=_PERMITS) as inbox:
                recorded = RecordedInbox(world.history, subscription, inbox, connection_of())
                while world.over or world.chance.random() > 0.02:
                    batch = await inbox.next_batch()
                    assert batch is not None
                    recorded.take(batch)
                    await _process(world, session, recorded, subscription, list(batch))
                recorded.leave()


async def _process(
    world: World,
    session: Session,
    inbox: RecordedInbox,
    subscription: str,
    messages: Sequence[escapement.Message],
) -> None:
    """Process messages in one transaction. If one was processed before, take them one by one."""
    chance, counts = world.chance, world.history.counts
    commits = world.over or chance.random() >= _ROLLED_BACK_SHARE
    offsets = [message.offset for message in messages]
    work = partial(_take_effect, subscription, messages)
    try:
        stored = await trio.to_thread.run_sync(partial(session.transact, work, commits=commits))
    except AlreadyProcessed:
        if len(messages) == 1:
            counts["processed before"] += 1
            await inbox.ack(offsets)
            return
        for message in messages:
            await _process(world, session, inbox, subscription, [message])
        return
    if not stored:
        await inbox.nack(offsets)
        return
    counts["processed in transactions"] += len(messages)
    if chance.random() < _ACKED_SHARE:
        await inbox.ack(offsets)


def _take_effect(subscription: str, messages: Sequence[escapement.Message], cursor: Cursor) -> None:
    sql.ack(cursor, messages)
    effects = [(subscription, message.offset) for message in messages]
    cursor.executemany("INSERT INTO effects VALUES (%s, %s)", effects)
