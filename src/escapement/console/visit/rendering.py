"""The templates of the pages, with the filters that they use."""

from __future__ import annotations

from typing import Any, Final

import jinja2

from escapement.console.text import amounts, clock_changes, payloads, times

FILTERS: Final = {
    "amount": amounts.amount,
    "size": amounts.size,
    "span": times.span,
    "iso": times.iso,
    "local": times.local,
    "clock": times.clock,
    "day": times.day,
    "field": times.field,
    "relative": times.relative,
    "zone_name": clock_changes.zone_name,
    "payload": payloads.shown,
}

_environment: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("escapement.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(FILTERS)


def render(template: str, values: dict[str, Any]) -> str:
    """Return a template of ``templates`` with values filled in. Texts are escaped."""
    return _environment.get_template(template).render(values)
