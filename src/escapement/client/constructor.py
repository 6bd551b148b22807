"""Constructors that applications must not call, such as that of ``Inbox``.

Applications get these objects from methods, such as ``Broker.consumer``.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., None])


def internal(constructor: F) -> F:
    """Hide the parameters of a constructor from ``help``, which cannot hide a constructor."""
    hidden: dict[str, Any] = {
        "__doc__": "Internal: see the first line of the class.",
        "__signature__": Signature([Parameter("self", Parameter.POSITIONAL_ONLY)]),
    }
    for name, value in hidden.items():
        setattr(constructor, name, value)
    return constructor
