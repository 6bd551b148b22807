"""Where a client has its token from: an argument, the environment, or a file.

The first of these that is given counts: the argument ``token``, the argument ``token_file``, the
variable ``ESCAPEMENT_TOKEN``, the variable ``ESCAPEMENT_TOKEN_FILE``. A file is read at each
connection, so a token can be replaced while the client runs. The token is checked before the
client connects. No error and no ``repr`` shows it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from escapement.access.token import Token
from escapement.errors import InvalidRequest, Unauthenticated

TOKEN_VARIABLE: Final = "ESCAPEMENT_TOKEN"
FILE_VARIABLE: Final = "ESCAPEMENT_TOKEN_FILE"


class TokenSource:
    """The source of a client's token."""

    def __init__(self, token: str | None = None, file: str | Path | None = None) -> None:
        """Choose the source.

        Raises:
          InvalidRequest: if both arguments are given, or one has a wrong type.
          Unauthenticated: if the token is mistyped.
        """
        if token is not None and file is not None:
            raise InvalidRequest("Pass token or token_file, not both.")
        if not isinstance(token, str | None):
            raise InvalidRequest(f"token must be a str, not {type(token).__name__}")
        if not isinstance(file, str | Path | None):
            raise InvalidRequest(f"token_file must be a path, not {type(file).__name__}")
        self._text, self._file, self._origin = token, file, "the argument token"
        if token is None and file is None:
            self._text, self._origin = os.environ.get(TOKEN_VARIABLE) or None, TOKEN_VARIABLE
            if self._text is None:
                self._file = os.environ.get(FILE_VARIABLE) or None
        self.read()

    def read(self) -> str:
        """Return the token; "" if there is none.

        Raises:
          Unauthenticated: if the token is mistyped, or its file cannot be read.
        """
        text, origin = self._text, self._origin
        if self._file is not None:
            origin = f"the file {self._file}"
            try:
                text = Path(self._file).read_text("utf-8")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not a text"
                raise Unauthenticated(
                    f"The token cannot be read from {origin}: {reason}. Check the path and its "
                    "permissions."
                ) from None
        if not text:
            return ""
        try:
            return Token.parse(text.strip()).text
        except Unauthenticated as error:
            raise Unauthenticated(f"In {origin}: {error}") from None
