"""The class ``Tracer``, which makes the spans of a client. It needs the package opentelemetry-api.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging. A span belongs
to the trace of the code that calls the client. It never continues the trace of a message's
producer: a span of a consumer *links* to the contexts that are in the properties of its messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from escapement.client.connection.address import Address
from escapement.client.delivery import DeliveredRow, Delivery
from escapement.client.tracing.trace_context import carriers
from escapement.errors import EscapementError

T = TypeVar("T")
_W3C: Final = TraceContextTextMapPropagator()


def provider_in_use(given: trace.TracerProvider | None) -> trace.TracerProvider | None:
    """Return the provider that the client uses, or None if it does not trace.

    Args:
      given: the provider that the application chose; None selects that of the process.
    """
    provider = trace.get_tracer_provider() if given is None else given
    # The provider of a process is a proxy until the application sets one.
    off = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    return None if off else provider


class Consuming(Protocol):
    """The consumer to which a span belongs."""

    @property
    def topic(self) -> str: ...

    @property
    def subscription(self) -> str: ...


class Operation:
    """The span of one operation, which ends with ``end``, or with its ``with`` block."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._token: Any = None  # set while the span is the current one

    @property
    def carrier(self) -> dict[str, str]:
        """The context of the span, as properties of the messages that it sends."""
        found: dict[str, str] = {}
        _W3C.inject(found, trace.set_span_in_context(self._span, Context()))
        return found

    @property
    def link(self) -> Link:
        """A link to this span."""
        return Link(self._span.get_span_context())

    def enter(self) -> None:
        """Make the span the current one, until it ends. The same task must end it."""
        self._token = contexts.attach(trace.set_span_in_context(self._span))

    def end(self, error: BaseException | None = None, message_id: object = None) -> None:
        """End the span.

        Args:
          error: the reason if the operation has failed.
          message_id: the id of the message, if the operation has a single message.
        """
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None
        if message_id is not None:
            self._span.set_attribute("messaging.message.id", str(message_id))
        if error is not None:
            self._span.set_attribute("error.type", _type_of(error))
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()

    @contextmanager
    def ending(self, error: BaseException | None) -> Iterator[None]:
        """End the span after the ``with`` block, with ``error`` or else with that of the block."""
        try:
            yield
        except BaseException as own:
            error = error or own
            raise
        finally:
            self.end(error)

    def __enter__(self) -> Operation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(error)


class Tracer:
    """Makes the spans of one client; see ``Tracing`` for ``each_message``."""

    def __init__(
        self,
        provider: trace.TracerProvider,
        server: Address | None,
        client: str,
        each_message: bool,
    ) -> None:
        self.each_message: Final = each_message
        self._tracer = provider.get_tracer("escapement", version("escapement"))
        self._attributes: dict[str, Any] = {"messaging.system": "escapement"}
        if server is not None:
            self._attributes |= {"server.address": server.host, "server.port": server.port}
        if client:
            self._attributes["messaging.client.id"] = client

    # -- of a producer -----------------------------------------------------------------

    def create(self, topic: str) -> Operation:
        """Begin the span of one message of a batch that is about to be sent."""
        return self._begin("create", "create", SpanKind.PRODUCER, topic)

    def send(
        self,
        topic: str,
        count: int | None = None,
        given: Iterable[Mapping[str, Any]] = (),
        created: Iterable[Operation] = (),
    ) -> Operation:
        """Begin the span of messages that are sent.

        Args:
          count: the number of messages of a batch; None for a single message.
          given: properties of messages that have a context already.
          created: the spans of the single messages, if these have spans.
        """
        to_created = [operation.link for operation in created]
        to_given = _links(given)
        # A producer span is one whose context the messages have.
        other = to_created or (to_given and count is None)
        kind = SpanKind.CLIENT if other else SpanKind.PRODUCER
        return self._begin("send", "send", kind, topic, _batch(count), to_created + to_given)

    # -- of a consumer -----------------------------------------------------------------

    def receive_failed(self, consumer: Consuming, begun_ns: int, error: BaseException) -> None:
        """Make the span of a wait for messages that has failed; see ``received``."""
        self._receive(consumer, begun_ns, [], {}).end(error)

    def received(
        self, consumer: Consuming, begun_ns: int, found: Delivery[Any] | DeliveredRow
    ) -> None:
        """Make the span of received messages, a batch or a single one.

        Args:
          begun_ns: when the wait for messages began, in Unix nanoseconds.
        """
        if isinstance(found, DeliveredRow):
            carrier, extra = [found.properties], _one(found)
        else:
            carrier, extra = carriers(found.messages.properties), _batch(len(found))
        self._receive(consumer, begun_ns, carrier, extra).end()

    def process(self, message: DeliveredRow) -> Operation:
        """Begin the span of the processing of a message, and make it the current span."""
        extra = _one(message) | {
            "messaging.destination.subscription.name": message._columns._source.subscription,
            "messaging.escapement.attempt": message.attempt,
        }
        operation = self._begin(
            "process",
            "process",
            SpanKind.CONSUMER,
            message._columns.topic,
            extra,
            _links([message.properties]),
        )
        operation.enter()
        return operation

    def settle(self, name: str, consumer: Consuming, count: int) -> Operation:
        """Begin the span of an acknowledgement, a nack or a release of ``count`` messages.

        Args:
          name: "ack", "nack", "reject" or "release".
        """
        extra = _batch(None if count == 1 else count) | _of(consumer)
        return self._begin(name, "settle", SpanKind.CLIENT, consumer.topic, extra)

    def carried(self, act: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """Return ``act`` with the current context, for an event loop in another thread."""
        here = contexts.get_current()

        async def run() -> T:
            token = contexts.attach(here)
            try:
                return await act()
            finally:
                contexts.detach(token)

        return run

    def _receive(
        self,
        consumer: Consuming,
        begun_ns: int,
        found: Iterable[Mapping[str, Any]],
        extra: dict[str, Any],
    ) -> Operation:
        return self._begin(
            "receive",
            "receive",
            SpanKind.CLIENT,
            consumer.topic,
            extra | _of(consumer),
            _links(found),
            begun_ns,
        )

    def _begin(
        self,
        name: str,
        type: str,
        kind: SpanKind,
        topic: str,
        extra: dict[str, Any] | None = None,
        links: list[Link] | None = None,
        begun_ns: int | None = None,
    ) -> Operation:
        attributes = self._attributes | {
            "messaging.destination.name": topic,
            "messaging.operation.name": name,
            "messaging.operation.type": type,
        }
        span = self._tracer.start_span(
            f"{name} {topic}",
            kind=kind,
            attributes=attributes | (extra or {}),
            links=links,
            start_time=begun_ns,
        )
        return Operation(span)


def _links(found: Iterable[Mapping[str, Any]]) -> list[Link]:
    """Return links to the contexts in properties. Contexts that are not valid are left out."""
    links = []
    for carrier in found:
        texts = {name: value for name, value in carrier.items() if isinstance(value, str)}
        to = trace.get_current_span(_W3C.extract(texts, Context())).get_span_context()
        if to.is_valid:
            links.append(Link(to))
    return links


def _of(consumer: Consuming) -> dict[str, Any]:
    return {"messaging.destination.subscription.name": consumer.subscription}


def _batch(count: int | None) -> dict[str, Any]:
    return {} if count is None else {"messaging.batch.message_count": count}


def _one(message: DeliveredRow) -> dict[str, Any]:
    return {"messaging.message.id": str(message.id)}


def _type_of(error: BaseException) -> str:
    """Return the value of ``error.type``: the code of our errors, or the class of others."""
    if isinstance(error, EscapementError):
        return error.code
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else (f"{kind.__module__}.{kind.__qualname__}")
    )
