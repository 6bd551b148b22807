"""The spans of a client under test, kept in memory by the exporter of OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes

# All names of attributes of the semantic conventions that spans of messages may have.
CONVENTIONS: Final = {
    value
    for module in (messaging_attributes, error_attributes, server_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}


def of(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


class Spans:
    """The finished spans of a client, which tests read and clear."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the application")

    def take(self, operation: str) -> list[ReadableSpan]:
        """Return the spans of an operation such as "send", in the order of their ends."""
        found = [
            span
            for span in self._exporter.get_finished_spans()
            if of(span).get("messaging.operation.name") == operation
        ]
        for span in found:
            assert span.name == f"{operation} {of(span)['messaging.destination.name']!s}"
            assert set(of(span)) - {"messaging.escapement.attempt"} <= CONVENTIONS
        return found

    def one(self, operation: str) -> ReadableSpan:
        (span,) = self.take(operation)
        return span


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]
