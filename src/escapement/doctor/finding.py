"""The result of one check, with its severity and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is. Only the last two make `escapement doctor` fail."""

    OK = "ok"
    NOTICE = "notice"  # worth knowing; no action is needed
    WARNING = "warning"  # something can fail or be lost
    ERROR = "error"  # the broker does not start, or loses messages


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
      check: the name of the check.
      remedy: what to do, or "" if there is nothing to do.
    """

    check: str
    severity: Severity
    text: str
    remedy: str = ""

    @property
    def is_bad(self) -> bool:
        return self.severity in (Severity.WARNING, Severity.ERROR)


def ok(check: str, text: str) -> Finding:
    return Finding(check, Severity.OK, text)


def notice(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check, Severity.NOTICE, text, remedy)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Severity.WARNING, text, remedy)


def error(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Severity.ERROR, text, remedy)
