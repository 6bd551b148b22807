"""The alerts and the dashboard in `deploy/monitoring/`, compared with what a broker exports.

No test runs Prometheus or Grafana.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import httpx
import promql_parser
import pytest
import yaml

import escapement.sync
from support.database.servers import free_port
from support.metrics import Samples, parsed
from support.processes.broker import broker_process

ROOT: Final = Path(__file__).parents[3]
ALERTS: Final = ROOT / "deploy/monitoring/alerts.yaml"
DASHBOARD: Final = ROOT / "deploy/monitoring/dashboard.json"
OPERATIONS: Final = ROOT / "docs/guides/operations.md"
# Prometheus adds these labels to each series of a target.
TARGET_LABELS: Final = {"instance", "job"}
# Prometheus makes these series itself.
OWN_SERIES: Final = {"up": TARGET_LABELS}
# Variables that Grafana has without a definition, with example values.
BUILT_IN: Final = {"__rate_interval": "1m", "__range": "3h"}

# The labels of each series, by its name.
Exported = dict[str, set[str]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The series that a broker with a topic and a subscription exports."""
    port = free_port()
    data = tmp_path_factory.mktemp("monitoring") / "data"
    with broker_process(data, None, "--http", f"127.0.0.1:{port}") as process:
        with escapement.sync.connect(process.url) as broker:
            broker.admin("subscriptions.create", topic="t", subscription="s")
            with broker.producer("t") as producer:
                producer.send(b"x", delay="1h")
        found: Exported = {**OWN_SERIES}
        for path in ("/metrics", "/metrics/detailed?namespace=public/default"):
            answer = httpx.get(f"http://127.0.0.1:{port}{path}").raise_for_status()
            for name, labels in series_of(parsed(answer.text)):
                found.setdefault(name, set(TARGET_LABELS)).update(labels)
    return found


def series_of(samples: Samples) -> Iterator[tuple[str, set[str]]]:
    for name, labels in samples:
        yield name, {label for label, _ in labels}


def check_expression(text: str, exported: Exported) -> set[str]:
    """Check that an expression is valid, and that a broker exports its series and labels.

    Returns:
      The names of its series.
    """
    names: set[str] = set()
    grouped: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name in exported, f"{text}: no broker exports {node.name}"
            asked = {matcher.name for matcher in node.matchers.matchers}
            assert asked <= exported[node.name], f"{text}: {node.name} has no {asked}"
            names.add(node.name)
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)
        return True

    promql_parser.walk(promql_parser.parse(text), visit)
    assert names
    for name in names:
        assert grouped <= exported[name], f"{text}: {name} has no {grouped}"
    return names


def test_alerts_are_valid_and_use_metrics_that_exist(exported: Exported) -> None:
    """O4, O8."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]:
        check_expression(rule["expr"], exported)
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}


def test_each_alert_links_to_its_paragraph_and_each_paragraph_has_an_alert() -> None:
    """O8, O9."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    _, _, alerts = OPERATIONS.read_text().partition("\n## Alerts\n")
    paragraphs = re.findall(r"^### (\w+)\n\n\w", alerts, re.MULTILINE)
    assert paragraphs == [rule["alert"] for rule in group["rules"]]
    for rule in group["rules"]:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert ROOT / page == OPERATIONS
        assert anchor == rule["alert"].lower()


# -- the dashboard -----------------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def filled_in(text: str) -> str:
    """Replace the variables of a dashboard by values. Each must be defined."""
    names = {one["name"] for one in dashboard()["templating"]["list"]}
    values = {**dict.fromkeys(names, "x"), **BUILT_IN}
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], text)


def test_expressions_of_the_dashboard_name_series_and_labels_that_exist(
    exported: Exported,
) -> None:
    """O4, O8."""
    shown: set[str] = set()
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            shown |= check_expression(filled_in(target["expr"]), exported)
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert labels <= set.union(*exported.values()), panel["title"]
    # These answer whether a broker keeps its promises, so none may be left out.
    assert {
        "escapement_ready",
        "escapement_messages_published_total",
        "escapement_delivery_lateness_seconds_bucket",
        "escapement_messages_scheduled",
        "escapement_messages_due",
        "escapement_messages_in_flight",
        "escapement_messages_retrying",
        "escapement_oldest_due_age_seconds",
        "escapement_early_deliveries_total",
        "escapement_commit_seconds_bucket",
        "escapement_messages_redelivered_total",
        "escapement_messages_dead_lettered_total",
        "escapement_index_memory_bytes",
        "escapement_index_segments",
        "escapement_connections",
        "escapement_lease_left_seconds",
    } <= shown


def test_variables_of_the_dashboard_select_labels_that_exist(exported: Exported) -> None:
    """O8."""
    variables = {one["name"]: one for one in dashboard()["templating"]["list"]}
    assert variables.pop("datasource")["query"] == "prometheus"
    assert set(variables) == {"instance", "namespace"}
    for one in variables.values():
        query = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
        assert query is not None
        for name in check_expression(filled_in(query[1]), exported):
            assert query[2] in exported[name]
    found = re.match(variables["namespace"]["regex"][1:-1].replace("\\/", "/"), "shop/eu/orders")
    assert found is not None
    assert found[1] == "shop/eu"


def test_panels_of_the_dashboard_have_a_place_and_a_data_source() -> None:
    """O8: they do not overlap, and each has a description."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        assert any(
            low[at] + low[size] <= high[at]
            for at, size in (("x", "w"), ("y", "h"))
            for low, high in ((one, other), (other, one))
        ), f"{one} and {other} overlap"
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(set(refs)) == len(refs)
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
