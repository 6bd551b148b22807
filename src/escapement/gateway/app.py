"""The gateway as a Starlette application: it checks requests, and carries out operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from escapement.errors import (
    Busy,
    EscapementError,
    ShuttingDown,
    Unauthenticated,
)
from escapement.gateway import docs_page, messages, publishing, receiving
from escapement.gateway.clients import Clients
from escapement.gateway.openapi import PREFIX, document
from escapement.gateway.operation import BYTES, JSON, Answer, Call, Operation
from escapement.gateway.problem import failed, no_such_route, problem
from escapement.http.body import Bodies
from escapement.http.sender import Refused, bearer_token, check_without_token, is_local
from escapement.names import TopicName

# The most bytes of the body of a request.
MOST_BODY_BYTES: Final = 8 << 20
# The most requests at once, beside those that wait for messages, and the most of these. Further
# ones get 503. The bodies of all requests have a bound, too.
MOST_REQUESTS: Final = 256
MOST_WAITING: Final = 1000
MOST_BYTES: Final = 128 << 20

GROUPS: Final = {
    "Publish": publishing.OPERATIONS,
    "Look and change": messages.OPERATIONS,
    "Receive": receiving.OPERATIONS,
}
OPERATIONS: Final = [one for group in GROUPS.values() for one in group]

_NO_TOKEN: Final = "Send a token: Authorization: Bearer TOKEN."

Handler = Callable[[Request], Awaitable[Response]]


class GatewayApp:
    """The application.

    Args:
      clients: the clients of the tokens of requests.

    Attributes:
      routes: its routes, for applications that have further ones.
      asgi: the ASGI application.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._requests = 0
        self._bodies = Bodies(MOST_BYTES)
        self._waiting: set[trio.CancelScope] = set()
        self._stopping = False
        self.routes: Final = [
            Route("/openapi.json", _openapi),
            *docs_page.routes(),
            *(
                Route(PREFIX + one.path, self._answering(one), methods=[one.method])
                for one in OPERATIONS
            ),
        ]
        self.asgi = Starlette(
            routes=[Route("/livez", _live), *self.routes],
            exception_handlers={HTTPException: no_such_route, Exception: failed},
        )

    def stop(self) -> None:
        """End the requests that wait for messages, and refuse further ones of this kind."""
        self._stopping = True
        for scope in self._waiting:
            scope.cancel()

    def _answering(self, operation: Operation) -> Handler:
        """Return a handler that carries out an operation, and answers with errors."""
        carry_out = self._wait if operation is _RECEIVE else self._work

        async def handle(request: Request) -> Response:
            try:
                answer = await carry_out(operation, request)
            except EscapementError as error:
                answer = problem(error)
            answer.headers["cache-control"] = "no-store"
            return answer

        return handle

    async def _work(self, operation: Operation, request: Request) -> Response:
        if self._requests >= MOST_REQUESTS:
            raise Busy(f"{MOST_REQUESTS} requests are in progress. Try again.")
        self._requests += 1
        try:
            return await self._carry_out(operation, request)
        finally:
            self._requests -= 1

    async def _wait(self, operation: Operation, request: Request) -> Response:
        if len(self._waiting) >= MOST_WAITING:
            raise Busy(f"{MOST_WAITING} requests wait for messages. Try again.")
        if not self._stopping:
            with trio.CancelScope() as scope:
                self._waiting.add(scope)
                try:
                    return await self._carry_out(operation, request)
                finally:
                    self._waiting.discard(scope)
        raise ShuttingDown("The gateway is stopping. Try again.")

    async def _carry_out(self, operation: Operation, request: Request) -> Response:
        path = request.path_params
        topic = TopicName.parse("{tenant}/{namespace}/{topic}".format_map(path)).full
        headers, query = operation.headers_of(request), operation.query_of(request)
        token = _token_of(request)
        try:
            # Only senders with a valid token use memory for a body.
            async with (
                self._clients.use(token) as client,
                self._bodies.lend(request, MOST_BODY_BYTES) as body,
            ):
                given = operation.body_of(body, request.headers.get("content-type", ""))
                call = Call(client, topic, path, headers, query, given, request)
                return _response(operation, await operation.act(call))
        except Unauthenticated:
            if token:
                raise
            # The broker says how a client of its own protocol sends a token.
            raise Unauthenticated(_NO_TOKEN) from None


_RECEIVE: Final = next(one for one in OPERATIONS if one.name == "receive")


def _token_of(request: Request) -> str:
    """Return the token of a request.

    Raises:
      Unauthenticated: if it has none, and comes from another machine.
      Refused: if it has none, and may come from a web site or through a proxy.
    """
    token = bearer_token(request)
    if token:
        return token
    if not is_local(request):
        raise Unauthenticated(_NO_TOKEN)
    check_without_token(request)
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers['host']}":
        raise Refused("A web site has sent the request, without a token.")
    return ""


def _response(operation: Operation, answer: Answer) -> Response:
    if answer.result is None:
        return Response(status_code=operation.status, headers=answer.headers)
    if isinstance(answer.result, bytes):
        # A browser must not take a payload for a page.
        headers = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}
        return Response(answer.result, operation.status, headers, BYTES)
    body = msgspec.json.encode(answer.result)
    return Response(body, operation.status, answer.headers, JSON)


async def _live(request: Request) -> Response:
    return Response("alive\n", media_type="text/plain")


async def _openapi(request: Request) -> Response:
    return JSONResponse(document(GROUPS))
