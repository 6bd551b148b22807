"""Keeps the log from deleting messages that are not archived yet.

This concerns namespaces whose policy has ``archive``. The log deletes a *generation*, a set of its
tables, when no subscription will get the messages in it any more. The finished messages then exist
nowhere else. The archive job copies them to files first, and the database records their offsets
(storage/archive_record.py). This module compares a generation with these sets of offsets.

A log row *states* messages. A later row may *restate* a message, because it was rescheduled or
because the older generation is to be deleted. The topic's *moves* then have an entry that names the
row. Until a message is archived, this module holds back

- the generation that has its content: the one with the last restatement of the message, or the one
  that stated it first if no newer generation restates it;
- its entry among the moves, without which the restatement cannot be found.

The checks compare sets of offsets and read no messages. After a check that found unarchived
messages, the sets are read again only if something was archived, or if the topics or their
subscriptions changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import trio

from escapement.broker.log.log_reader import LogReader
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.event_log import EventLog
from escapement.message import Int64s
from escapement.storage import archive_record
from escapement.storage.blocking import Run
from escapement.storage.cleanup.forgetting import Holding
from escapement.storage.log.generation import Generation

_log = EventLog(__name__)

# The input of a check: the generation's id, ``archive_record.version``, the ids of the archived
# topics, and for each topic without live messages in the generation the ids of its subscriptions.
_Look = tuple[int, int, frozenset[int], dict[int, frozenset[int]]]
_NOTHING: Final[_Look] = (0, 0, frozenset(), {})


class ArchiveHold:
    """The check that messages are archived before they are deleted.

    Args:
      ask: calls a function with a database connection as the first argument.
    """

    def __init__(self, ask: Run, registry: Registry, reader: LogReader, clock: Clock) -> None:
        self._ask = ask
        self._registry = registry
        self._reader = reader
        self._clock = clock
        self._waited: _Look = _NOTHING  # the last check that found unarchived messages

    def concerned(self, held: Sequence[Holding]) -> frozenset[int]:
        """Return the ids of the topics whose messages must be archived before their deletion.

        Args:
          held: the content of a generation, an item for each topic.
        """
        return frozenset(
            one.topic_id
            for one in held
            if self._registry.exists(one.topic_id)
            and self._registry.namespace_of(one.topic_id).policy.archive
        )

    async def waits(
        self, oldest: Generation, held: Sequence[Holding], empty: dict[int, frozenset[int]]
    ) -> bool:
        """Return whether the oldest generation has finished messages that are not archived.

        Also update ``archive_awaited_since_ms`` of the topics.

        Args:
          held: the generation's content, an item for each topic. No message is live any more: the
            live ones were restated.
          empty: the topics without live messages in the generation, by id, with the ids of their
            subscriptions.
        """
        concerned = self.concerned(held)
        for one in held:
            if one.topic_id not in concerned and one.topic_id in self._registry.active:
                self._registry.active[one.topic_id].archive_awaited_since_ms = 0
        if not concerned:
            return False
        version = await self._ask(archive_record.version)
        look = oldest.id, version, concerned, dict(empty)
        if look == self._waited:
            return True
        waiting = False
        for one in held:
            if one.topic_id in concerned and self._registry.exists(one.topic_id):
                topic = self._registry.activate(one.topic_id)
                lacks = await self._lacks(topic, one)
                self._note(oldest, topic, lacks)
                waiting |= lacks
        self._waited = look if waiting else _NOTHING
        return waiting

    async def released(self, topic: Topic, offsets: Int64s) -> Int64s:
        """Return the moved messages whose moves the archive does not need any more; ascending.

        It needs a move until the message is archived, unless the restatement is already deleted.
        """
        if not len(offsets) or not topic.namespace.policy.archive:
            return offsets
        span = int(offsets[0]), int(offsets[-1]) + 1
        archived = await self._ask(archive_record.archived, topic.id, *span)
        first = await self._reader.first_base(topic.id)
        # A message whose restatement was deleted cannot be archived any more.
        stated = topic.amendments.moves.bases(offsets)
        gone = (stated > first) | (stated == 0) if first else np.ones(len(offsets), bool)
        return offsets[gone | archived.contains(offsets)]

    async def _lacks(self, topic: Topic, held: Holding) -> bool:
        """Return whether deleting the generation would lose unarchived messages of a topic.

        Args:
          held: the topic's content of the generation.
        """
        end = held.end_offset
        if not end:  # the generation only restates messages from before the log's beginning
            end = await self._reader.first_offset(topic.id, topic.next_offset)
        moved = topic.amendments.moves.between(0, end)
        bases = topic.amendments.moves.bases(moved)
        here = moved[(bases >= held.lowest_base) & (bases <= held.highest_base) & (bases < 0)]
        low = min([held.first_offset if held.end_offset else end, *here[:1].tolist()])
        archived = await self._ask(archive_record.archived, topic.id, low, end)
        if not archived.contains(here).all():
            return True
        elsewhere = moved[(bases < 0) & (bases < held.lowest_base)]
        for offsets in archive_record.lacking(archived, held.first_offset, held.end_offset):
            if not np.isin(offsets, elsewhere, assume_unique=True).all():
                return True
            await trio.lowlevel.checkpoint()
        return False

    def _note(self, oldest: Generation, topic: Topic, lacks: bool) -> None:
        if lacks and not topic.archive_awaited_since_ms:
            topic.archive_awaited_since_ms = self._clock.now_ms()
            _log.info(
                "log.waits_for_archive",
                "generation %d of the log is kept until %s is archived; "
                "run escapement pipeline archive",
                oldest.id,
                topic.name.full,
                generation=oldest.id,
                topic=topic.name.full,
            )
        elif not lacks:
            topic.archive_awaited_since_ms = 0
