"""The pages of the console, one file each, with their templates beside.

A page is a function from a :class:`~escapement.console.view.View` to an answer.
"""

from __future__ import annotations

from typing import Final

from escapement.console.pages import audit, brokers, timeline
from escapement.console.view import Page

PAGES: Final[list[Page]] = [*timeline.PAGES, *brokers.PAGES, *audit.PAGES]
