"""The OpenAPI document of /admin/v1, made from the table of verbs."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from escapement.broker.access.audited import UNRECORDED
from escapement.broker.admin.admin import VERBS
from escapement.broker.side_port.access import REASON_HEADER
from escapement.broker.side_port.parameters import parameters_of
from escapement.broker.side_port.refusals import Error
from escapement.broker.side_port.schemas import Schemas
from escapement.http.statuses import codes_by_status
from escapement.protocol.limits import MAX_REASON_CHARS

PREFIX: Final = "/admin/v1"


def path_of(verb: str) -> str:
    """Return the path of a verb: that of ``topics.list`` is ``/admin/v1/topics/list``."""
    return f"{PREFIX}/{verb.replace('.', '/')}"


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document. It has a path for each verb."""
    schemas = Schemas()
    paths = {path_of(verb): {"post": _operation(verb, schemas)} for verb in VERBS}
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
        "paths": paths,
        # A log without tokens needs none.
        "security": [{}, {"token": []}],
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(verb: str, schemas: Schemas) -> dict[str, Any]:
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
        "parameters": [] if verb in UNRECORDED else [_REASON],
        "requestBody": {
            "required": bool(required),
            "content": {"application/json": {"schema": body}},
        },
        "responses": {
            "200": _response("The result of the verb.", schemas.of_result(VERBS[verb])),
            **{
                str(int(status)): _response(f"{status.phrase}: {codes}.", schemas.of(Error))
                for status, codes in codes_by_status().items()
            },
        },
    }


_REASON: Final = {
    "name": REASON_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": MAX_REASON_CHARS},
    "description": "Why the request is made; the audit log shows it.",
}


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
