"""Engines that refuse an API key: the router's, or the client's own."""

from pathlib import Path
from typing import Any

import pytest

from router.core.events import FellBack, LegFailed
from router.core.values import FailureKind, Role
from tests.net.engine import json_reply
from tests.net.harness import Harness
from tests.net.payloads import (
    COMPLETIONS,
    completion,
)

OK = json_reply({"choices": [{"text": "ok"}], "usage": {"completion_tokens": 1}})
NEVER_PROBED: dict[str, Any] = {"speed_probe_interval": 0}


@pytest.mark.parametrize("status", [401, 403])
async def test_engine_refusing_router_key_is_ejected(harness: Harness, status: int) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(
        one, other, engine_api_key="key", outlier_consecutive_failures=3, **NEVER_PROBED
    )
    one.answer_all(lambda call: call.send(json_reply({"error": "Unauthorized"}, status)))
    other.answer_all(lambda call: call.send(OK))
    for _ in range(12):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert [(f.endpoint, f.kind) for f in router.all(LegFailed)] == [
        (router.endpoint(one), FailureKind.UNAUTHORIZED)
    ] * 3
    assert {f.reason for f in router.all(FellBack)} == {"unauthorized"}
    listed = (await (await router.client()).get("/endpoints")).json
    assert [entry["exclusion"] for entry in listed] == ["ejected", None]
    assert "--engine-api-key" in listed[0]["cause"]


async def test_routers_key_refused_everywhere_is_502(harness: Harness) -> None:
    engine, router = await harness.single(engine_api_key="key")
    engine.answer_all(lambda call: call.send(json_reply({"error": "Unauthorized"}, 401)))
    answer = await router.ask(COMPLETIONS, completion(), (b"authorization", b"Bearer own"))
    assert answer.status == 502
    assert answer.error["type"] == "EngineError"
    assert (await router.record()).has_failed


async def test_engine_wanting_another_key_is_at_fault(harness: Harness, tmp_path: Path) -> None:
    """The client's key does not reach it, so the client cannot fix this."""
    engine, file = await harness.engine(), tmp_path / "keys"
    file.write_text("team-a 0123456789abcdef")
    router = await harness.router(engine, api_key_file=file)
    engine.answer_all(lambda call: call.send(json_reply({"error": "Unauthorized"}, 401)))
    bearer = (b"authorization", b"Bearer 0123456789abcdef")
    assert (await router.ask(COMPLETIONS, completion(), bearer)).status == 502


async def test_engine_refusing_a_clients_key_is_not_at_fault(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one, other, outlier_consecutive_failures=1)
    one.answer_all(lambda call: call.send(json_reply({"error": "Unauthorized"}, 401)))
    other.answer_all(lambda call: call.send(OK))
    statuses = [(await router.ask(COMPLETIONS, completion())).status for _ in range(4)]
    assert statuses == [401, 200] * 2
    assert router.all(LegFailed) == []


async def test_prefill_refusing_the_routers_key_is_skipped(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), engine_api_key="key")
    prefill.answer_all(lambda call: call.send(json_reply({"error": "Unauthorized"}, 401)))
    decode.answer_all(lambda call: call.send(OK))
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert [(f.leg, f.reason) for f in router.all(FellBack)] == [(Role.PREFILL, "unauthorized")]
