"""The settings of a broker are checked before it starts."""

from __future__ import annotations

import pytest

from escapement.broker.config import BrokerConfig
from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress


def test_two_databases_of_one_name_with_message_tables_are_refused() -> None:
    """The topic table://shop/mails would be ambiguous."""
    one, two = (MysqlAddress.parse(f"mysql://app:hidden@{host}/shop") for host in ("one", "two"))
    with pytest.raises(InvalidRequest) as refusal:
        BrokerConfig(tables=(one, two))
    assert "mysql://app@one:3306/shop and mysql://app@two:3306/shop" in str(refusal.value)
    assert "hidden" not in str(refusal.value)
    assert BrokerConfig(tables=(one,), outboxes=(one, two)).tables == (one,)
