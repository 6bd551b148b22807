"""The parameters of each verb, found in the source of its function.

A verb takes its arguments by calls such as ``given.text("topic")``, in its own function or in one
to which it passes ``given``. These calls are the only list of its parameters, so the OpenAPI
document is made from them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from escapement.broker.side_port.schemas import BYTES

_GIVEN: Final = "given"
# The methods of Arguments that take an argument: the JSON schema, and whether it is required.
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 0}
_NUMBERS: Final = {"type": "array", "items": _NUMBER}
_METHODS: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "text": (_TEXT, True),
    "optional_text": (_TEXT, False),
    "optional_texts": ({"type": "array", "items": _TEXT, "minItems": 1}, False),
    "texts": ({"type": "array", "items": _TEXT, "minItems": 1}, True),
    "row_ids": (
        {"type": "array", "items": {"oneOf": [{"type": "integer"}, _TEXT, BYTES]}, "minItems": 1},
        True,
    ),
    "topic_name": (_TEXT, True),
    "namespace_name": (_TEXT, True),
    "number": (_NUMBER, True),
    "optional_offset": (_NUMBER, False),
    "optional_number": ({"type": "integer", "minimum": 1}, False),
    "optional_numbers": (_NUMBERS, False),
    "delivery_key": ({**_NUMBERS, "minItems": 2, "maxItems": 2}, False),
    "blob": (BYTES, True),
    "optional_blob": (BYTES, False),
    "blob_or_none": (BYTES, False),
    "flag": ({"type": "boolean"}, False),
    "choice": (_TEXT, False),
    "optional_choice": (_TEXT, False),
    "map": ({"type": "object"}, False),
    "changes": ({"type": "object", "minProperties": 1}, True),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a verb."""

    name: str
    schema: dict[str, Any]
    required: bool


def parameters_of(verb: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a verb's function, in the order in which it takes them."""
    found: dict[str, Parameter] = {}
    for name, method, call, where in _takes(verb):
        schema, required = _METHODS[method]
        if method in ("choice", "optional_choice"):
            named = call.args[1]
            choices = where[named.id] if isinstance(named, ast.Name) else ast.literal_eval(named)
            schema = {**schema, "enum": list(choices)}
        found.setdefault(name, Parameter(name, schema, required))
    return list(found.values())


def _takes(function: Callable[..., Any]) -> Iterator[tuple[str, str, ast.Call, dict[str, Any]]]:
    """Yield the name, the method and the call of each argument that a function takes."""
    where: dict[str, Any] = function.__globals__
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for call in _calls(tree):
        target = call.func
        if isinstance(target, ast.Attribute):
            if isinstance(target.value, ast.Name) and target.value.id == _GIVEN and call.args:
                assert isinstance(call.args[0], ast.Constant), ast.unparse(call)
                yield str(call.args[0].value), target.attr, call, where
        elif isinstance(target, ast.Name) and any(
            isinstance(one, ast.Name) and one.id == _GIVEN for one in call.args
        ):
            yield from _takes(where[target.id])


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield all calls of a tree in the order of the source."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))
