"""OpenTelemetry with message tables: a row has no properties, so it carries no context (O5)."""

from __future__ import annotations

from trio.testing import MockClock

from escapement import Tracing
from support.spans import Spans, links_of, of
from support.tables.shops import Shop, serving_tables


async def test_row_of_a_message_table_is_processed_in_a_span(
    shop: Shop, mock_clock: MockClock
) -> None:
    """O5: without a link."""
    spans = Spans()
    topic = shop.create()
    async with (
        serving_tables(shop) as world,
        world.connect(tracing=Tracing(spans.provider)) as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        id = shop.insert(message='{"n": 1}')
        await world.clock.advance(seconds=31)
        async with await anext(consumer) as message:
            assert message.row["id"] == id
        await consumer.flush_acks()
        assert shop.row(id, "time_acked IS NOT NULL") == (1,)
    span = spans.one("process")
    assert of(span)["messaging.destination.name"] == topic
    assert links_of(span) == links_of(spans.one("receive")) == []
