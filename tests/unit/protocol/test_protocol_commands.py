"""Commands arrive as they were sent, and carry errors and bodies of messages."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from escapement.errors import Busy, ProducerFenced, RemoteProtocolError
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as c
from escapement.protocol import limits
from support.messages.command_samples import BODY, COLUMN, SAMPLES, open_pair, pump


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            if y is None or x.tolist() != y.tolist():
                return False
        elif x != y:
            return False
    return True


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_every_command_arrives_as_it_was_sent(sample: c.Command) -> None:
    for role in sample.SENDERS:
        client, broker = open_pair()
        ends = (client, broker) if role == "client" else (broker, client)
        (arrived,) = pump(*ends, sample)
        assert same(arrived, sample)


def test_every_command_has_a_sample() -> None:
    kinds = {type(s) for s in SAMPLES} | {c.Hello, c.Welcome}
    assert kinds == set(c.COMMANDS.values())


def test_body_with_another_number_of_rows_than_its_columns_is_refused() -> None:
    short = MessageBatch(Blobs.of([b"x"])).encode()
    empty = MessageBatch(Blobs.of([])).encode()
    for publish in (
        c.Publish(1, 0, -1, COLUMN, None, short),
        c.Publish(1, 0, -1, None, COLUMN, short),
        c.Publish(1, 0, -1, None, None, empty),
        c.Publish(1, 0, -1, None, None, BODY + b"x"),
    ):
        with pytest.raises(RemoteProtocolError):
            publish.decode()
    with pytest.raises(RemoteProtocolError):
        c.Deliver(1, COLUMN, COLUMN, None, None, short).decode()


def test_refusal_carries_its_error_to_the_other_side() -> None:
    refused = c.Refused.because(ProducerFenced("x" * 9000), producer_id=3, sequence=7)
    assert isinstance(refused.error(), ProducerFenced)
    assert len(refused.message) == limits.MAX_MESSAGE_CHARS
    assert refused.write()
    assert c.Refused.because(Busy("later")).error().retryable
    unknown = c.Refused(1, 0, -1, "of_tomorrow", "hm", True).error()
    assert unknown.retryable
    assert str(unknown) == "hm"
