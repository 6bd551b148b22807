"""Tracing of the blocking client, with a broker in another process (O5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind

import escapement.sync
from escapement import Tracing
from support.processes.broker import PATIENT, broker_process
from support.spans import Spans, ids_of, links_of, of


def test_blocking_client_traces_in_the_context_of_the_calling_thread(tmp_path: Path) -> None:
    """O5: sends, batches, receives, processing and acknowledgements."""
    spans = Spans()
    with (
        broker_process(tmp_path / "data") as process,
        escapement.sync.connect(
            process.url, tracing=Tracing(spans.provider), settings=PATIENT
        ) as broker,
        broker.producer("t") as producer,
    ):
        with spans.tracer.start_as_current_span("the request") as request:
            receipt = producer.send(b"one", properties={"n": 1})
            producer.send_many([b"two", b"three"])
            future = producer.submit(b"four")
            future.result()
        with broker.consumer("t", "s", position="earliest") as inbox:
            with pytest.raises(KeyError), next(iter(inbox)):
                raise KeyError("the handler")
            with next(iter(inbox)):
                within = trace.get_current_span().get_span_context()
            with spans.tracer.start_as_current_span("the worker") as worker:
                inbox.ack([2, 3], durable=True)
        single, batch, submitted = spans.take("send")
        for span in (single, batch, submitted):
            assert span.parent == request.get_span_context()
            assert of(span)["server.address"] == "127.0.0.1"
            assert of(span)["server.port"] == process.port
        assert of(single)["messaging.message.id"] == str(receipt.id)
        assert of(batch)["messaging.batch.message_count"] == 2
        failed, done = spans.take("process")
        assert links_of(failed) == [ids_of(single)]
        assert links_of(done) == [ids_of(batch)]
        assert (failed.kind, of(failed)["error.type"]) == (SpanKind.CONSUMER, "KeyError")
        assert done.get_span_context() == within
        received = [to for span in spans.take("receive") for to in links_of(span)]
        assert set(received) == {ids_of(single), ids_of(batch), ids_of(submitted)}
        (ack,) = spans.take("ack")
        assert (ack.parent, of(ack)["messaging.batch.message_count"]) == (
            worker.get_span_context(),
            2,
        )
