"""The table of metrics in docs/guides/monitoring.md has exactly the metrics of the code."""

from __future__ import annotations

import re
from pathlib import Path

from escapement.broker.side_port.metrics import BUILD_INFO, METRICS, READY

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "monitoring.md"
ROW = re.compile(r"^\| `(escapement_\w+)` \| (counter|gauge|histogram) \| (.+) \|$", re.M)


def test_monitoring_guide_has_each_metric_with_its_kind_and_meaning() -> None:
    """O4: in the order in which they are rendered."""
    table, _, _ = GUIDE.read_text().partition("\n## The metrics of a namespace")
    found = [(name, kind, what.rstrip(".")) for name, kind, what in ROW.findall(table)]
    expected = [READY, BUILD_INFO, *((one.name, one.kind, one.help) for one in METRICS)]
    assert found == expected
