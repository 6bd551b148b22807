"""Rows of message tables that are acknowledged by their ids, with a test peer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest

import escapement
from escapement.cli.main import run
from escapement.errors import InvalidRequest
from escapement.protocol import commands as wire
from escapement.sync import connect as connect_sync
from support.client_peer import Peer, connect, on_both
from support.listening_peer import listening


def sent(peer: Peer) -> list[Mapping[str, Any]]:
    return [command.arguments for command in peer.heard_of(wire.Admin)]


@on_both
async def test_only_rows_that_were_not_acknowledged_before_count() -> None:
    """V17: acknowledging by a list of ids is idempotent, and returns how many took effect."""
    async with Peer.running() as peer, connect(peer) as broker:
        peer.rows = {1, 2, 3}
        assert await broker.ack_rows("shop.mails", [1, 2, 9]) == 2
        assert await broker.ack_rows("table://shop/mails", [1, 2, 3]) == 1
        assert await broker.ack_rows("shop.mails", []) == 0
        assert sent(peer) == [
            {"topic": "table://shop/mails", "ids": [1, 2, 9]},
            {"topic": "table://shop/mails", "ids": [1, 2, 3]},
        ]


@on_both
async def test_ids_of_all_types_are_sent_as_numbers_bytes_or_text() -> None:
    key = UUID("123e4567-e89b-12d3-a456-426655440000")
    ids = [7, np.int64(8), 2**64 - 1, 2**64, "a", b"\xff", bytearray(b"b"), key]
    ids += [Decimal("1.50"), 0.5, datetime(2024, 2, 29, 12, 30)]
    async with Peer.running() as peer, connect(peer) as broker:
        await broker.ack_rows("shop.mails", ids)
        await broker.ack_rows("shop.mails", np.array([1, 2]))
        first, second = [arguments["ids"] for arguments in sent(peer)]
        assert first[:4] == [7, 8, 2**64 - 1, "18446744073709551616"]
        assert first[4:] == ["a", b"\xff", b"b", str(key), "1.50", "0.5", "2024-02-29 12:30:00"]
        assert second == [1, 2]


@on_both
async def test_many_and_long_ids_are_sent_in_several_requests() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        peer.rows = set(range(25_000))
        assert await broker.ack_rows("shop.mails", range(-5, 25_000)) == 25_000
        assert [len(arguments["ids"]) for arguments in sent(peer)] == [10_000, 10_000, 5_005]
        peer.heard.clear()
        texts = [f"{number}{'ü' * 3000}" for number in range(500)]
        peer.rows = set(texts)
        assert await broker.ack_rows("shop.mails", texts) == 500
        assert len(sent(peer)) == 12


@pytest.mark.parametrize(
    ("table", "ids", "match"),
    [
        ("mails", [1], "Write it like shop.my_message"),
        ("shop/mails", [1], "Write it like shop.my_message"),
        ("shop.", [1], "Write it like shop.my_message"),
        ("a.b.c", [1], "Write it like shop.my_message"),
        (7, [1], "Write it like shop.my_message"),
        ("shop.mails", "17", "must be a list"),
        ("shop.mails", 17, "must be a list"),
        ("shop.mails", [True], "True cannot be the id of a row"),
        ("shop.mails", [1, None], "None cannot be the id of a row"),
        ("shop.mails", [(1, 2)], r"\(1, 2\) cannot be the id of a row"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    table: Any, ids: Any, match: str
) -> None:
    async def ack() -> None:
        async with Peer.running() as peer, connect(peer) as broker:
            with pytest.raises(InvalidRequest, match=match):
                await broker.ack_rows(table, ids)
            assert sent(peer) == []

    on_both(ack)("trio")


def test_blocking_client_acknowledges_rows() -> None:
    with listening() as (peer, _, url), connect_sync(url) as broker:
        peer.rows = {1, 2}
        assert broker.ack_rows("shop.mails", [1, 2, 3]) == 2


def test_command_prints_how_many_rows_it_acknowledged(capsys: pytest.CaptureFixture[str]) -> None:
    """V17."""
    with listening() as (peer, _, url):
        peer.rows = {"1", "2", b"\xff\x00"}
        at = ["--broker", url.removeprefix("escapement://")]
        for words, said in (
            (["1", "2", "9"], "acknowledged 2 rows\n"),
            (["1", "2"], "acknowledged 0 rows\n"),
            (["--hex", "0xff00", "ab"], "acknowledged 1 row\n"),
        ):
            assert run(["tables", "ack", "shop.mails", *words, *at]) == 0
            assert capsys.readouterr().out == said
        assert run(["tables", "ack", "shop.mails", "--hex", "xy", *at]) == 2
        assert "'xy' is not hexadecimal" in capsys.readouterr().err
        assert run(["tables", "ack", "shop.", "1", *at]) == 1
        assert "'shop.' does not name a message table" in capsys.readouterr().err


def test_ids_cannot_be_a_mapping() -> None:
    with listening() as (_, _, url), connect_sync(url) as broker:
        with pytest.raises(escapement.InvalidRequest, match="must be a list"):
            broker.ack_rows("shop.mails", {1: 2})
