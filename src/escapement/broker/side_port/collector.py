"""Collectors of prometheus_client, which render values that were read before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from escapement.broker.side_port.metrics import BUILD_INFO, METRICS, READY, Distribution
from escapement.broker.side_port.readings import Readings

_TOTAL: Final = "_total"


class Rendered(Collector):
    """A collector of the given families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


def families_of(readings: Readings) -> Iterator[Metric]:
    """Yield the metrics of the whole broker."""
    yield GaugeMetricFamily(READY[0], READY[2], value=int(readings.ready))
    build = GaugeMetricFamily(BUILD_INFO[0], BUILD_INFO[2], labels=["version"])
    build.add_metric([readings.version], 1)
    yield build
    if readings.broker is None:
        return
    for metric in METRICS:
        value = metric.value(readings.broker)
        if value is None:
            continue
        if isinstance(value, Distribution):
            yield _histogram(metric.name, metric.help, value)
        elif metric.kind == "counter":
            yield CounterMetricFamily(metric.name.removesuffix(_TOTAL), metric.help, value=value)
        else:
            yield GaugeMetricFamily(metric.name, metric.help, value=value)


def _histogram(name: str, help: str, value: Distribution) -> HistogramMetricFamily:
    bounds = [*map(str, value.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(value.counts), strict=True))
    return HistogramMetricFamily(name, help, buckets=buckets, sum_value=value.total)


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
