"""One request of a signed-in user: what a page reads from it, and how it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

import msgspec
from starlette.datastructures import MultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from escapement.client.broker import Broker
from escapement.console.config import ConsoleConfig
from escapement.console.text.times import zone_of
from escapement.console.visit.fields import Given, Query, Typed, read, readable
from escapement.console.visit.rendering import render
from escapement.console.visit.sessions import MOST_NOTICES, Session
from escapement.console.visit.user import User
from escapement.errors import EscapementError, NotFound
from escapement.http.statuses import status_of

# A number of a form, such as an offset. It fits an int64.
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

# The cookies that the script of the pages sets: the time zone of the browser, and the theme.
ZONE_COOKIE: Final = "escapement_zone"
THEME_COOKIE: Final = "escapement_theme"
THEMES: Final = ("light", "dark")
# The most digits of a number in a path. Each such number fits an int64.
_MOST_DIGITS: Final = 18


class View:
    """A request, and the answer to it.

    Attributes:
      request: the request.
      session: the session of the user.
      broker: the connections with the user's token.
      form: the fields of the form that the request sends; empty for a GET.
      zone: the time zone of the browser; UTC until the browser tells it.
      now_ms: when the request arrived, in Unix milliseconds.
      config: the configuration of the console.
      trouble: why the request was refused. The frame of the pages shows it.
    """

    def __init__(
        self,
        request: Request,
        session: Session,
        broker: Broker,
        form: MultiDict,
        now_ms: int,
        config: ConsoleConfig,
    ) -> None:
        self.request: Final = request
        self.session: Final = session
        self.broker: Final = broker
        self.form: Final = form
        self.now_ms: Final = now_ms
        self.config: Final = config
        self.trouble: EscapementError | None = None
        self.zone: Final[ZoneInfo] = zone_of(request.cookies.get(ZONE_COOKIE, ""))

    @property
    def user(self) -> User:
        """The user."""
        return self.session.user

    @property
    def is_htmx(self) -> bool:
        """Whether a script of the page has sent the request, which shows errors by itself."""
        return "hx-request" in self.request.headers

    @property
    def is_part(self) -> bool:
        """Whether htmx asks for a part of the page."""
        return self.is_htmx and "hx-boosted" not in self.request.headers

    def path(self, name: str) -> str:
        """Return a parameter of the path."""
        return str(self.request.path_params[name])

    def number(self, name: str) -> int:
        """Return a parameter of the path that is a number, such as an offset.

        Raises:
          NotFound: if it is not one, or has too many digits for one.
        """
        text = self.path(name)
        if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            raise NotFound(f"The address of the page needs a number, not {text!r:.60}.")
        return int(text)

    def query(self, kind: type[Query]) -> Query:
        """Return the query of the URL, as :func:`~escapement.console.visit.fields.read` does."""
        return read(self.request.query_params, kind)

    def sent(self, kind: type[Query]) -> Query:
        """Return the form, as ``query`` returns the query of the URL."""
        return read(self.form, kind)

    def readable(self, kind: type[Query]) -> Query:
        """Return the form, or the query of the URL, with defaults for what cannot be read."""
        return readable(self._given, kind)

    def typed(self, *actions: str) -> Typed:
        """Return what the user typed into a form.

        Args:
          actions: the last parts of the paths to which the form is sent; none for a form whose
            fields are the query of the URL.
        """
        action = self.request.url.path.rpartition("/")[2]
        is_sent = action in actions if self._is_form else not actions
        return Typed(self._given if is_sent else MultiDict())

    @property
    def status(self) -> HTTPStatus:
        """The status of the answer."""
        return HTTPStatus.OK if self.trouble is None else status_of(self.trouble)

    @property
    def _is_form(self) -> bool:
        return self.request.method == "POST"

    @property
    def _given(self) -> Given:
        return self.form if self._is_form else self.request.query_params

    def acting(self) -> Broker:
        """Return the broker to change something with the reason that the form gives."""
        reason = self.form.get("reason", "").strip()
        return self.broker.because(reason) if reason else self.broker

    def part(self, template: str, **values: Any) -> str:
        """Return a part of a page as HTML."""
        theme = self.request.cookies.get(THEME_COOKIE, "")
        return render(
            template,
            {
                "view": self,
                "user": self.user,
                "csrf": self.session.csrf,
                "zone": self.zone,
                "now_ms": self.now_ms,
                "theme": theme if theme in THEMES else "",
                "at": self.request.url.path,
                "notices": (),
                **values,
            },
        )

    def show(self, template: str, **values: Any) -> Response:
        """Answer with a page, or a part of it."""
        if self.is_part:
            return HTMLResponse(self.part(template, **values), self.status)
        notices, self.session.notices = self.session.notices, []
        return HTMLResponse(self.part(template, notices=notices, **values), self.status)

    def go(self, path: str, notice: str = "") -> Response:
        """Send the browser to another page, which shows a notice first."""
        if notice:
            self.session.notices = [*self.session.notices, notice][-MOST_NOTICES:]
        if self.is_htmx:
            return Response(headers={"hx-redirect": path})
        return RedirectResponse(path, HTTPStatus.SEE_OTHER)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console, or an action of one.

    Attributes:
      path: its path, with parameters in braces, as in Starlette.
      answer: answers a request.
      method: GET, or POST for what changes something.
      live: returns the part of the page that changes by itself, as HTML. The browser gets it again
        when it has changed, in the element with the attribute ``data-live``.
      again: answers a request that was refused with the page that has the form, filled with what
        the user typed (``View.typed``). The error is ``View.trouble``. If this fails too, or is
        None, the answer is a page with the error alone.
    """

    path: str
    answer: Callable[[View], Awaitable[Response]]
    method: str = "GET"
    live: Callable[[View], Awaitable[str]] | None = None
    again: Callable[[View], Awaitable[Response]] | None = None
