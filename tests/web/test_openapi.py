"""Whatever operations are asked that their OpenAPI document allows, they answer, or refuse in
OpenAI's shape (schemathesis)."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.net.client import SECONDS
from tests.net.engine import json_reply
from tests.net.harness import Harness

EXAMPLES = 20
ENDLESS = "/dashboard/events"
"""An event stream: its answer has no end."""


def _ask_all(schema: Any, url: str) -> int:
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == ENDLESS:
            continue
        asked += 1

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def answers(case: Any) -> None:
            response = case.call(base_url=url, timeout=SECONDS)
            status = response.status_code
            assert status < 500 or case.path == "/ready", response.text
            if status >= 400:  # the document names no errors: they have OpenAI's shape everywhere
                assert response.json()["error"]["code"] == status

        answers()
    return asked


async def test_no_operation_fails_whatever_is_asked(harness: Harness) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    url = f"http://127.0.0.1:{router.port}"
    document = (await (await router.client()).get("/openapi.json")).json
    schema = schemathesis.openapi.from_dict(document)
    asked = await asyncio.to_thread(_ask_all, schema, url)
    assert asked >= 8
