"""The client for code that blocks: the same names, the same promises, no ``await``.

::

    with escapement.sync.connect("escapement://localhost") as broker:
        orders = broker.producer("shop/eu/orders")
        orders.send(b"pay me", delay=timedelta(minutes=3))
        with broker.consumer("shop/eu/orders", "billing") as inbox:
            for message in inbox:
                with message:
                    handle(message.value)

It is a face, not a second client: an event loop runs in a thread of its own, the client
runs there, and every call here hands over and waits. Everything may be used from any
number of threads. A hand-over costs some 50 µs; where that counts, use ``send_many``,
``submit`` and ``batches``. Acknowledging by ``with message`` hands over without waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from escapement.client import batch as batches
from escapement.client import broker as brokers
from escapement.client import connect as connecting
from escapement.client import groups, schedules
from escapement.client import inbox as inboxes
from escapement.client import producer as producers
from escapement.client.builder import MessageBuilder
from escapement.client.delivery import DeliveredRow, Delivery
from escapement.client.forecast import Forecast
from escapement.client.groups import FollowUp, Group
from escapement.client.life import Life
from escapement.client.link import StreamFactory
from escapement.client.naming import One, What
from escapement.client.outcome import Outcomes
from escapement.client.peeking import Upcoming
from escapement.client.reading import Page
from escapement.client.receipt import Receipt, Receipts
from escapement.client.schedule import Delay, Where
from escapement.client.schedules import Schedule
from escapement.client.selection import Selection
from escapement.client.settings import Settings
from escapement.errors import Disconnected
from escapement.message import MessageBatch, MessageId, Times

T = TypeVar("T")


@contextmanager
def connect(
    url: str = "escapement://localhost",
    *,
    name: str = "",
    stream_factory: StreamFactory | None = None,
    settings: Settings | None = None,
    backend: str = "asyncio",
) -> Iterator[Broker]:
    """Connect to a broker, and stay connected until the block ends.

    As ``escapement.connect``; ``backend`` is the event loop to run, asyncio or trio.
    """
    with start_blocking_portal(backend) as portal:
        client = connecting.connect(
            url, name=name, stream_factory=stream_factory, settings=settings
        )
        with portal.wrap_async_context_manager(client) as broker:
            loop = Loop(portal)
            try:
                yield Broker(loop, broker)
            finally:
                loop.closed = True


class Loop:
    """Where the client runs: as the portal into it, with errors of ours once it is closed."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.closed = False
        self._portal = portal

    @overload
    def call(self, act: Callable[..., Awaitable[T]], *arguments: Any) -> T: ...

    @overload
    def call(self, act: Callable[..., T], *arguments: Any) -> T: ...

    def call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """What ``act`` returns, or awaits, there. Raises ``Disconnected`` once it is closed."""
        self.check()
        return self._portal.call(act, *arguments)

    @overload
    def start_task_soon(self, act: Callable[..., Awaitable[T]]) -> Future[T]: ...

    @overload
    def start_task_soon(self, act: Callable[..., T]) -> Future[T]: ...

    def start_task_soon(self, act: Callable[..., Any]) -> Future[Any]:
        """The same without waiting for it."""
        self.check()
        return self._portal.start_task_soon(act)

    def wrap_async_context_manager(
        self, context: AbstractAsyncContextManager[T]
    ) -> AbstractContextManager[T]:
        """An asynchronous block as one that blocks."""
        return self._portal.wrap_async_context_manager(context)

    def check(self) -> None:
        """Raise ``Disconnected`` if this side has closed the connection."""
        if self.closed:
            raise Disconnected("the connection was closed by this side")


class Broker:
    """A connection to a broker, kept up. Made by ``connect``."""

    def __init__(self, portal: Loop, broker: brokers.Broker) -> None:
        self._portal = portal
        self._broker = broker

    @property
    def name(self) -> str:
        """What the broker calls itself."""
        return self._broker.name

    @property
    def limits(self) -> Mapping[str, Any]:
        """How much it takes, as it said when we first connected."""
        return self._broker.limits

    @property
    def connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._broker.connected

    def producer(self, topic: str, **options: Any) -> Producer:
        """A producer for a topic; options as in ``escapement.Broker.producer``."""
        made = self._portal.call(partial(self._broker.producer, topic, **options))
        return Producer(self._portal, made)

    @contextmanager
    def consumer(self, topic: str, subscription: str, **options: Any) -> Iterator[Inbox]:
        """An inbox on a subscription; options as in ``escapement.Broker.consumer``."""
        context = self._portal.call(partial(self._broker.consumer, topic, subscription, **options))
        with self._portal.wrap_async_context_manager(context) as inbox:
            face = Inbox(self._portal, inbox)
            try:
                yield face
            finally:
                self._portal.call(face.hand_over)

    @property
    def groups(self) -> Groups:
        """Groups of messages, and what follows when a subscription is done with one."""
        return Groups(self._portal, self._broker.groups)

    @property
    def schedules(self) -> Schedules:
        """What the broker publishes again and again."""
        return Schedules(self._portal, self._broker.schedules)

    def find(self, topic: str, dedup: str | Sequence[str]) -> list[MessageId | None]:
        """The messages that were published with dedup keys; see ``escapement.Broker.find``."""
        return self._portal.call(self._broker.find, topic, dedup)

    def cancel(self, what: What | None = None, **options: Any) -> Outcomes:
        """Cancel messages not handed out yet; see ``escapement.Broker.cancel``."""
        return self._portal.call(partial(self._broker.cancel, what, **options))

    def select(self, topic: str, **options: Any) -> Selection:
        """The pending messages that match; see ``escapement.Broker.select``."""
        return self._portal.call(partial(self._broker.select, topic, **options))

    def reschedule(self, what: What | None = None, **options: Any) -> Outcomes:
        """Give messages another time; see ``escapement.Broker.reschedule``."""
        return self._portal.call(partial(self._broker.reschedule, what, **options))

    def run_now(self, what: What | None = None, **options: Any) -> Outcomes:
        """Have messages due now; see ``escapement.Broker.run_now``."""
        return self._portal.call(partial(self._broker.run_now, what, **options))

    def read(
        self, topic: str, start: int = 0, stop: int | None = None, **options: Any
    ) -> Iterator[Page]:
        """A topic's messages by offset, page by page; see ``escapement.Broker.read``."""
        reading = self._broker.read(topic, start, stop, **options)

        async def next_page() -> Page | None:
            return await anext(reading, None)

        return iter(lambda: self._portal.call(next_page), None)

    def peek(self, topic: str, **options: Any) -> Iterator[Upcoming]:
        """What is pending, next due first; see ``escapement.Broker.peek``."""
        peeking = self._broker.peek(topic, **options)

        async def next_one() -> Upcoming | None:
            return await anext(peeking, None)

        return iter(lambda: self._portal.call(next_one), None)

    def show(self, message: One, topic: str | None = None) -> Life:
        """One message's life; see ``escapement.Broker.show``."""
        return self._portal.call(partial(self._broker.show, message, topic))

    def forecast(self, topic: str, **options: Any) -> Forecast:
        """How many messages fall due when; see ``escapement.Broker.forecast``."""
        return self._portal.call(partial(self._broker.forecast, topic, **options))

    def pause(self, topic: str, subscription: str | None = None, **options: Any) -> None:
        """Have nothing more handed out; see ``escapement.Broker.pause``."""
        self._portal.call(partial(self._broker.pause, topic, subscription, **options))

    def resume(self, topic: str, subscription: str | None = None) -> None:
        """Hand out again what is due; see ``escapement.Broker.resume``."""
        self._portal.call(self._broker.resume, topic, subscription)

    def admin(self, verb: str, **arguments: Any) -> Any:
        """Ask the broker by name, with plain arguments; returns its plain answer."""
        return self._portal.call(partial(self._broker.admin, verb, **arguments))


class Schedules:
    """Made by ``Broker.schedules``; see ``escapement.client.schedules.Schedules``."""

    def __init__(self, portal: Loop, found: schedules.Schedules) -> None:
        self._portal = portal
        self._schedules = found

    def create(self, name: str, topic: str, value: Any = b"", **options: Any) -> Schedule:
        """Publish ``value`` on ``topic`` again and again."""
        return self._portal.call(partial(self._schedules.create, name, topic, value, **options))

    def list(self, namespace: str | None = None) -> list[Schedule]:
        """All schedules by name, or those of one namespace."""
        return self._portal.call(self._schedules.list, namespace)

    def get(self, name: str) -> Schedule:
        """One schedule, with its next ten times."""
        return self._portal.call(self._schedules.get, name)

    def pause(self, name: str) -> Schedule:
        """Publish nothing until it is resumed."""
        return self._portal.call(self._schedules.pause, name)

    def resume(self, name: str) -> Schedule:
        """Go on with the first occurrence from now on."""
        return self._portal.call(self._schedules.resume, name)

    def delete(self, name: str) -> None:
        """Forget it; what it has published stays."""
        self._portal.call(self._schedules.delete, name)


class Groups:
    """Made by ``Broker.groups``; see ``escapement.client.groups.Groups``."""

    def __init__(self, portal: Loop, found: groups.Groups) -> None:
        self._portal = portal
        self._groups = found

    def close(self, topic: str, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group: ``then`` is published once the subscription is done with all of it."""
        return self._portal.call(self._groups.close, topic, group, subscription, then)

    def list(self, topic: str) -> list[Group]:
        """The groups of a topic, by name."""
        return self._portal.call(self._groups.list, topic)

    def get(self, topic: str, group: str) -> Group:
        """One group."""
        return self._portal.call(self._groups.get, topic, group)

    def delete(self, topic: str, group: str) -> None:
        """Forget a group: what has not fired never will."""
        self._portal.call(self._groups.delete, topic, group)


class Producer:
    """Made by ``Broker.producer``; for any number of threads at once."""

    def __init__(self, portal: Loop, producer: producers.Producer) -> None:
        self._portal = portal
        self._producer = producer
        self.topic = producer.topic
        self.name = producer.name

    @property
    def next_sequence(self) -> int:
        """The number of the next message."""
        return self._producer.next_sequence

    def send(self, value: Any, **options: Any) -> Receipt:
        """Send one message and wait until it is durable; see ``escapement.Producer.send``."""
        return self._portal.call(partial(self._producer.send, value, **options))

    def submit(self, value: Any, **options: Any) -> Future[Receipt]:
        """Send one message; the future's ``result()`` is its receipt."""
        return self._portal.start_task_soon(partial(self._producer.send, value, **options))

    def send_many(self, values: Sequence[Any], **options: Any) -> Receipts:
        """Send messages as one batch; see ``escapement.Producer.send_many``."""
        return self._portal.call(partial(self._producer.send_many, values, **options))

    def send_batch(
        self,
        batch: MessageBatch,
        times: Times | None = None,
        *,
        dedup: Sequence[str | None] | None = None,
        sequence: int | None = None,
    ) -> Receipts:
        """Send columns as they are; see ``escapement.Producer.send_batch``."""
        return self._portal.call(
            partial(self._producer.send_batch, batch, times, dedup=dedup, sequence=sequence)
        )

    def message(self, value: Any) -> MessageBuilder[Receipt]:
        """A message to be described step by step, then sent."""
        return MessageBuilder(self.send, value)

    def close_group(self, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group of the topic, behind what was sent so far; see ``Groups.close``."""
        return self._portal.call(self._producer.close_group, group, subscription, then)

    def flush(self) -> None:
        """Wait until everything sent so far is settled, one way or the other."""
        self._portal.call(self._producer.flush)

    def close(self) -> None:
        """Wait for what is in flight, then give the producer back."""
        self._portal.call(self._producer.aclose)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._producer.__aexit__, kind, error, trace)


class Inbox:
    """Made by ``Broker.consumer``; threads that iterate share what comes."""

    def __init__(self, portal: Loop, inbox: inboxes.Inbox) -> None:
        self.topic = inbox.topic
        self.subscription = inbox.subscription
        self._portal = portal
        self._inbox = inbox
        self._lock = Lock()  # over the batch that is being iterated
        self._current: Batch | None = None
        self._row = 0
        # What was acknowledged and is not yet told to the loop; one visit takes it all.
        self._done: deque[int] = deque()
        self._visit_planned = False

    @property
    def active(self) -> bool:
        """Of a failover subscription: whether this consumer is the one that receives."""
        return self._inbox.active

    def __iter__(self) -> Iterator[Message]:
        """The messages; waits for them, until the inbox is closed."""
        while (message := self.receive()) is not None:
            yield message

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None if none comes within ``timeout_s`` or ever."""
        with self._lock:
            if self._spent():
                self._current, self._row = self._fetch(timeout_s), 0
            if self._current is None:
                return None
            self._row += 1
            return Message(self._current, self._row - 1)

    def batches(self) -> Iterator[Batch]:
        """The messages in columns, as they were delivered; waits for them."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """What is left of the batch begun, or the next; None if none comes in time or ever."""
        with self._lock:
            batch = None
            if self._current is not None and not self._spent():
                batch = self._current.rest(self._row)
            self._current = None
            return batch or self._fetch(timeout_s)

    def ack(self, what: What, *, durable: bool = False) -> int | None:
        """Be done with messages; see ``escapement.Inbox.ack``."""
        return self._call(partial(self._inbox.ack, what, durable=durable))

    def ack_range(self, first: int, last: int, *, durable: bool = False) -> int | None:
        """Be done with the messages from offset ``first`` to ``last``, both included."""
        return self._call(partial(self._inbox.ack_range, first, last, durable=durable))

    def nack(self, what: What, delay: Delay | None = None) -> None:
        """Give messages back, to be delivered again after ``delay`` or the usual back-off."""
        self._call(partial(self._inbox.nack, what, delay))

    def release(self, what: What, delay: Delay | None = None) -> None:
        """Hand messages back untried; see ``escapement.Inbox.release``."""
        self._call(partial(self._inbox.release, what, delay))

    def extend(self, what: What, wait: Delay) -> int:
        """Need longer for messages; see ``escapement.Inbox.extend``."""
        return self._call(partial(self._inbox.extend, what, wait))

    def seek(self, position: Where) -> None:
        """Have the subscription begin again elsewhere; see ``escapement.Inbox.seek``."""
        self._call(partial(self._inbox.seek, position))

    def flush_acks(self) -> None:
        """Wait until every acknowledgement so far is durable."""
        self._call(self._inbox.flush_acks)

    def done(self, offset: int) -> None:
        """Acknowledge one message, some time soon; never waits."""
        self._done.append(offset)
        if not self._visit_planned:
            self._visit_planned = True
            self._portal.start_task_soon(self.hand_over)

    def hand_over(self) -> None:
        """Tell the inbox what was acknowledged. Runs in the loop's thread."""
        self._visit_planned = False  # before taking, so that nothing is left lying
        while self._done:
            self._inbox.done(self._done.popleft())

    def _spent(self) -> bool:
        """Whether nothing of the batch begun is to be given out any more."""
        current = self._current
        return (
            current is None
            or self._row == len(current)
            or current.rewinds != self._inbox.rewinds  # it was taken back: a seek
        )

    def _fetch(self, timeout_s: float | None) -> Batch | None:
        async def fetch() -> Batch | None:
            await self._inbox.have_room()
            found = await self._inbox.next_batch(timeout_s)
            return None if found is None else Batch(self, found)

        return self._call(fetch)

    def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        async def called() -> T:
            self.hand_over()
            return await act()

        return self._portal.call(called)


class Batch(Delivery):
    """Messages as they were delivered, in columns of equal height; see ``Delivery``."""

    __slots__ = ("_batch", "_inbox", "rewinds")

    def __init__(self, inbox: Inbox, batch: batches.Batch) -> None:
        super().__init__(
            batch._origin,
            batch.offsets,
            batch.due_ms,
            batch._attempts,
            batch._redelivered,
            batch.messages,
        )
        self._batch = batch
        self._inbox = inbox
        self.rewinds = inbox._inbox.rewinds  # how often what was delivered had been taken back

    def __getitem__(self, row: int) -> Message:
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return Message(self, row % len(self))

    def __iter__(self) -> Iterator[Message]:
        return (Message(self, row) for row in range(len(self)))

    def ack(self, *, durable: bool = False) -> int | None:
        """Acknowledge them all; see ``Inbox.ack``."""
        return self._inbox.ack(self.offsets, durable=durable)

    def nack(self, delay: Delay | None = None) -> None:
        """Give them all back; see ``Inbox.nack``."""
        self._inbox.nack(self.offsets, delay)

    def release(self, delay: Delay | None = None) -> None:
        """Hand them all back untried; see ``Inbox.release``."""
        self._inbox.release(self.offsets, delay)

    def extend(self, wait: Delay) -> int:
        """Need longer for them all; see ``Inbox.extend``."""
        return self._inbox.extend(self.offsets, wait)

    def rest(self, row: int) -> Batch:
        """The messages from ``row`` on."""
        return Batch(self._inbox, self._batch.rest(row))


class Message(DeliveredRow):
    """One message, delivered.

    ``with message:`` acknowledges it when the block ends well; when it ends with an
    exception, the message is given back (``nack``) and the exception goes on its way.
    """

    __slots__ = ("_inbox",)

    def __init__(self, batch: Batch, row: int) -> None:
        super().__init__(batch, row)
        self._inbox = batch._inbox

    def ack(self, *, durable: bool = False) -> None:
        """Be done with it. With ``durable``, return when it will never come again."""
        if durable:
            self._inbox.ack(self.offset, durable=True)
        else:
            self._inbox.done(self.offset)

    def nack(self, delay: Delay | None = None) -> None:
        """Give it back, to be delivered again after ``delay`` or the usual back-off."""
        self._inbox.nack(self.offset, delay)

    def release(self, delay: Delay | None = None) -> None:
        """Hand it back untried: this delivery does not count."""
        self._inbox.release(self.offset, delay)

    def extend(self, wait: Delay) -> bool:
        """Need up to ``wait`` from now; False if it was taken back."""
        return bool(self._inbox.extend(self.offset, wait))

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()
