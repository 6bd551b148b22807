"""The messages that a bulk change applies to, found a page at a time.

The search is that of :mod:`~escapement.broker.inspection.selecting`. For a redrive, it is one of
the pending dead letters of a subscription. It may find a message more than once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Final, NamedTuple

import numpy as np
import trio

from escapement.broker.inbox.dead_letter_topic import Whose
from escapement.broker.inbox.dead_letters import DeadLetters
from escapement.broker.inspection.search import Sought
from escapement.broker.inspection.selecting import select
from escapement.broker.log.backfill import Backfill
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.start_position import NEVER_MS
from escapement.clock import Clock
from escapement.errors import InvalidRequest, LimitExceeded
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.properties import AS_IS, pack_again, read_properties
from escapement.storage.blocking import Run
from escapement.storage.bulk_change import PART_OFFSETS, Filter
from escapement.storage.index import DelayedIndex, Key
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offset_chunk import CHUNK_BITS, offsets_of

# How long a preview looks, besides its last page. A page takes up to a quarter of a second.
_PREVIEW_S: Final = 2.0
# The most bytes of the key and the properties of a filter.
_FILTER_BYTES: Final = 16 * 1024


class Target(NamedTuple):
    """The messages to look at: those of a topic, or the dead letters of a subscription."""

    topic: TopicName  # the topic that has the messages
    whose: Whose | None  # the subscription, for dead letters

    def __str__(self) -> str:
        return self.topic.full if self.whose is None else str(self.whose)


class Preview(NamedTuple):
    """The number of messages that match; of those looked at, if the preview is not complete."""

    messages: int
    complete: bool


def sought_of(filter: Filter) -> Sought:
    """Return the conditions of a filter, in the form that searches take."""
    return Sought(
        Key(filter.from_ms, 0),
        Key(NEVER_MS if filter.until_ms is None else filter.until_ms, 0),
        None if filter.key is None else frozenset((filter.key,)),
        read_properties(filter.properties, AS_IS),
    )


def filter_of(sought: Sought) -> Filter:
    """Return the conditions of a search, in the form that the database keeps.

    Raises:
      InvalidRequest: if they are too large, or a property is a number of more than 64 bits.
    """
    until_ms = None if sought.stop.due_ms == NEVER_MS else sought.stop.due_ms
    key = None if sought.keys is None else min(sought.keys)
    try:
        properties = pack_again(dict(sought.properties)) if sought.properties else b""
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(f"The properties to search for are not valid: {error}") from None
    if len(key or b"") + len(properties) > _FILTER_BYTES:
        raise InvalidRequest(f"Key and properties of a filter may have {_FILTER_BYTES} bytes.")
    return Filter(sought.start.due_ms, until_ms, key, properties)


class Selector:
    """Finds messages for bulk changes.

    Args:
      run: makes the blocking calls of searches.
      backfill: while it runs, selections wait, because the index may lack messages.
    """

    def __init__(
        self,
        registry: Registry,
        index: DelayedIndex,
        dead_letters: DeadLetters,
        run: Run,
        clock: Clock,
        backfill: Backfill,
    ) -> None:
        self._registry = registry
        self._index = index
        self._dead_letters = dead_letters
        self._run = run
        self._clock = clock
        self._backfill = backfill

    def pages(self, target: Target, filter: Filter) -> AsyncGenerator[Int64s, None]:
        """Return the offsets of the pending messages that match, in pages read on demand.

        A page may be empty. It is read when the caller asks for it, so a caller may rest between
        two pages.

        Raises:
          NotFound: the topic or the subscription does not exist.
        """
        sought = sought_of(filter)
        if target.whose is None:
            return self._of_topic(target.topic, sought)
        return self._of_dead_letters(target.whose, sought)

    async def preview(
        self,
        target: Target,
        filter: Filter,
        most: int,
        turn: AbstractAsyncContextManager[object],
    ) -> Preview:
        """Count the messages that match now, up to about ``most``.

        Args:
          turn: entered for each page, so that several searches take turns.
        """
        await self._backfill.whole_index()
        found, until_s = OffsetSet(), trio.current_time() + _PREVIEW_S
        async with aclosing(self.pages(target, filter)) as pages:
            while len(found) <= most and trio.current_time() < until_s:
                async with turn:
                    page = await anext(pages, None)
                if page is None:
                    return Preview(len(found), True)
                found.add(page)
        return Preview(len(found), False)

    async def _of_topic(self, name: TopicName, sought: Sought) -> AsyncGenerator[Int64s, None]:
        after: Key | None = sought.start
        while after is not None:
            await self._backfill.ended()
            topic = self._registry.topic(name)
            now_ms = self._clock.now_ms()
            found = await select(topic, self._index, self._run, now_ms, sought, after)
            del topic  # a task that refers to a topic keeps it in memory
            after = found.next
            yield found.offsets

    async def _of_dead_letters(self, whose: Whose, sought: Sought) -> AsyncGenerator[Int64s, None]:
        await self._backfill.ended()
        async with aclosing(await self._dead_letters.pages(whose)) as pages:
            async for page in pages:
                here = (page.due_ms >= sought.start.due_ms) & (page.due_ms < sought.stop.due_ms)
                if sought.by_content:
                    rows = await self._run(sought.matching, page.batch)
                    here &= np.isin(np.arange(len(here)), rows)
                yield page.offsets[here]


class Selection:
    """The selection of one bulk change, in memory until it is complete.

    Args:
      bound: only messages below this offset belong to it.
      most: the most messages that it may have.
    """

    def __init__(self, pages: AsyncGenerator[Int64s, None], bound: int, most: int) -> None:
        self._pages = pages
        self._bound = bound
        self._most = most
        self._found = OffsetSet()

    def __len__(self) -> int:
        return len(self._found)

    async def read(self) -> bool:
        """Read the next page. Return whether there was one.

        Raises:
          LimitExceeded: if the selection has too many messages.
        """
        page = await anext(self._pages, None)
        if page is None:
            return False
        self._found.add(page[page < self._bound])
        if len(self._found) > self._most:
            raise LimitExceeded(
                f"More than {self._most:,} messages match. Narrow the filter, for example with a "
                "time range, and start several bulk changes."
            )
        return True

    def parts(self) -> Iterator[Int64s]:
        """Yield the offsets in parts for the database; within each part they ascend."""
        none = OffsetSet()
        for first, remainders in self._found.left(none, none, none):
            offsets = offsets_of(first >> CHUNK_BITS, remainders)
            for low in range(0, len(offsets), PART_OFFSETS):
                yield offsets[low : low + PART_OFFSETS]

    async def close(self) -> None:
        """End the search."""
        await self._pages.aclose()
