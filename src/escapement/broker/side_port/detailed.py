"""The metrics of each topic and subscription of one namespace, in a bounded number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import trio
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from escapement.broker.admin.figures import rows
from escapement.broker.broker import Broker
from escapement.names import NamespaceName
from escapement.storage.catalog.catalog import TopicRecord

# The most series of one answer. Further topics are left out, and the answer has their number.
MAX_SERIES: Final = 10_000
# Topics that are read in one step of the event loop.
_STEP_TOPICS: Final = 20
_TOPIC: Final = "escapement_topic_"
_SUBSCRIPTION: Final = "escapement_subscription_"
_COUNTS: Final = (
    "delivered", "redelivered", "acknowledged", "nacked", "released", "timed_out",
    "dead_lettered", "expired", "dropped",
)  # fmt: skip
_GAUGES: Final = ("ready", "in_flight", "retrying", "unacknowledged")
_TOPIC_SERIES: Final = 2
_SUBSCRIPTION_SERIES: Final = len(_COUNTS) + len(_GAUGES) + 1


class DetailedFamilies:
    """The metrics of each topic of a namespace and of its subscriptions, of one broker or several.

    Counters begin at 0 when a broker starts, and end with their topic.
    """

    def __init__(self) -> None:
        self._series = self._left_out = 0
        names = ["topic"]
        self.published = CounterMetricFamily(
            f"{_TOPIC}messages_published", "Messages stored in the topic", labels=names
        )
        self.entries = GaugeMetricFamily(
            f"{_TOPIC}index_entries", "Entries of the index, finished ones included", labels=names
        )
        names = ["topic", "subscription"]
        self.counts = {
            name: CounterMetricFamily(
                f"{_SUBSCRIPTION}messages_{name}",
                f"Messages {name}".replace("_", " "),
                labels=names,
            )
            for name in _COUNTS
        }
        self.gauges = {
            name: GaugeMetricFamily(
                f"{_SUBSCRIPTION}messages_{name}",
                f"Messages {name}".replace("_", " "),
                labels=names,
            )
            for name in _GAUGES
        }
        self.consumers = GaugeMetricFamily(
            f"{_SUBSCRIPTION}consumers", "Consumers of the subscription", labels=names
        )

    def all(self) -> Iterator[Metric]:
        """Yield the families."""
        yield GaugeMetricFamily(
            "escapement_detailed_topics_left_out",
            f"Topics without series here, because an answer has at most {MAX_SERIES} series",
            value=self._left_out,
        )
        yield self.published
        yield self.entries
        yield from self.counts.values()
        yield from self.gauges.values()
        yield self.consumers

    async def add(self, broker: Broker, namespace: NamespaceName) -> None:
        """Add the topics of a broker. No topic becomes active.

        Works in steps, so topics that are created or deleted meanwhile may be there or not.

        Raises:
          NotFound: if the namespace does not exist.
        """
        registry = broker.registry
        registry.namespaces.find(namespace)
        prefix = namespace.full + "/"
        names = [name for name in registry.topics if name.startswith(prefix)]
        for at, name in enumerate(names):
            if at % _STEP_TOPICS == 0:
                await trio.lowlevel.checkpoint()
            record = registry.topics.get(name)
            if record is None:
                continue  # deleted meanwhile
            subscriptions = list(registry.subscriptions_of(record.id))
            self._series += _TOPIC_SERIES + _SUBSCRIPTION_SERIES * len(subscriptions)
            if self._series > MAX_SERIES:
                self._left_out += len(names) - at
                return
            _add(broker, name, record, self)


def _add(broker: Broker, name: str, record: TopicRecord, families: DetailedFamilies) -> None:
    families.entries.add_metric([name], broker.index.count(record.id))
    topic = broker.registry.active.get(record.id)
    kept = broker.services.passive_topics.figures(record.id)
    passive = 0 if kept is None else kept.published
    families.published.add_metric([name], passive if topic is None else topic.published)
    for row in rows(broker, name, record):
        figures: Mapping[str, Any] = row
        labels = [name, row["subscription"]]
        for field, counter in families.counts.items():
            counter.add_metric(labels, figures[field])
        for field, gauge in families.gauges.items():
            gauge.add_metric(labels, figures[field])
        families.consumers.add_metric(labels, row["consumers"])
