"""Numbers and sizes as texts of a page."""

from __future__ import annotations

_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def amount(value: float | None) -> str:
    """Return a number with separators, as in ``12,345``; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def size(bytes: int | None) -> str:
    """Return a size as in ``1.5 MiB``."""
    if bytes is None:
        return "–"
    for unit, length in _SIZES:
        if bytes >= length:
            return f"{bytes / length:.1f} {unit}"
    return f"{bytes} B"
