"""Writes to the bundles of a process that share transactions, and a count of these."""

from __future__ import annotations

from collections.abc import Sequence

from escapement.storage.commit.items import Acks
from support.storage.commit_pipelines import House, Ticket, column

SHARED = "_SharedConnection.write"  # one shared transaction


class Commits:
    """A count of the transactions that write groups: each writes its journal rows at once."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, step: str) -> None:
        self.count += step.startswith("INSERT INTO journal")


async def topics_of(houses: Sequence[House]) -> list[int]:
    """Create a topic in each bundle, and write to each once in a shared transaction."""
    topics = [await house.topic(f"t{house.lease.bundle_id}") for house in houses]
    await append_to_each(houses, topics, b"first")
    return topics


async def append_to_each(
    houses: Sequence[House], topics: Sequence[int], payload: bytes
) -> list[Ticket]:
    """Append and acknowledge a message in each bundle at the same time, and wait for the end."""
    tickets = []
    for house, topic in zip(houses, topics, strict=True):
        tickets.append(house.append(topic, payload))
        house.pipeline.submit(Acks(topic, topic, column(len(house.tickets))))
    for ticket in tickets:
        await ticket.done.wait()
    return tickets


def tickets_of(houses: Sequence[House]) -> list[Ticket]:
    return [ticket for house in houses for ticket in house.tickets]
