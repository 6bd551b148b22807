"""The JSON schemas of the results of verbs, made from the return types of their functions.

A type that has a name, such as a typed dictionary, gets a schema of its own among the components of
the document, and other schemas refer to it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from escapement.broker.admin.result import Fields
from escapement.storage.catalog.policy import Policy

# Bytes in JSON, as arguments and in results (``json_values.py``).
BYTES: Final = {
    "type": "object",
    "properties": {"base64": {"type": "string", "format": "byte"}},
    "required": ["base64"],
}
_SIMPLE: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: BYTES,
    NoneType: {"type": "null"},
    Any: {},
}


class Schemas:
    """The schemas of types.

    Attributes:
      components: the schemas of named types, by name.
    """

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}

    def of_result(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return the schema of what a function returns."""
        return self.of(get_type_hints(function, include_extras=True)["return"])

    def of(self, type_: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        if type_ in _SIMPLE:
            return _SIMPLE[type_]
        origin, arguments = get_origin(type_), get_args(type_)
        if origin is Annotated:
            (fields,) = arguments[1:]
            assert isinstance(fields, Fields), type_
            return {"allOf": [self._component(one) for one in fields.classes]}
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin is UnionType:
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        return self._component(type_)

    def _component(self, class_: type) -> dict[str, Any]:
        """Return a reference to the schema of a class with fields."""
        name = class_.__name__
        if name not in self.components:
            self.components[name] = {}  # taken
            self.components[name] = self._fields(class_)
        return {"$ref": f"#/components/schemas/{name}"}

    def _fields(self, class_: type) -> dict[str, Any]:
        types = get_type_hints(class_)
        found: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.of(types[name]) for name in _names(class_)},
        }
        if required := sorted(_required(class_)):
            found["required"] = required
        return found | {"description": inspect.cleandoc(class_.__doc__ or "")}


def _names(class_: type) -> list[str]:
    if issubclass(class_, Policy):
        return class_.names()
    if dataclasses.is_dataclass(class_):
        return [one.name for one in dataclasses.fields(class_)]
    return list(get_type_hints(class_))


def _required(class_: type) -> list[str]:
    if not is_typeddict(class_):
        return _names(class_)
    # Python's own ``__required_keys__`` is wrong in modules that postpone annotations.
    types = get_type_hints(class_, include_extras=True)
    return [name for name, type_ in types.items() if get_origin(type_) is not NotRequired]
