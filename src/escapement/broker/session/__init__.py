"""One connection: what comes in, what it has open, what goes out.

A session hands each command to the *desk* that knows its noun; a new noun is a new desk.
"""

from escapement.broker.session.session import Session

__all__ = ["Session"]
