"""The answers of the gateway conform to its OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from escapement.gateway.app import OPERATIONS
from support.processes.http_server import HttpServerProcess

TOPIC = "public/default/contract"
MESSAGES = 4  # in this topic
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_document_is_valid_and_has_all_operations(gateway: HttpServerProcess) -> None:
    """B15: the OpenAPI document names each operation once."""
    document = httpx.get(f"{gateway.url}/openapi.json").json()
    validate(document)
    named = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert sorted(named) == sorted(one.name for one in OPERATIONS)


def test_answers_conform_to_the_document(gateway: HttpServerProcess) -> None:
    """B15: no request that the document describes, valid or not, gets an undocumented answer."""
    publish = f"{gateway.url}/v1/topics/{TOPIC}/messages"
    for _ in range(MESSAGES):
        httpx.post(publish, headers={"Escapement-Delay": "1h"}, content=b"x").raise_for_status()
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        check_answers(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), at_topic)
        check_answers(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), as_it_is)


def check_answers(cases: st.SearchStrategy[Case], change: Callable[[Case], None]) -> None:
    @seed(15)
    @settings(
        max_examples=10,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def answer_conforms(case: Case) -> None:
        change(case)
        case.call_and_validate(checks=CHECKS)

    answer_conforms()


def at_topic(case: Case) -> None:
    """Let a valid request name a topic and a message that exist, and not wait for messages."""
    names = dict(zip(("tenant", "namespace", "topic"), TOPIC.split("/"), strict=True))
    case.path_parameters.update(names)
    if "offset" in case.path_parameters:
        case.path_parameters["offset"] %= MESSAGES
    if case.operation.definition.raw["operationId"] == "receive":
        case.body["wait"] = "0s"


def as_it_is(case: Case) -> None:
    """Keep a wrong request as it is."""
