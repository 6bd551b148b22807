"""The routes of the side port, as a Starlette application.

========================  ==============================================================
``GET /livez``            200 as long as the event loop turns
``GET /readyz``           200 if the broker is ready, or 503 with the reasons in words
``GET /metrics``          the metrics of the whole broker
``GET /metrics/detailed``  those of each topic and subscription of ``?namespace=``
``POST /admin/v1/…``      a verb of administration; the arguments are the JSON body
========================  ==============================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from escapement.broker.admin.admin import VERBS, Admin
from escapement.broker.admin.arguments import Plain
from escapement.broker.broker import Broker
from escapement.broker.side_port.access import caller_of
from escapement.broker.side_port.collector import families_of, render
from escapement.broker.side_port.detailed import DetailedFamilies
from escapement.broker.side_port.health import reasons_not_ready
from escapement.broker.side_port.openapi import PREFIX, document, path_of
from escapement.broker.side_port.readings import take_readings
from escapement.broker.side_port.refusals import failed, no_such_route, refusal
from escapement.broker.side_port.shown import Shown
from escapement.errors import Busy, EscapementError, InvalidRequest, NotFound, WrongBundle
from escapement.http import json_values
from escapement.http.body import read_body
from escapement.names import NamespaceName
from escapement.protocol.bundle_verbs import SOUGHT, merge_of

# The most requests, beside /livez and /readyz, that are handled at once. Further ones get 503.
MOST_REQUESTS: Final = 16
# The most bytes of the body of a request.
MOST_BODY_BYTES: Final = 1 << 20
# How long a scrape waits for the numbers of messages. Then it shows the last ones.
CENSUS_WAIT_S: Final = 2.0

Handler = Callable[[Request], Awaitable[Response]]


class SidePortApp:
    """The application.

    Args:
      shown: the brokers to show.
      admin: whether to serve /admin/v1.
    """

    def __init__(self, shown: Shown, *, admin: bool) -> None:
        self._shown = shown
        self._requests = 0
        routes = [
            Route("/livez", self._live),
            Route("/readyz", self._ready),
            Route("/metrics", self._bounded(self._metrics)),
            Route("/metrics/detailed", self._bounded(self._detailed)),
        ]
        if admin:
            routes.append(Route(f"{PREFIX}/openapi.json", self._bounded(self._openapi)))
            routes += [
                Route(
                    path_of(verb), self._bounded(partial(self._carry_out, verb)), methods=["POST"]
                )
                for verb in VERBS
            ]
        else:
            methods = ["GET", "POST"]
            routes.append(Route(f"{PREFIX}/{{verb:path}}", self._bounded(_off), methods=methods))
        self.asgi = Starlette(
            routes=routes, exception_handlers={HTTPException: no_such_route, Exception: failed}
        )

    # -- health ----------------------------------------------------------------

    async def _live(self, request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _ready(self, request: Request) -> Response:
        reasons = reasons_not_ready(self._shown)
        if reasons:
            return PlainTextResponse("".join(f"{one}\n" for one in reasons), 503)
        return PlainTextResponse("ready\n")

    # -- metrics ---------------------------------------------------------------

    async def _metrics(self, request: Request) -> Response:
        await self._shown.freshen_census(CENSUS_WAIT_S)
        families = families_of(take_readings(self._shown))
        return _rendered(*render(families, request.headers.get("accept", ""), process=True))

    async def _detailed(self, request: Request) -> Response:
        text = request.query_params.get("namespace")
        if text is None:
            raise InvalidRequest("name a namespace: /metrics/detailed?namespace=tenant/namespace")
        namespace, families = NamespaceName.parse(text), DetailedFamilies()
        self._shown.broker_for({})
        for shown in self._shown.brokers:
            with self._shown.use(shown) as broker:
                await families.add(broker, namespace)
        accept = request.headers.get("accept", "")
        # Rendering thousands of series takes long. A thread lets the event loop turn meanwhile.
        return _rendered(*await trio.to_thread.run_sync(render, families.all(), accept))

    # -- administration --------------------------------------------------------

    async def _openapi(self, request: Request) -> Response:
        with self._shown.use(self._shown.broker_for({})) as broker:
            await caller_of(request, broker.services.access)
        return JSONResponse(document())

    async def _carry_out(self, verb: str, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise InvalidRequest(
                "Send the arguments with the header Content-Type: application/json."
            )
        arguments = json_values.decode(await read_body(request, MOST_BODY_BYTES))
        merge = merge_of(verb, arguments)
        if merge is not None:
            brokers = self._shown.brokers_of_all()
            return _result(merge(await self._answers(brokers, verb, arguments, request)))
        if verb in SOUGHT:
            return _result(await self._sought(verb, arguments, request))
        try:
            result = await self._at(self._shown.broker_for(arguments), verb, arguments, request)
        except WrongBundle as error:  # dead letters may lie in another bundle than their topic
            there = self._shown.broker_of(error.bundle)
            if there is None:
                raise
            result = await self._at(there, verb, arguments, request)
        return _result(result)

    async def _answers(
        self, brokers: list[Broker], verb: str, arguments: dict[str, Any], request: Request
    ) -> list[Plain]:
        """Return the answers of the brokers that know the names in the arguments.

        Raises:
          NotFound: if none of them does.
        """
        answers, refusal = [], NotFound("no broker")
        for broker in brokers:
            try:
                answers.append(await self._at(broker, verb, arguments, request))
            except NotFound as error:
                refusal = error
        if not answers:
            raise refusal
        return answers

    async def _sought(self, verb: str, arguments: dict[str, Any], request: Request) -> Plain:
        """Return the answer of the broker that knows the names in the arguments."""
        try:
            return (await self._answers(self._shown.brokers, verb, arguments, request))[0]
        except NotFound:
            self._shown.brokers_of_all()  # refuses if another process may know them
            raise

    async def _at(
        self, broker: Broker, verb: str, arguments: dict[str, Any], request: Request
    ) -> Plain:
        with self._shown.use(broker):
            caller = await caller_of(request, broker.services.access)
            broker.check_open()
            return await Admin(broker).carry_out(verb, arguments, caller)

    # -- every request ---------------------------------------------------------

    def _bounded(self, handler: Handler) -> Handler:
        """Return a handler that refuses a request beyond the bound and answers with errors."""

        async def handle(request: Request) -> Response:
            if self._requests >= MOST_REQUESTS:
                return refusal(Busy(f"{MOST_REQUESTS} requests are in progress; try again"))
            self._requests += 1
            try:
                return await handler(request)
            except EscapementError as error:
                return refusal(error)
            finally:
                self._requests -= 1

        return handle


async def _off(request: Request) -> Response:
    raise NotFound("The administration over HTTP is off. Start the broker with --http-admin.")


def _result(result: Plain) -> Response:
    return Response(json_values.encode(result), media_type="application/json")


def _rendered(body: bytes, content_type: str) -> Response:
    return Response(body, headers={"content-type": content_type})
