"""Users of a MySQL or MariaDB server that have exactly the given rights."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from escapement.storage.engine.address import MysqlAddress
from support.database.servers import SqlServer

# What a broker's user needs once `escapement migrate` has run.
FOUR_RIGHTS: Final = "SELECT, INSERT, UPDATE, DELETE"
PASSWORD: Final = "p/w@rd:secret"


@contextmanager
def account(server: SqlServer, url: str, *grants: str) -> Iterator[MysqlAddress]:
    """Provide the address of a database for a new user, who is deleted afterwards.

    Args:
      url: the URL of the database for an administrator.
      grants: rights, such as "SELECT" for the database or "SELECT ON *.*".
    """
    address = replace(MysqlAddress.parse(url), user=f"u{uuid.uuid4().hex[:12]}", password=PASSWORD)
    server.admin(f"CREATE USER {address.user}@'%' IDENTIFIED BY '{PASSWORD}'")
    try:
        for rights in grants:
            where = "" if " ON " in rights else f" ON {address.database}.*"
            server.admin(f"GRANT {rights}{where} TO {address.user}@'%'")
        yield address
    finally:
        server.admin(f"DROP USER {address.user}@'%'")
