"""The pages of the console, one file each, with their templates beside.

A page is a function from a :class:`~escapement.console.visit.view.View` to an answer.
"""

from __future__ import annotations

from typing import Final

from escapement.console.pages import (
    act,
    audit,
    brokers,
    dead_letter,
    dead_letters,
    find,
    group,
    jobs,
    lateness,
    message,
    produce,
    schedule_form,
    schedules,
    subscription,
    subscriptions,
    timeline,
)
from escapement.console.visit.view import Page

_FILES: Final = (
    timeline,
    find,
    message,
    group,
    act,
    jobs,
    subscriptions,
    subscription,
    lateness,
    schedule_form,
    schedules,
    dead_letters,
    dead_letter,
    produce,
    brokers,
    audit,
)

PAGES: Final[list[Page]] = [page for file in _FILES for page in file.PAGES]
