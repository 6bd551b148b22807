"""Equal, consecutive spans of time, such as hours, for which a forecast counts due messages.

The first span may begin before the period of the forecast, and the last may end after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from escapement.errors import InvalidRequest

# The most spans in a forecast: almost two weeks in minutes.
MAX_SPANS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Spans:
    """The time spans of a forecast: ``count`` spans of the length ``by_ms``, from ``first_ms`` on.

    They cover the period of the forecast, from after ``from_ms`` to before ``until_ms``.
    """

    from_ms: int
    until_ms: int
    by_ms: int
    first_ms: int
    count: int

    @classmethod
    def after(cls, now_ms: int, *, by_ms: int, within_ms: int, origin_ms: int = 0) -> Spans:
        """Return the spans of a forecast for the next ``within_ms`` after ``now_ms``.

        Args:
          by_ms: the length of a span.
          origin_ms: a time at which a span begins, such as a midnight.

        Raises:
          InvalidRequest: if there are more than ``MAX_SPANS``.
        """
        until_ms = now_ms + within_ms
        first_ms = origin_ms + (now_ms + 1 - origin_ms) // by_ms * by_ms
        count = -(-(until_ms - first_ms) // by_ms)
        if count > MAX_SPANS:
            raise InvalidRequest(
                f"A forecast has at most {MAX_SPANS} spans of time, not {count}. Look less far"
                " ahead or use longer spans."
            )
        return cls(now_ms, until_ms, by_ms, first_ms, count)

    def begins_ms(self, span: int) -> int:
        """Return the time at which the span with this number begins."""
        return self.first_ms + span * self.by_ms

    def length_ms(self, span: int) -> int:
        """Return how much of a span lies in the period of the forecast.

        This is less than ``by_ms`` for a first or last span that is only partly in the period.
        """
        begins_ms = self.begins_ms(span)
        return min(begins_ms + self.by_ms, self.until_ms) - max(begins_ms, self.from_ms)
