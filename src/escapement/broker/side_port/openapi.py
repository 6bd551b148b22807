"""The OpenAPI document of /admin/v1, made from the table of verbs."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from escapement.broker.admin.admin import VERBS
from escapement.broker.side_port.parameters import parameters_of

PREFIX: Final = "/admin/v1"
_ERROR: Final = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "a code such as not_found"},
        "message": {"type": "string"},
        "retryable": {"type": "boolean"},
    },
    "required": ["error", "message", "retryable"],
}


def path_of(verb: str) -> str:
    """Return the path of a verb: that of ``topics.list`` is ``/admin/v1/topics/list``."""
    return f"{PREFIX}/{verb.replace('.', '/')}"


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document. It has a path for each verb."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "escapement administration",
            "version": version("escapement"),
            "description": (
                "The verbs of `escapement admin`. The body of a request has the arguments of the "
                "verb. Times and durations are milliseconds. Bytes are objects with base64 text."
            ),
        },
        "paths": {path_of(verb): {"post": _operation(verb)} for verb in VERBS},
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(verb: str) -> dict[str, Any]:
    parameters = parameters_of(VERBS[verb])
    required = [one.name for one in parameters if one.required]
    body: dict[str, Any] = {
        "type": "object",
        "properties": {one.name: one.schema for one in parameters},
        "additionalProperties": False,
    }
    if required:
        body["required"] = required
    noun, _, action = verb.partition(".")
    return {
        "operationId": verb,
        "tags": [noun],
        "summary": inspect.getdoc(VERBS[verb]) or f"{action} {noun}".replace("_", " "),
        "requestBody": {
            "required": bool(required),
            "content": {"application/json": {"schema": body}},
        },
        "responses": {
            "200": {
                "description": "The result of the verb.",
                "content": {"application/json": {"schema": {}}},
            },
            "default": {
                "description": "The request was refused, or failed.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
