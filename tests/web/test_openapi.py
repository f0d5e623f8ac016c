"""The OpenAPI documents list all routes, and every allowed request gets a documented answer
(schemathesis)."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from router.core.routes import ROUTES
from router.net.background import model_finder
from tests.net.client import SECONDS
from tests.net.engine import json_reply
from tests.net.harness import Harness, Running
from tests.web.test_admin import admin_client

EXAMPLES = 4
ENDLESS = "/dashboard/events"
"""An event stream: its answer has no end."""

OF_OPERATORS = {"/endpoints", "/metrics", "/dashboard", ENDLESS}
STATES = {"/health", "/ready", "/version"}
MODELS = {"/v1/models", "/v1/models/{name}"}
RESPONSES = {"/v1/responses/{name}", "/v1/responses/{name}/cancel"}
ENGINES = {"/admin/engines", "/admin/engines/drain", "/admin/engines/undrain"}


async def running(harness: Harness, **more: Any) -> Running:
    """A router whose engine answers all."""
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    return await harness.router(engine, **more)


def ask_all(document: Any, url: str) -> None:
    """Each operation, with what the document allows and, where that is not everything, with what it
    does not."""
    import schemathesis  # noqa: PLC0415 - not everywhere

    schema: Any = schemathesis.openapi.from_dict(document)
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == ENDLESS:
            continue
        _ask(operation.as_strategy(), url)
        if operation.body or operation.query:
            _ask(operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE), url)


def _ask(cases: Any, url: str) -> None:
    from schemathesis.checks import not_a_server_error  # noqa: PLC0415
    from schemathesis.specs.openapi import checks  # noqa: PLC0415

    kept = (
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    )

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def answers(case: Any) -> None:
        response = case.call_and_validate(base_url=url, timeout=SECONDS, checks=kept)
        # By name: "default" stands for what engines refuse, and this one refuses nothing.
        assert str(response.status_code) in case.operation.definition.raw["responses"]
        if response.status_code >= 400:
            code = response.json()["error"].get("code", response.status_code)  # not Anthropic's
            assert code == response.status_code

    answers()


async def test_clients_get_the_documented_answers(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("schemathesis")
    monkeypatch.setattr(model_finder, "SECONDS_BETWEEN", 0.0)  # most cases name an unknown model
    router = await running(harness)
    document = (await (await router.client()).get("/openapi.json")).json
    assert document["paths"].keys() == ROUTES.keys() | MODELS | RESPONSES | STATES | OF_OPERATORS
    await asyncio.to_thread(ask_all, document, f"http://127.0.0.1:{router.port}")
    assert harness.engines[0].seen > 0


async def test_operators_get_the_documented_answers(harness: Harness) -> None:
    pytest.importorskip("schemathesis")
    router = await running(harness, admin_port=0)
    client = await admin_client(router)
    document = (await client.get("/openapi.json")).json
    assert document["paths"].keys() == STATES | OF_OPERATORS | ENGINES
    _, port = client.writer.get_extra_info("peername")
    await asyncio.to_thread(ask_all, document, f"http://127.0.0.1:{port}")
