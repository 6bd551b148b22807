"""The console as a Starlette application: the way of a request.

A request comes with the id of a session. The console takes the connections of the session's user
from a pool, and lets the page answer. If that fails with an error of ours, the page shows its form
again with the error. Requests that change
something pass two more checks (``visit/guard.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from math import inf
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

import trio
from starlette.applications import Starlette
from starlette.datastructures import MultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from escapement.client.broker import Broker
from escapement.console.config import ConsoleConfig
from escapement.console.pages import PAGES
from escapement.console.visit import cookie
from escapement.console.visit.guard import STATIC, GuardHeaders, check_origin, check_secret
from escapement.console.visit.live import EventStream, events, trouble
from escapement.console.visit.rendering import render
from escapement.console.visit.sessions import Session, Sessions
from escapement.console.visit.user import User
from escapement.console.visit.view import THEME_COOKIE, THEMES, Page, View
from escapement.errors import (
    Busy,
    Disconnected,
    EscapementError,
    InvalidRequest,
    OtherDatabase,
    Unauthenticated,
)
from escapement.event_log import EventLog
from escapement.gateway.app import GatewayApp
from escapement.gateway.clients import Clients
from escapement.http.body import Bodies, read_body
from escapement.http.sender import check_without_token, is_local
from escapement.http.statuses import status_of

# The most bytes of a form. It may have a payload.
MOST_FORM_BYTES: Final = 8 << 20
# The most bytes of the forms of all requests in progress.
MOST_BYTES: Final = 64 << 20
# The most bytes of the form to sign in, which everybody may send.
MOST_LOGIN_BYTES: Final = 16 << 10
# The most requests at once, and the most pages that follow the brokers.
MOST_REQUESTS: Final = 64
MOST_LIVE: Final = 200
MOST_LIVE_OF_SESSION: Final = 40
# How long a page waits for the brokers. An action waits as long as a client does, because it may
# take effect.
LONGEST_PAGE_S: Final = 10.0
# How long the rights of a user may be out of date. The brokers check each request anyway.
USER_S: Final = 30.0

_STATIC_FILES: Final = Path(__file__).parent / "static"
_log = EventLog(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class ConsoleApp:
    """The application.

    Args:
      clients: the clients of the users' tokens.
      now_ms: returns the time in Unix milliseconds.
      gateway: the gateway, whose requests the same port answers; None for none.

    Attributes:
      asgi: the ASGI application.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        clients: Clients,
        now_ms: Callable[[], int],
        gateway: GatewayApp | None = None,
    ) -> None:
        self._config = config
        self._clients = clients
        self._now_ms = now_ms
        self._gateway = gateway
        self._sessions = Sessions()
        self._requests = 0
        self._bodies = Bodies(MOST_BYTES)
        self._live: set[trio.CancelScope] = set()
        self._stopping = False
        routes: list[BaseRoute] = [
            Route("/livez", _alive),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Mount(STATIC, StaticFiles(directory=_STATIC_FILES)),
            *(() if gateway is None else gateway.routes),
        ]
        for page in PAGES:
            routes.append(Route(page.path, self._answering(page), methods=[page.method]))
            if page.live is not None:
                routes.append(Route(f"/live{page.path}", self._following(page)))
        handlers = {HTTPException: self._no_such_page, Exception: self._failed}
        self.asgi = GuardHeaders(Starlette(routes=routes, exception_handlers=handlers))

    def stop(self) -> None:
        """End the requests that follow the brokers or wait for messages, and refuse such ones."""
        self._stopping = True
        for scope in self._live:
            scope.cancel()
        if self._gateway is not None:
            self._gateway.stop()

    def _answering(self, page: Page) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                if self._requests >= MOST_REQUESTS:
                    raise Busy(f"The console works on {MOST_REQUESTS} requests. Try again.")
                self._requests += 1
                try:
                    with trio.move_on_after(LONGEST_PAGE_S if page.method == "GET" else inf):
                        return await self._answer(page, request)
                finally:
                    self._requests -= 1
                raise Disconnected(f"The brokers have not answered for {LONGEST_PAGE_S:g} s.")
            except EscapementError as error:
                return self._refused(request, error)

        return handle

    async def _answer(self, page: Page, request: Request) -> Response:
        id, session = await self._session(request)
        async with self._form(request, session) as form, self._clients.use(session.token) as client:
            view = self._view(request, session, client.broker, form)
            try:
                await self._refresh(session, client.broker)
                response = await page.answer(view)
            except (Unauthenticated, OtherDatabase):
                raise
            except EscapementError as error:
                if view.is_htmx:
                    raise
                view.trouble = error
                response = await _again(page, view)
        if cookie.read(request) != id:
            cookie.write(request, response, id)
        return response

    def _following(self, page: Page) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                _, session = await self._session(request)
                if len(self._live) >= MOST_LIVE or self._stopping:
                    raise Busy(f"{MOST_LIVE} pages follow the brokers. Close some of them.")
                if len(session.live) >= MOST_LIVE_OF_SESSION:
                    raise Busy(
                        f"{MOST_LIVE_OF_SESSION} of your pages follow the brokers. Close some of "
                        "them."
                    )
            except EscapementError as error:
                # With another status, the browser would not try again.
                return Response(trouble(error), media_type="text/event-stream")
            return self._follow(page, request, session)

        return handle

    def _follow(self, page: Page, request: Request, session: Session) -> EventStream:
        """Return the events of a page."""
        assert page.live is not None
        live = page.live

        async def part() -> str:
            if session.is_over:
                raise Unauthenticated("The session has ended. Load the page again to sign in.")
            async with self._clients.use(session.token) as client:
                await self._refresh(session, client.broker)
                return await live(self._view(request, session, client.broker, MultiDict()))

        return EventStream(events(part), self._live, session.live)

    def _view(self, request: Request, session: Session, broker: Broker, form: MultiDict) -> View:
        return View(request, session, broker, form, self._now_ms(), self._config)

    async def _session(self, request: Request) -> tuple[str, Session]:
        """Return the session of a request, with its id.

        If the brokers have no access control, a browser on this machine needs no token.

        Raises:
          Unauthenticated: if the user must sign in.
        """
        id = cookie.read(request)
        session = self._sessions.find(id)
        if session is not None:
            if not session.token:
                self._check_local(request)
            return id, session
        self._check_local(request)
        async with self._clients.use("") as client:
            user = await User.of(client.broker)
        return self._sessions.begin("", user)

    def _check_local(self, request: Request) -> None:
        """Check a request without a token. Raises Unauthenticated or Refused."""
        if not is_local(request):
            raise Unauthenticated("Sign in with a token.")
        check_without_token(request)

    @asynccontextmanager
    async def _form(self, request: Request, session: Session) -> AsyncIterator[MultiDict]:
        """Lend the fields of a form that a page of the session has sent; none for a GET.

        Raises:
          Refused: if another site has sent it.
        """
        if request.method != "POST":
            yield MultiDict()
            return
        check_origin(request)
        async with self._bodies.lend(request, MOST_FORM_BYTES) as body:
            form = _fields(body)
            check_secret(request, session, form)
            yield form

    async def _refresh(self, session: Session, broker: Broker) -> None:
        """Read the rights of a user again if they may be out of date."""
        now_s = trio.current_time()
        if now_s - session.user_s >= USER_S:
            session.user = await User.of(broker)
            session.user_s = now_s

    async def _login(self, request: Request) -> Response:
        """Show the form to sign in, or begin a session with the token that it sends."""
        path = _next_path(request.query_params.get("next", "/"))
        if request.method == "GET":
            return self._login_page(request, "")
        try:
            check_origin(request)
            form = _fields(await read_body(request, MOST_LOGIN_BYTES))
            token = form.get("token", "").strip()
            if not token:
                raise Unauthenticated("Enter a token.")
            async with self._clients.use(token) as client:
                user = await User.of(client.broker)
        except EscapementError as error:
            return self._login_page(request, str(error), status_of(error))
        self._sessions.end(cookie.read(request))  # that of another token
        id, _ = self._sessions.begin(token, user)
        response = RedirectResponse(path, HTTPStatus.SEE_OTHER)
        cookie.write(request, response, id)
        return response

    async def _logout(self, request: Request) -> Response:
        id = cookie.read(request)
        session = self._sessions.find(id)
        if session is not None:
            try:
                async with self._form(request, session):
                    self._sessions.end(id)
            except EscapementError as error:
                return self._refused(request, error)
        response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        cookie.delete(request, response)
        return response

    def _login_page(
        self, request: Request, error: str, status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        return self._plain_page(request, "frame/login.html", status, error=error)

    def _refused(self, request: Request, error: EscapementError) -> Response:
        """Return the answer to a request that ended with an error of ours."""
        is_htmx = "hx-request" in request.headers
        if isinstance(error, Unauthenticated):
            self._sessions.end(cookie.read(request))
            query = f"?{request.url.query}" if request.url.query else ""
            at = request.url.path + query if request.method == "GET" else "/"
            path = f"/login?next={quote(at)}"
            if is_htmx:
                return Response(headers={"hx-redirect": path})
            return RedirectResponse(path, HTTPStatus.SEE_OTHER)
        status = status_of(error)
        if is_htmx:
            headers = {"hx-retarget": "#trouble", "hx-reswap": "innerHTML"}
            return HTMLResponse(render("frame/trouble.html", {"text": str(error)}), status, headers)
        return self._plain_page(request, "frame/error.html", status, error=str(error))

    def _plain_page(
        self, request: Request, template: str, status: HTTPStatus, **values: object
    ) -> Response:
        """Return a page that needs no session."""
        theme = request.cookies.get(THEME_COOKIE, "")
        shown = {
            "theme": theme if theme in THEMES else "",
            "banner": self._config.banner,
            "status": status,
            **values,
        }
        return HTMLResponse(render(template, shown), status)

    async def _no_such_page(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        return self._plain_page(request, "frame/error.html", status, error=status.description or "")

    async def _failed(self, request: Request, error: Exception) -> Response:
        _log.exception("console.bug", "a request failed because of a bug")
        text = "The console could not answer. Its log has the reason."
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return self._plain_page(request, "frame/error.html", status, error=text)


async def _again(page: Page, view: View) -> Response:
    """Return the answer to a request that was refused: the form again, if the page has one."""
    if page.again is not None:
        with suppress(EscapementError), trio.move_on_after(LONGEST_PAGE_S):
            return await page.again(view)
    # The user keeps the frame of the pages, which leads away from here.
    return view.show("frame/refused.html")


def _fields(body: bytes) -> MultiDict:
    try:
        return MultiDict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20_000))
    except ValueError as error:
        raise InvalidRequest(f"The form cannot be read: {error}.") from None


def _next_path(text: str) -> str:
    """Return the path to go to after signing in. It must be one of the console."""
    return text if text.startswith("/") and not text.startswith(("//", "/\\")) else "/"


async def _alive(request: Request) -> Response:
    return Response("alive\n", media_type="text/plain")
