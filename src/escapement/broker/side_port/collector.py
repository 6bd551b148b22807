"""Collectors of prometheus_client, which render values that were read before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from escapement.broker.side_port.metrics import (
    BUILD_INFO,
    MEMBER_METRICS,
    METRICS,
    READY,
    Distribution,
)
from escapement.broker.side_port.metrics import Metric as BrokerMetric
from escapement.broker.side_port.readings import BrokerReadings, Readings

Of = TypeVar("Of")
_TOTAL: Final = "_total"


class Rendered(Collector):
    """A collector of the given families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


def families_of(readings: Readings) -> Iterator[Metric]:
    """Yield the metrics of all brokers of the process. Several bundles have a label each.

    A process without bundles has few metrics, and no label.
    """
    yield GaugeMetricFamily(READY[0], READY[2], value=int(readings.ready))
    build = GaugeMetricFamily(BUILD_INFO[0], BUILD_INFO[2], labels=["version"])
    build.add_metric([readings.version], 1)
    yield build
    if readings.member is not None:
        yield from _families(MEMBER_METRICS, [], {(): readings.member})
    labels = ["bundle"] if readings.has_bundles else []
    found: dict[tuple[str, ...], BrokerReadings] = {
        (str(bundle_id),) if labels else (): broker
        for bundle_id, broker in readings.brokers.items()
    }
    yield from _families(METRICS, labels, found)


def _families(
    metrics: Iterable[BrokerMetric[Of]], labels: list[str], found: Mapping[tuple[str, ...], Of]
) -> Iterator[Metric]:
    """Yield metrics with their values for each combination of labels."""
    for metric in metrics:
        values = {
            key: value for key, one in found.items() if (value := metric.value(one)) is not None
        }
        if values:
            yield _family(metric, labels, values)


def _family(
    metric: BrokerMetric[Any],
    labels: list[str],
    values: Mapping[tuple[str, ...], float | Distribution],
) -> Metric:
    """Return a metric with its value for each combination of labels."""
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for key, value in values.items():
            assert isinstance(value, Distribution), "a histogram has distributions"
            histogram.add_metric(key, buckets=_buckets(value), sum_value=value.total)
        return histogram
    counter, name = metric.kind == "counter", metric.name.removesuffix(_TOTAL)
    kind = CounterMetricFamily if counter else GaugeMetricFamily
    family = kind(name if counter else metric.name, metric.help, labels=labels)
    for key, value in values.items():
        assert not isinstance(value, Distribution), "only a histogram has distributions"
        family.add_metric(key, value)
    return family


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    bounds = [*map(str, value.bounds), "+Inf"]
    return list(zip(bounds, accumulate(value.counts), strict=True))


def render(
    families: Iterable[Metric], accept: str = "", *, process: bool = False
) -> tuple[bytes, str]:
    """Return families in the format that a scraper accepts, and its content type.

    Args:
      accept: the header ``Accept`` of the request.
      process: whether to add the figures of the process, such as its memory.
    """
    registry = CollectorRegistry()
    registry.register(Rendered(families))
    if process:
        ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
