"""The peer of one connection: its role, and the checks of its rights."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from escapement.access.coverage import Coverage
from escapement.access.grant import Action, Grant
from escapement.access.pattern import ALL
from escapement.access.rights import Need
from escapement.broker.access.access import Access
from escapement.broker.access.audited import NOWHERE, Origin
from escapement.broker.access.needs import needs_of
from escapement.errors import AccessDenied
from escapement.protocol.commands import Command
from escapement.storage.catalog.tokens import TokenRecord


class Caller:
    """The peer of one connection.

    A caller without a role is one of a log without tokens. It may do everything until the log gets
    its first token.

    Args:
      certificate_role: the role that the verified certificate of the client names. It is the role
        of a client that sends no token.
      origin: where the requests of the caller come from, for the audit log.
    """

    def __init__(
        self, access: Access, certificate_role: str | None = None, origin: Origin = NOWHERE
    ) -> None:
        self.origin = origin
        self.is_admitted = False
        self.role: str | None = None
        self._access = access
        self._certificate_role = certificate_role
        self._token_id = ""  # "" if the role is that of a certificate

    def because(self, reason: str) -> Caller:
        """Return the caller of one request that has a reason of its own, "" if it has none."""
        assert self.is_admitted, "a request came before the handshake"
        if not reason:
            return self
        caller = copy(self)
        caller.origin = self.origin.because(reason)
        return caller

    async def admit(self, token: str) -> None:
        """Admit the caller with its token, "" if it sent none.

        Raises:
          Unauthenticated: if the log has tokens, and this is not one of them that is valid.
          StorageError: if the broker does not know the token, and cannot read the database or has
            lost its lease.
        """
        if self._access.may_be_new(token):
            await self._access.catch_up()
        if self._access.is_open:
            pass
        elif not token and self._certificate_role is not None:
            self.role = self._certificate_role
        else:
            record = self._access.authenticate(token)
            self.role, self._token_id = record.role, record.id
        self.is_admitted = True

    def verify(self) -> None:
        """Raise ``Unauthenticated`` unless the caller may still be connected."""
        if self.role is not None:
            if self._token_id:
                self._access.check(self._token_id)
        elif not self._access.is_open:
            self._access.authenticate("")

    @property
    def token(self) -> TokenRecord | None:
        """The token of the caller; None if its role is that of a certificate, or it has none."""
        return self._access.token(self._token_id) if self._token_id else None

    def grants(self) -> list[Grant]:
        """Return what the caller may do, by pattern."""
        if self.role is None:
            return [Grant("", ALL, frozenset(("admin",)))]
        return self._access.rights.of(self.role)

    async def permit(self, needs: Iterable[Need]) -> None:
        """Raise ``AccessDenied`` unless the caller may do all that is needed, also by new grants.

        Raises the errors of ``check`` and ``admit``.
        """
        if self.role is not None:  # otherwise they do not matter, and their names may be wrong
            needs = list(needs)
        try:
            self.check(needs)
        except AccessDenied:
            await self._access.catch_up()
            self.check(needs)

    def check(self, needs: Iterable[Need]) -> None:
        """Raise ``AccessDenied`` unless the caller may do all that is needed.

        Raises:
          Unauthenticated: if the caller may not be connected any more.
        """
        assert self.is_admitted, "a request came before the handshake"
        self.verify()
        if self.role is not None:
            self._access.rights.check(self.role, needs)

    def coverage(self, action: Action) -> Coverage:
        """Return on what the caller may carry out an action, to filter a listing."""
        if self.role is None:
            return Coverage([ALL])
        return self._access.rights.coverage(self.role, action)

    async def permit_command(self, command: Command) -> None:
        """Raise ``AccessDenied`` unless the caller may have a command carried out. See ``permit``.

        Raises:
          InvalidRequest: if the command does not say what it is about.
        """
        await self.permit(needs_of(command))
