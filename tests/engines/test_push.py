"""Push beside test_connector_matrix.py: ids that clients give, and the control: a decode engine
gets nothing for another id."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.engines import observe
from tests.engines.connectors import Pair, pair_of
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, RESPONSES, ask, body


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with pair_of("push") as found:
        yield found


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_requests_under_one_id_of_their_clients_get_their_own_answers(
    session: aiohttp.ClientSession, pair: Pair, path: str
) -> None:
    """vLLM prefers X-Request-Id, save on /v1/responses. There the decode engine computes the
    prompts, because a prefill engine could write those of another request."""
    await pair.is_up(session)
    asked = [body(path, text, request_id="resp_mine") for text in LONG_PROMPTS[8:12]]
    alone = [await ask(session, pair.alone.url, path, each) for each in asked]
    salted = [each | {"cache_salt": f"{each['cache_salt']}x"} for each in asked]
    before = await observe.load(session, pair.alone)
    routed = await asyncio.gather(*(ask(session, pair.router.url, path, each) for each in salted))
    assert [each.words for each in routed] == [each.words for each in alone]
    after = await observe.settled(
        session, pair.engines.all, within=pair.connector.lease_seconds + 10
    )
    moved = 0 if path == RESPONSES else sum(each.prompt_tokens for each in routed)
    assert after[1].transferred - before.transferred == moved


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_a_response_is_moved(
    session: aiohttp.ClientSession, pair: Pair, stream: bool
) -> None:
    """vLLM does not read X-Request-Id there: both requests have a `request_id`."""
    await pair.is_up(session)
    for text in LONG_PROMPTS[::10]:
        await pair.compare(session, RESPONSES, text, stream=stream)


async def _by_hand(
    session: aiohttp.ClientSession, url: str, request: dict[str, Any], name: str
) -> dict[str, Any]:
    headers = {"x-request-id": name}
    async with session.post(url + COMPLETIONS, json=request, headers=headers) as response:
        assert response.status == 200
        answer: dict[str, Any] = orjson.loads(await response.read())
    return answer


@pytest.mark.parametrize("same", [True, False], ids=["one", "two"])
async def test_an_engine_gets_nothing_for_another_id(
    session: aiohttp.ClientSession, pair: Pair, same: bool
) -> None:
    """The control, and the last test: the two legs by hand, with one id and with two. The decode
    engine's blocks stay taken, also once its client has left (vllm#46283)."""
    request, name = body(COMPLETIONS, LONG_PROMPTS[7]), uuid.uuid4().hex
    ask_prefill = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    given = await _by_hand(session, pair.engines.prefill.url, request | ask_prefill, name)
    params = {"kv_transfer_params": given["kv_transfer_params"]}
    assert params["kv_transfer_params"]["transfer_mode"] == "push"
    decode = _by_hand(session, pair.alone.url, request | params, name if same else name[::-1])
    if same:
        assert (await decode)["usage"]["completion_tokens"] == 24
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(decode, 3)
    await observe.settled(
        session, pair.engines.all[: 1 + same], within=pair.connector.lease_seconds + 10
    )
