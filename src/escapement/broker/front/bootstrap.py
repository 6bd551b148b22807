"""The first token, which an operator requests on the broker's own machine.

``escapement admin bootstrap`` leaves a request in the data directory
(:mod:`~escapement.storage.bootstrap_request`). The broker takes it before it accepts connections,
and looks for others while it runs. A file works whether a broker runs or not, needs no port, and
proves by its owner and its mode that the operator asks.

A log without tokens lets every client do everything. Such a broker accepts connections of its own
machine only, unless the operator allows more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from escapement.broker.access.audited import Origin, Request, described
from escapement.broker.access.caller import Caller
from escapement.broker.broker import Broker
from escapement.broker.connection_wait import when_connected
from escapement.errors import EscapementError, InvalidRequest, StorageError
from escapement.event_log import EventLog
from escapement.storage.bootstrap_request import BootstrapRequest
from escapement.storage.catalog.tokens import has_tokens
from escapement.storage.engine.base import Engine

_log = EventLog(__name__)

# How often a running broker looks for a request. One look is one system call.
_POLL_S: Final = 0.5


async def check_exposure(engine: Engine, directory: Path, where: str) -> None:
    """Check that a broker has a token, or gets one at its start. Quick, before the start.

    Args:
      directory: the data directory, which may have a request for a first token.
      where: the address that the operator gave, for the error.

    Raises:
      InvalidRequest: if it would have no token; the message says what to do.
    """
    if await when_connected(lambda: trio.to_thread.run_sync(has_tokens, engine)):
        return
    try:
        if BootstrapRequest.read(directory) is not None:
            return
        reason = ""
    except StorageError as error:
        reason = f" ({error}.)"
    raise InvalidRequest(
        f"The broker would listen on {where} without access control: its log has no tokens, so "
        f"everyone who reaches the port could do everything.{reason} Create the first token with "
        f"`escapement admin bootstrap --data {directory}`, or listen on 127.0.0.1, or allow it "
        "with --insecure."
    )


class Bootstrap:
    """The requests for a first token in the data directory of a broker.

    Args:
      find_broker: returns the broker of bundle 0, which changes the tokens of all bundles; None if
        this process does not run it. Requests then wait.
      required: whether the process may not serve without a token.
    """

    def __init__(
        self,
        engine: Engine,
        find_broker: Callable[[], Broker | None],
        directory: Path,
        required: bool,
    ) -> None:
        self._engine = engine
        self._find_broker = find_broker
        self._directory = directory
        self._required = required
        self._refused = ""  # the reason why the request that is there is not taken

    async def begin(self) -> None:
        """Take the request that is there, before the broker accepts connections.

        Raises:
          StorageError: if the broker needs a token and has none.
        """
        await self.take()
        if self._required and await self._is_open():
            raise StorageError(
                "The broker would listen to other machines without access control, because it "
                f"could not create the first token: {self._refused or 'the request is gone'}. Run "
                f"`escapement admin bootstrap --data {self._directory}` again."
            )

    async def _is_open(self) -> bool:
        """Return whether the log has no tokens."""
        broker = self._find_broker()
        if broker is not None:
            return broker.services.access.is_open
        return not await when_connected(lambda: trio.to_thread.run_sync(has_tokens, self._engine))

    async def run(self) -> None:
        """Take requests until cancelled."""
        while True:
            await trio.sleep(_POLL_S)
            await self.take()

    async def take(self) -> None:
        """Store the token of the request in the data directory, if there is one, and delete it."""
        try:
            request = BootstrapRequest.read(self._directory)
            if request is None:
                self._refused = ""
                return
            broker = self._find_broker()
            if broker is None:
                raise StorageError(
                    "another broker owns bundle 0 and changes the tokens. Run `escapement admin"
                    " bootstrap` with its data directory."
                )
            access = broker.services.access
            await broker.services.audit.carry_out(
                Request("tokens.bootstrap", request.role, described({"id": request.id})),
                Caller(access, origin=Origin("bootstrap")),
                _permitted,
                partial(access.bootstrap, request.role, request.id, request.digest),
            )
            BootstrapRequest.remove(self._directory)
        except (EscapementError, OSError) as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.warning("access.bootstrap_failed", "cannot create the first token: %s", error)
            return
        _log.info(
            "access.bootstrapped",
            "created the token %s of the superuser %s",
            request.id,
            request.role,
            role=request.role,
        )


async def _permitted() -> None:
    """Return: who can write to the data directory may create a superuser."""
