"""A node on a virtual clock, whose blocking calls are made at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from escapement.broker.config import BrokerConfig
from escapement.broker.node.node import Node
from escapement.broker.runners import Runners
from escapement.storage.blocking import inline
from escapement.storage.engine.base import Engine
from escapement.storage.lease import Identity
from escapement.testing.clock import VirtualClock

_CONFIG: Final = BrokerConfig(seed=0)


def virtual_node(
    engine: Engine,
    data: Path,
    clock: VirtualClock,
    name: str = "a",
    *,
    runners: Runners | None = None,
    config: BrokerConfig = _CONFIG,
    bundles: int | None = None,
) -> Node:
    """Return a node with the address ``NAME:7650``, not started.

    Args:
      name: a hexadecimal digit.
      runners: of all brokers of the node; None: calls run at once.
      bundles: of a new database.
    """
    address = f"{name}:7650"
    used = runners or Runners.all_by(inline)
    identity = Identity(name * 32, address)
    return Node(engine, data, identity, address, clock, lambda: used, config, bundles=bundles)
