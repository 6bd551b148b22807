"""Carries letters from the inbox into the logs of their targets.

One task. It looks into the inbox at a modest interval, for what others wrote, and at once
when this broker has written letters itself. The letters of one mailbox become one append,
which goes the road of every publish, and whose transaction takes the letters out of the
inbox: each is moved exactly once, in the order of its mailbox. One step of a mailbox is
under way at a time, and all steps of a round together are bounded in bytes.

What cannot be moved is never lost and holds up nobody else:

- A mailbox is *blocked* while its topic does not exist and may not be created, or while
  its namespace refuses the times that a letter has. It keeps its order, so the letters
  behind wait too. ``blocked`` says why; every round tries again. So it is with whatever
  else refuses its letters, but that it waits longer each time, up to a minute.
- A letter that can never be moved (it does not decode, its time lies too far ahead) is
  *held*, with the reason; those behind it go on.
- When a topic is deleted its letters go with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import trio

from escapement.broker.letters.carriage import Step, Submitted
from escapement.broker.letters.patience import Patience
from escapement.broker.limits import BrokerLimits
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import (
    Busy,
    DelaysDisabled,
    EscapementError,
    InvalidRequest,
    LetterDamaged,
    NotFound,
    ShuttingDown,
    StorageError,
    StorageUnavailable,
)
from escapement.message import MessageBatch, Times
from escapement.names import TopicName
from escapement.storage import inbox
from escapement.storage.blocking import Run
from escapement.storage.commit import CommitPipeline
from escapement.storage.engine.base import Connection, Engine, TransactionAborted
from escapement.storage.inbox import Mailbox, Stored, Waiting
from escapement.storage.letter import Letter, decode_letter

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# Mailboxes of one round: their letters share group commits.
_ROUND_MAILBOXES: Final = 256
# Reasons that are remembered; there may be any number of mailboxes.
_MAX_BLOCKED: Final = 100


class _Opened(NamedTuple):
    """One letter and what is in it, or why that cannot be known."""

    id: int
    content: tuple[MessageBatch, Times] | LetterDamaged


class Postman:
    """See the module's docstring."""

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        pipeline: CommitPipeline,
        publishing: Publishing,
        clock: Clock,
        run: Run,
        limits: BrokerLimits,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._pipeline = pipeline
        self._publishing = publishing
        self._clock = clock
        self._run = run
        self._limits = limits
        self._stopping = False
        self._wake = trio.Event()
        self._moving = trio.Lock()  # held from reading letters to their commit
        self._connection: Connection | None = None
        self.moved = 0  # letters, since the broker started
        self.blocked: dict[str, str] = {}  # target -> why its mailbox waits
        self._patience = Patience()  # of mailboxes by target

    # -- for others ------------------------------------------------------------

    async def post(self, letters: Sequence[Letter]) -> None:
        """Put letters into the inbox; returns when they are durable.

        Raises:
          StorageUnavailable: nothing was written.
        """
        now_ms = self._clock.now_ms()
        await self._pipeline.transact(
            lambda connection: inbox.insert(self._engine, connection, letters, now_ms)
        )
        self.wake()

    def wake(self) -> None:
        """There are letters: do not wait for the interval."""
        self._wake.set()

    async def waiting(self, limit: int) -> list[Waiting]:
        """What waits in the inbox, by target."""
        return await self._pipeline.transact(lambda connection: inbox.waiting(connection, limit))

    async def discard(self, target: str) -> int:
        """Delete all letters that wait for a target; how many there were."""
        async with self._moving:
            count = await self._pipeline.transact(
                lambda connection: inbox.close(connection, target)
            )
        self.blocked.pop(target, None)
        return count

    def stop(self) -> None:
        """Begin nothing new; what is left waits for the next start."""
        self._stopping = True

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the task --------------------------------------------------------------

    async def run(self) -> None:
        """Carry letters for ever."""
        failing = False
        while True:
            self._wake = trio.Event()  # before looking: what comes later wakes us
            try:
                while await self._round():
                    pass
            except (StorageUnavailable, TransactionAborted, Busy, ShuttingDown) as error:
                # Said once: an outage may be long.
                _logger.log(
                    logging.DEBUG if failing else logging.WARNING, "letters wait: %s", error
                )
                failing = True
            else:
                failing = False
            with trio.move_on_after(self._limits.inbox_poll_s):
                await self._wake.wait()

    async def _round(self) -> bool:
        """One step of every mailbox; whether there may be more to do."""
        blocked: dict[str, str] = {}
        progress = False
        after_id = 0
        seen: set[str] = set()
        while page := await self._read(inbox.occupied, after_id, _ROUND_MAILBOXES):
            after_id = page[-1].id
            seen.update(box.target for box in page)
            # The topic first, then its letters: if it is deleted and made again between the
            # two, its mailbox is another one, and the letters of the old one are not read.
            topics = {box.id: await self._topic(box, blocked) for box in page}
            left = [(id, topic) for id, topic in topics.items() if topic is not None]
            while left and not self._stopping:
                async with self._moving:
                    steps = await self._read(
                        _open,
                        [id for id, _ in left],
                        self._limits.inbox_step_bytes,
                        self._limits.inbox_round_bytes,
                    )
                    found = [(topic, step) for (_, topic), step in zip(left, steps, strict=False)]
                    progress = await self._move(found, blocked) or progress
                left = left[len(steps) :]
        self.blocked = blocked
        self._patience.keep(seen)
        return progress and not self._stopping

    async def _topic(self, mailbox: Mailbox, blocked: dict[str, str]) -> Topic | None:
        """The topic of a mailbox, created if need be; None if it takes nothing now."""
        if trio.current_time() < self._patience.until_s(mailbox.target):
            _block(blocked, mailbox.target, self._patience.reasons[mailbox.target])
            return None
        try:
            return await self._registry.ensure_topic(TopicName.parse(mailbox.target))
        except (StorageError, Busy, ShuttingDown):
            raise
        except NotFound as error:
            _block(blocked, mailbox.target, str(error))
        except EscapementError as error:
            self._refused(mailbox.target, error, blocked)
        return None

    def _refused(self, target: str, error: EscapementError, blocked: dict[str, str]) -> None:
        """Something that nobody here knows refuses a mailbox's letters: they are kept."""
        if self._patience.refused(target, str(error), trio.current_time()):
            _logger.warning("letters for %s wait: %s", target, error)
        _block(blocked, target, str(error))

    async def _move(
        self, found: Sequence[tuple[Topic, list[_Opened]]], blocked: dict[str, str]
    ) -> bool:
        """Append letters to their topics' logs, and wait until they are durable there."""
        held: list[tuple[int, EscapementError]] = []
        steps = [self._admit(topic, letters, held, blocked) for topic, letters in found]
        for id, error in held:
            _logger.error("letter %d of the inbox is held: %s", id, error)
            await self._pipeline.transact(
                lambda connection, id=id, why=str(error): inbox.hold(connection, id, why)  # type: ignore[misc]
            )
        await self._publishing.room()
        submitted = Submitted()
        for step in steps:
            # It may have been deleted, or be about to be, since its letters were read.
            there = self._registry.active.get(step.topic.id) is step.topic
            if step.ids and there and not step.topic.deleting:
                append = submitted.append(step)
                try:
                    self._pipeline.submit(append)
                except EscapementError as error:
                    append.fail(error)
        await submitted.settled()
        for topic, refusal in submitted.refused:
            self._refused(topic.name.full, refusal, blocked)
        for topic in submitted.moved_to:
            self._patience.over(topic.name.full)
        self.moved += submitted.moved
        return bool(submitted.moved or held)

    def _admit(
        self,
        topic: Topic,
        letters: list[_Opened],
        held: list[tuple[int, EscapementError]],
        blocked: dict[str, str],
    ) -> Step:
        """What of these letters the topic takes; the others are held, or wait."""
        step = Step(topic)
        for letter in letters:
            if isinstance(letter.content, LetterDamaged):
                held.append((letter.id, letter.content))
                continue
            batch, times = letter.content
            if batch.groups is not None:
                held.append((letter.id, InvalidRequest("a letter cannot belong to a group")))
                continue
            try:
                self._publishing.check_times(topic, times)
            except DelaysDisabled as error:
                _block(blocked, topic.name.full, str(error))
                break
            except InvalidRequest as error:
                held.append((letter.id, error))
                continue
            except EscapementError as error:
                self._refused(topic.name.full, error, blocked)
                break
            step.ids.append(letter.id)
            step.batches.append(batch)
            step.times.append(times)
        return step

    async def _read(self, read: Callable[..., T], *arguments: object) -> T:
        return await self._run(self._read_now, read, *arguments)

    def _read_now(self, read: Callable[..., T], *arguments: object) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            return read(self._connection, *arguments)
        except BaseException:
            self.close()
            raise


def _open(
    connection: Connection, mailbox_ids: list[int], step_bytes: int, max_bytes: int
) -> list[list[_Opened]]:
    """A step of each of the first mailboxes, opened; for a thread."""
    steps = inbox.read_steps(connection, mailbox_ids, step_bytes, max_bytes)
    return [[_opened(letter) for letter in step] for step in steps]


def _opened(letter: Stored) -> _Opened:
    try:
        return _Opened(letter.id, decode_letter(letter.data))
    except LetterDamaged as error:
        return _Opened(letter.id, error)


def _block(blocked: dict[str, str], target: str, why: str) -> None:
    if len(blocked) < _MAX_BLOCKED:
        blocked[target] = why
