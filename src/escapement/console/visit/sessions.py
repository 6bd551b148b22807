"""The sessions of the users who are signed in.

The browser has only the random id of a session, in a cookie. The token of the user stays in the
memory of this process, so users sign in again when the console restarts.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import trio

from escapement.console.reading.endings import Endings
from escapement.console.reading.rates import Rates
from escapement.console.visit.user import User

# A session ends after this time without a request, and in any case after the longer time.
IDLE_S: Final = 12 * 3600.0
LONGEST_S: Final = 7 * 24 * 3600.0
# The most sessions. The one that was used longest ago ends when another one begins.
MOST_SESSIONS: Final = 1000
# The most notices that wait for the next page of a session. A program may never load it.
MOST_NOTICES: Final = 10
_SECRET_BYTES: Final = 32


@dataclass(slots=True)
class Session:
    """A session: a user, and the secret that forms of its pages must have.

    Attributes:
      token: the token of the user for the brokers; "" if the brokers have no access control.
      user_s: when the rights of the user were read.
      notices: texts for the next page, such as what an action has done.
      rates: the counters that pages have shown, to tell how fast they grow.
      endings: how messages ended that pages have shown.
      live: the cancel scopes of the pages that follow the brokers.
      is_over: whether it has ended. Pages that follow the brokers then stop.
      csrf: the secret. Only pages of the console know it, so other sites cannot send forms.
    """

    token: str
    user: User
    began_s: float
    used_s: float
    user_s: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES))
    notices: list[str] = field(default_factory=list)
    rates: Rates = field(default_factory=Rates)
    endings: Endings = field(default_factory=Endings)
    live: set[trio.CancelScope] = field(default_factory=set)
    is_over: bool = False


class Sessions:
    """The sessions by id."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # used longest ago first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, token: str, user: User) -> tuple[str, Session]:
        """Begin a session; return its id and the session."""
        now_s = trio.current_time()
        if len(self._sessions) >= MOST_SESSIONS:
            self.end(next(iter(self._sessions)))
        id = secrets.token_urlsafe(_SECRET_BYTES)
        session = self._sessions[id] = Session(token, user, now_s, now_s, now_s)
        return id, session

    def find(self, id: str) -> Session | None:
        """Return the session with an id, or None if it is unknown or over."""
        session = self._sessions.get(id)
        if session is None:
            return None
        now_s = trio.current_time()
        if now_s - session.used_s > IDLE_S or now_s - session.began_s > LONGEST_S:
            self.end(id)
            return None
        session.used_s = now_s
        self._sessions.move_to_end(id)
        return session

    def end(self, id: str) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(id, None)
        if session is not None:
            session.is_over = True
