"""One request of a signed-in user: what a page reads from it, and how it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar, get_origin
from zoneinfo import ZoneInfo

import msgspec
from starlette.datastructures import ImmutableMultiDict, MultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from escapement.client.broker import Broker
from escapement.console.config import ConsoleConfig
from escapement.console.text.times import zone_of
from escapement.console.visit.rendering import render
from escapement.console.visit.sessions import MOST_NOTICES, Session
from escapement.console.visit.user import User
from escapement.errors import EscapementError, InvalidRequest, NotFound, Unauthenticated
from escapement.http.statuses import status_of

Query = TypeVar("Query", bound=msgspec.Struct)

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
        """Return the query of the URL. Fields that are empty count as missing.

        A field that is a list has each value that the URL gives; other fields have the last one.

        Raises:
          InvalidRequest: if a field cannot be read; the error names it.
        """
        return _read(self.request.query_params, kind)

    def sent(self, kind: type[Query]) -> Query:
        """Return the form, as ``query`` returns the query of the URL.

        Raises:
          InvalidRequest: if a field cannot be read; the error names it.
        """
        return _read(self.form, kind)

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

    def show(self, template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
        """Answer with a page, or a part of it."""
        if self.is_part:
            return HTMLResponse(self.part(template, **values), status)
        notices, self.session.notices = self.session.notices, []
        return HTMLResponse(self.part(template, notices=notices, **values), status)

    def show_form(self, template: str, error: EscapementError | None, **values: Any) -> Response:
        """Answer with a page that has a form, and with the error of a form that was refused.

        Raises:
          Unauthenticated: if this is the error. The user must sign in again.
        """
        if isinstance(error, Unauthenticated):
            raise error
        status = HTTPStatus.OK if error is None else status_of(error)
        return self.show(
            template, status=status, trouble="" if error is None else str(error), **values
        )

    def go(self, path: str, notice: str = "") -> Response:
        """Send the browser to another page, which shows a notice first."""
        if notice:
            self.session.notices = [*self.session.notices, notice][-MOST_NOTICES:]
        if self.is_htmx:
            return Response(headers={"hx-redirect": path})
        return RedirectResponse(path, HTTPStatus.SEE_OTHER)


def _read(given: ImmutableMultiDict[Any, str], kind: type[Query]) -> Query:
    fields: dict[str, str | list[str]] = {}
    for one in msgspec.structs.fields(kind):
        values = [value.strip() for value in given.getlist(one.encode_name) if value.strip()]
        if values:
            is_list = get_origin(one.type) is list
            fields[one.encode_name] = values if is_list else values[-1]
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        said, _, name = str(error).partition(" - at `$.")
        what = f"The field {name.removesuffix('`')} is not valid" if name else "A field is missing"
        raise InvalidRequest(f"{what}: {said}.") from None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console, or an action of one.

    Attributes:
      path: its path, with parameters in braces, as in Starlette.
      answer: answers a request.
      method: GET, or POST for what changes something.
      live: returns the part of the page that changes by itself, as HTML. The browser gets it again
        when it has changed, in the element with the attribute ``data-live``.
    """

    path: str
    answer: Callable[[View], Awaitable[Response]]
    method: str = "GET"
    live: Callable[[View], Awaitable[str]] | None = None
