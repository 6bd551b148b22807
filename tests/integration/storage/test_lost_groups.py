"""Lanes of a broker whose database loses confirmed group commits while the broker runs."""

from __future__ import annotations

import pytest

from escapement.errors import LogDamaged, OutcomeUnknown, StorageUnavailable
from escapement.storage.engine.base import Engine
from support.database.contents import put_back, save
from support.storage.commit_pipelines import (
    FaultyEngine,
    Once,
    committing,
    ends_with,
    no_fault,
    stored,
)

LOST = StorageUnavailable("cut by the test")
NO_REPLY = OutcomeUnknown("cut by the test")


@pytest.mark.parametrize("step", ["begin", "commit"])
async def test_lane_ends_if_the_database_was_restored_during_an_outage(
    engine: Engine, step: str
) -> None:
    """O9: it would continue the journal with a gap, and no broker could start on that."""
    faulty = FaultyEngine(engine)
    with ends_with(LogDamaged):
        async with committing(faulty, max_lanes=1) as house:
            topic = await house.topic("t")
            house.append(topic, b"kept")
            await house.pipeline.drain()
            backup = save(engine)
            house.append(topic, b"lost")
            await house.pipeline.drain()
            put_back(engine, backup)
            faulty.before = Once(step, NO_REPLY if step == "commit" else LOST)
            faulty.before.arm()
            house.append(topic, b"refused")
            await house.pipeline.drain()
    refused = house.tickets[-1]
    assert refused.offset is None
    assert isinstance(refused.error, LogDamaged | OutcomeUnknown)
    async with committing(engine, max_lanes=1) as house:
        house.pipeline.open_topic(topic, 1)
        house.append(topic, b"next")
        await house.pipeline.drain()
    assert stored(engine) == {topic: [b"kept", b"next"]}


async def test_lane_goes_on_after_an_outage_although_its_last_group_was_trimmed(
    engine: Engine,
) -> None:
    """P5: the checkpoint keeps the position of the last entry that it deleted."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        house.append(topic, b"0")
        await house.pipeline.drain()
        with house.connection() as connection:
            connection.begin()
            connection.execute(
                "INSERT INTO journal_trim (bundle_id, lane, seq, group_id)"
                " SELECT bundle_id, lane, seq, group_id FROM journal ORDER BY seq DESC LIMIT 1"
            )
            connection.execute("DELETE FROM journal")
            connection.commit()
        faulty.before = Once("begin", LOST)
        faulty.before.arm()
        ticket = house.append(topic, b"1")
        await house.pipeline.drain()
        faulty.before = no_fault
    assert ticket.offset == 1
