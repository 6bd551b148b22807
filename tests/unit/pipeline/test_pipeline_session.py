"""What a command tells the Spark that it starts, or that spark-submit has started."""

from __future__ import annotations

import sys

import pytest

from escapement.pipeline.session import progress_of

BAR = "spark.ui.showConsoleProgress"


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("bar", [True, False])
def test_spark_shows_on_a_terminal_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, bar: bool
) -> None:
    """B7: not beside a job that does."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert progress_of(bar) == {BAR: "true" if bar and terminal else "false"}


def test_below_spark_submit_its_own_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """B7: a setting of the one who submits is not overridden."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "25333")
    assert progress_of(bar=True) == {}
