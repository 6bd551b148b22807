"""Settings of a Spark session that a command or spark-submit starts."""

from __future__ import annotations

import sys

import pytest

from escapement.pipeline.session import progress_of

BAR = "spark.ui.showConsoleProgress"


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("bar", [True, False])
def test_spark_shows_its_progress_bar_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, bar: bool
) -> None:
    """B7: not if the job shows its own progress."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert progress_of(bar) == {BAR: "true" if bar and terminal else "false"}


def test_settings_of_spark_submit_are_not_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    """B7."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "25333")
    assert progress_of(bar=True) == {}
