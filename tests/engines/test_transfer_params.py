"""Claim: `kv_transfer_params` never cross the router, in neither direction.

In an answer they reveal hosts, ports and block numbers. In a request they choose the host that a
decode engine dials and the memory it reads, and half of them kill the engine.
"""

from typing import Any

import aiohttp
import pytest

from tests.engines.conftest import Engines
from tests.engines.fleet import MODEL
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, SHORT_PROMPTS, ask, body

SECRETS = (b"transfer_params", b"remote_engine_id", b"remote_block_ids")
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
both_lengths = pytest.mark.parametrize(
    "text", [SHORT_PROMPTS[1], LONG_PROMPTS[1]], ids=["short", "long"]
)
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])


def _request(path: str, text: str, stream: bool) -> dict[str, Any]:
    if path == RESPONSES:
        return {"model": MODEL, "input": text, "max_output_tokens": 8, "stream": stream}
    if path == MESSAGES:
        messages = [{"role": "user", "content": text}]
        return {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": stream}
    return body(path, text, stream=stream)


@both_modes
@both_lengths
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_no_answer_holds_any(
    session: aiohttp.ClientSession, router: Service, path: str, text: str, stream: bool
) -> None:
    request = _request(path, text, stream)
    async with session.post(router.url + path, json=request) as response:
        raw = await response.read()
        sent = str(response.headers).encode() + raw
    assert response.status == 200, raw
    assert raw
    for secret in SECRETS:
        assert secret not in sent


@both_modes
@both_lengths
@pytest.mark.parametrize(
    "wrong", [{"model": "nope"}, {"max_tokens": 0}, {"max_tokens": 100_000}], ids=str
)
async def test_no_error_holds_any(
    session: aiohttp.ClientSession,
    router: Service,
    text: str,
    stream: bool,
    wrong: dict[str, Any],
) -> None:
    request = body(CHAT, text, stream=stream) | wrong
    async with session.post(router.url + CHAT, json=request) as response:
        raw = await response.read()
    assert 400 <= response.status < 500, raw
    for secret in SECRETS:
        assert secret not in raw


FOREIGN = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3, 4]],
    "remote_engine_id": "00000000-0000-0000-0000-000000000000",
    "remote_request_id": "cmpl-stolen",
    "remote_host": "127.0.0.1",
    "remote_port": 18601,
    "tp_size": 1,
    "remote_num_tokens": 128,
}
HOSTILE: tuple[dict[str, Any], ...] = (
    # Alone it ends the decode engine: AssertionError, num_external_tokens == 0.
    {"kv_transfer_params": {"do_remote_prefill": True}},
    {"kv_transfer_params": {"do_remote_decode": True}},
    {"kv_transfer_params": FOREIGN},
    {"kv_transfer_params": "do_remote_prefill"},
    {"kv_transfer_params": None, "ec_transfer_params": {"do_remote_prefill": True}},
    {"vllm_xargs": {"kv_transfer_params": "do_remote_prefill"}},
)


@both_lengths
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])
async def test_the_clients_own_are_harmless(
    session: aiohttp.ClientSession,
    engines: Engines,
    router: Service,
    path: str,
    hostile: dict[str, Any],
    text: str,
) -> None:
    living = [engine.process for engine in engines.all]
    expected = await ask(session, engines.decodes[0].url, path, body(path, text))
    answer = await ask(session, router.url, path, body(path, text) | hostile)
    assert answer.status == 200, answer.raw
    assert answer.words == expected.words
    assert [engine.process for engine in engines.all] == living
    assert all(engine.is_ready() for engine in engines.all)
