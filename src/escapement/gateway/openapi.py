"""The OpenAPI document of the gateway, made from its operations."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

import msgspec

from escapement.gateway.operation import BYTES, JSON, Operation, header_name
from escapement.gateway.problem import MEDIA_TYPE, Problem
from escapement.http.statuses import codes_by_status

PREFIX: Final = "/v1/topics/{tenant}/{namespace}/{topic}"
_REFERENCE: Final = "#/components/schemas/{name}"
_PATH_SCHEMAS: Final = {
    "offset": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
}
# Names of tenants, namespaces, topics and subscriptions.
_NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,200}$"}


def document(groups: Mapping[str, list[Operation]]) -> dict[str, Any]:
    """Return the OpenAPI document of some groups of operations, each with a name."""
    operations = [one for group in groups.values() for one in group]
    types = {Problem} | {
        one
        for operation in operations
        for one in (operation.headers, operation.query, operation.body, operation.result)
        if one not in (None, bytes)
    }
    ordered = sorted(types, key=lambda one: str(one.__name__))
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    references = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for tag, group in groups.items():
        for operation in group:
            described = _operation(operation, references, components)
            at_path = paths.setdefault(PREFIX + operation.path, {})
            at_path[operation.method.lower()] = {"tags": [tag]} | described
    for operation in operations:
        for one in (operation.headers, operation.query):
            if one is not None:
                components.pop(one.__name__, None)  # its fields are parameters
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "escapement gateway",
            "version": version("escapement"),
            "description": "Send, look at, change, receive and acknowledge delayed messages.",
        },
        "tags": [{"name": tag} for tag in groups],
        "paths": paths,
        # A broker without access control needs none.
        "security": [{}, {"token": []}],
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    operation: Operation, references: dict[type, Any], components: dict[str, Any]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *_path_parameters(operation.path),
            *_parameters(operation.headers, "header", components),
            *_parameters(operation.query, "query", components),
        ],
        "responses": {str(operation.status): _success(operation, references)}
        | {
            str(int(status)): {
                "description": f"{status.phrase}: {codes}.",
                "content": {MEDIA_TYPE: {"schema": references[Problem]}},
            }
            for status, codes in codes_by_status().items()
        },
    }
    if operation.body is bytes:
        described["requestBody"] = {"content": {BYTES: {}}}
    elif operation.body is not None:
        content = {JSON: {"schema": references[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in (PREFIX + path).split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS.get(name, _NAME)}
        for name in names
    ]


def _parameters(
    type_: type[msgspec.Struct] | None, place: str, components: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the fields of a type as parameters in a place, such as "query"."""
    if type_ is None:
        return []
    fields: dict[str, Any] = components[type_.__name__]["properties"]
    return [
        {"name": header_name(name) if place == "header" else name, "in": place}
        | {"required": False, "schema": _without_null(schema)}
        for name, schema in fields.items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: it is left out, but never null."""
    others = [one for one in schema.get("anyOf", [schema]) if one != {"type": "null"}]
    (one,) = others
    return {name: value for name, value in one.items() if value is not None}


def _success(operation: Operation, references: dict[type, Any]) -> dict[str, Any]:
    if operation.result is None:
        return {"description": "Done."}
    if operation.result is bytes:
        content: dict[str, Any] = {BYTES: {}}
    else:
        content = {JSON: {"schema": references[operation.result]}}
    return {"description": "The result.", "content": content}
