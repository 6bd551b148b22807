"""Checks that a MySQL or MariaDB server keeps committed messages durably, with advice if not.

A broker checks this once, when it starts. A setting that would lose messages, or let the server
refuse our transactions, raises ``UnfitDatabase``. A setting that only weakens durability, perhaps
on purpose, is logged as a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from escapement.errors import StorageReadOnly, UnfitDatabase
from escapement.event_log import EventLog
from escapement.storage.engine.base import Connection

_log = EventLog(__name__)

# The smallest ``max_allowed_packet``. A group commit (one transaction for many requests) of about
# 4 MB fits into it together with a message of the largest size.
MIN_PACKET_BYTES: Final = 16 * 1024 * 1024
# The oldest versions with a persistent AUTO_INCREMENT, and with collations that compare trailing
# spaces (nopad).
OLDEST_MYSQL: Final = (8, 0)
OLDEST_MARIADB: Final = (10, 6)

# The server variables that are checked.
_ASKED: Final = (
    "version",
    "default_storage_engine",
    "read_only",
    "super_read_only",
    "innodb_read_only",
    "max_allowed_packet",
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_method",
    "innodb_doublewrite",
    "sync_binlog",
    "log_bin",
    "binlog_format",
)


def check_fitness(connection: Connection, location: str) -> None:
    """Check the settings and the tables of the server.

    Args:
      location: the address of the database, for messages.

    Raises:
      UnfitDatabase: with the first reason why the server is unfit.
      StorageReadOnly: if the server is read-only at the moment. The check may be repeated later.
    """
    has = server_settings(connection)
    if (read_only := why_read_only(has)) is not None:
        raise StorageReadOnly(f"{location}: {read_only}")
    for problem in problems(has, connection):
        raise UnfitDatabase(f"{location}: {problem}")
    for risk in durability_risks(has):
        _log.warning(
            "database.unsafe_setting",
            "%s: %s",
            location,
            risk.text,
            database=location,
            setting=risk.setting,
        )


class Risk(NamedTuple):
    """A setting under which the server can lose a commit that it has confirmed."""

    setting: str
    problem: str
    remedy: str

    @property
    def text(self) -> str:
        return f"{self.problem} {self.remedy}"


def server_settings(connection: Connection) -> dict[str, str]:
    """Return the server variables that are checked. A server lacks some of them."""
    asked = ", ".join(f"'{name}'" for name in _ASKED)
    rows = connection.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({asked})").rows
    return {str(name).lower(): str(value) for name, value in rows}


def why_read_only(has: Mapping[str, str]) -> str | None:
    """Return why the server takes no writes, or None if it does."""
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if has.get(name, "OFF") not in ("OFF", "0"):
            return (
                f"the server takes no writes: {name} is {has[name]}; set it to OFF, or"
                " use the primary server if this is a replica"
            )
    return None


def problems(has: Mapping[str, str], connection: Connection) -> Iterator[str]:
    """Yield each reason why the server, or the database, cannot keep the log."""
    yield from _problems_of_settings(has)
    yield from _problems_of_engines(connection)


def durability_risks(has: Mapping[str, str]) -> Iterator[Risk]:
    """Yield each setting under which a confirmed commit can be lost when the machine crashes."""
    flush = has["innodb_flush_log_at_trx_commit"]
    if flush not in ("1", "3"):  # 3, of MariaDB, also waits for the disk
        yield Risk(
            "innodb_flush_log_at_trx_commit",
            f"innodb_flush_log_at_trx_commit is {flush}. If the server's machine crashes, the last"
            " second of confirmed messages can be lost.",
            "Set it to 1.",
        )
    # With a binary log, a crashed server keeps only the commits that this log has.
    sync = has.get("sync_binlog", "1")
    if has.get("log_bin") == "ON" and sync != "1":
        yield Risk(
            "sync_binlog",
            f"sync_binlog is {sync}. If the server's machine crashes, confirmed messages that the"
            " binary log lacks can be lost.",
            "Set it to 1.",
        )
    method = has.get("innodb_flush_method", "")
    if method.lower() in ("nosync", "littlesync"):
        yield Risk(
            "innodb_flush_method",
            f"innodb_flush_method is {method}, which does not wait for the disk. If the server's"
            " machine crashes, the database can be damaged.",
            "Set it to O_DIRECT.",
        )
    doublewrite = has.get("innodb_doublewrite", "ON")
    if doublewrite.upper() in ("OFF", "0", "DETECT_ONLY"):
        yield Risk(
            "innodb_doublewrite",
            f"innodb_doublewrite is {doublewrite}. If the server's machine crashes, pages that were"
            " half written are damaged.",
            "Set it to ON, unless the file system writes whole pages.",
        )


def _problems_of_settings(has: Mapping[str, str]) -> Iterator[str]:
    version = has["version"]
    mariadb = "mariadb" in version.lower()
    oldest = OLDEST_MARIADB if mariadb else OLDEST_MYSQL
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < oldest:
        brand = "MariaDB" if mariadb else "MySQL"
        yield f"{brand} {version} is too old; it must be {oldest[0]}.{oldest[1]} or newer"
    if has["default_storage_engine"].lower() != "innodb":
        yield (
            f"default_storage_engine is {has['default_storage_engine']}, which has no durable "
            "transactions; set it to InnoDB"
        )
    if int(has["max_allowed_packet"]) < MIN_PACKET_BYTES:
        yield (
            f"max_allowed_packet is {has['max_allowed_packet']} bytes, too small for a group of "
            f"messages; SET GLOBAL max_allowed_packet = {4 * MIN_PACKET_BYTES}, and set it in the "
            "server's configuration file"
        )
    if has.get("log_bin") == "ON" and has.get("binlog_format") == "STATEMENT":
        yield "binlog_format is STATEMENT, which refuses READ COMMITTED; set it to ROW or MIXED"


def _problems_of_engines(connection: Connection) -> Iterator[str]:
    innodb = connection.execute(
        "SELECT SUPPORT FROM information_schema.ENGINES WHERE ENGINE = 'InnoDB'"
    ).rows
    if not innodb or innodb[0][0] not in ("YES", "DEFAULT"):
        yield "the server has no InnoDB, its only engine with durable transactions; enable InnoDB"
    other = connection.execute(
        "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
        "AND TABLE_TYPE = 'BASE TABLE' AND ENGINE <> 'InnoDB' LIMIT 1"
    ).rows
    for table, engine in other:
        yield (
            f"the table {table} uses {engine}, which has no durable transactions; convert it "
            f"(ALTER TABLE {table} ENGINE=InnoDB) or give escapement a database of its own"
        )
