"""The metrics of a side port, read over HTTP and parsed."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

# A sample by its name and its labels.
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Return all samples of an answer; each must be there once."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


async def scrape(http: httpx.AsyncClient, path: str = "/metrics") -> Samples:
    """Return the samples of one scrape."""
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def plain(samples: Samples) -> dict[str, float]:
    """Return the samples without labels, by name."""
    return {name: value for (name, labels), value in samples.items() if not labels}
