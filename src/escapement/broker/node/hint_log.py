"""Advice to operators, logged once while it holds."""

from __future__ import annotations

from escapement.broker.cluster import ClusterView
from escapement.event_log import EventLog

_log = EventLog(__name__)


class HintLog:
    """The advice that a node has logged last."""

    def __init__(self) -> None:
        self._told: str | None = None

    def look(self, view: ClusterView) -> None:
        """Log the advice about the nodes and bundles, if it is new."""
        hint = view.hint
        if hint is not None and hint != self._told:
            _log.info("node.hint", "%s", hint)
        self._told = hint
