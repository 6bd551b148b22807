"""docs/guides/monitoring.md has exactly the metrics of the code, and names no others."""

from __future__ import annotations

import re
from pathlib import Path

from escapement.broker.side_port import detailed
from escapement.broker.side_port.metrics import BUILD_INFO, METRICS, READY

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "monitoring.md"
ROW = re.compile(r"^\| `(escapement_\w+)` \| (counter|gauge|histogram) \| (.+) \|$", re.M)


def test_monitoring_guide_has_each_metric_with_its_kind_and_meaning() -> None:
    """O4: in the order in which they are rendered."""
    table, _, _ = GUIDE.read_text().partition("\n## The metrics of a namespace")
    found = [(name, kind, what.rstrip(".")) for name, kind, what in ROW.findall(table)]
    expected = [READY, BUILD_INFO, *((one.name, one.kind, one.help) for one in METRICS)]
    assert found == expected


def test_monitoring_guide_names_only_metrics_that_exist() -> None:
    """O4: in the text, and in the queries."""
    known = {READY[0], BUILD_INFO[0]}
    for one in METRICS:
        known |= {one.name, f"{one.name}_bucket"} if one.kind == "histogram" else {one.name}
    for family in detailed.DetailedFamilies().all():
        known.add(family.name + ("_total" if family.type == "counter" else ""))
    assert set(re.findall(r"\bescapement_\w+", GUIDE.read_text())) <= known
