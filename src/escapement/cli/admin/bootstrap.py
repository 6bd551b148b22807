"""`escapement admin bootstrap`: the first token, on the machine of the broker."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

import click

from escapement.access.grant import check_role
from escapement.access.token import Token
from escapement.errors import StorageError
from escapement.storage.bootstrap_request import FILE_NAME, BootstrapRequest

# How long a running broker has to take the request. It looks twice a second.
_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05


@click.command(
    epilog="""\b
    Examples:
      escapement admin bootstrap --data /var/lib/escapement
      escapement admin bootstrap --role operator
    """
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default="escapement-data",
    envvar="ESCAPEMENT_DATA",
    show_default=True,
    show_envvar=True,
    help="Data directory of the broker.",
)
@click.option("--role", default="root", show_default=True, help="Name of the superuser.")
def bootstrap(data: Path, role: str) -> None:
    """Create the first token of a broker, of a superuser, and print it.

    Run it on the machine of the broker, as the broker's user. A running broker takes the request
    within a second, and one that is stopped when it starts. From then on the broker refuses clients
    without a token. Use the command again if all tokens of superusers are lost: if the role has
    two valid tokens, the older one is revoked.
    """
    token = Token.new()
    path = BootstrapRequest(check_role(role), token.id, token.digest).write(data)
    if _broker_runs(data):
        deadline_s = time.monotonic() + _TIMEOUT_S
        while path.exists():
            if time.monotonic() > deadline_s:
                raise StorageError(
                    f"The broker did not take {path} within {_TIMEOUT_S:g} s. Its log on stderr "
                    "says why. If several brokers share the database, only the owner of bundle 0 "
                    "takes requests: `escapement admin cluster status` shows which one it is. "
                    f"Delete the file {FILE_NAME}, and try again with that broker's directory."
                )
            time.sleep(_POLL_S)
        state = "is valid now"
    else:
        state = f"becomes valid when a broker starts on {data}"
    click.echo(token.text)
    click.echo(
        f"The token of the superuser {role} {state}. It is not shown again: keep it in a file "
        "that only you can read.",
        err=True,
    )


def _broker_runs(data: Path) -> bool:
    """Return whether a broker has locked the data directory."""
    try:
        fd = os.open(data / "broker.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
