"""The control of Mooncake in test_connector_matrix.py: an answer is made of what was kept under its
transfer id."""

import uuid
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.engines import observe
from tests.engines.connectors import Pair, pair_of
from tests.engines.fleet import MOONCAKE_SPECS
from tests.engines.service import Service
from tests.engines.traffic import COMPLETIONS, ask, body

BOOTSTRAP = f"http://127.0.0.1:{MOONCAKE_SPECS[0].side_channel}"


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with pair_of("mooncake") as found:
        yield found


async def _post(session: aiohttp.ClientSession, url: str, request: dict[str, Any]) -> Any:
    async with session.post(url + COMPLETIONS, json=request) as response:
        answer = orjson.loads(await response.read())
        assert response.status == 200, answer
    return answer


async def _keep(session: aiohttp.ClientSession, engine: Service, request: dict[str, Any]) -> str:
    """Let a prefill engine keep a prompt by hand. Returns its transfer id."""
    name = f"xfer-{uuid.uuid4().hex}"
    params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name}
    answer = await _post(
        session, engine.url, request | {"max_tokens": 1, "kv_transfer_params": params}
    )
    assert answer["kv_transfer_params"] is None
    return name


async def _load(session: aiohttp.ClientSession, transfer_id: str) -> dict[str, Any]:
    async with session.get(f"{BOOTSTRAP}/query") as response:
        listed = await response.json()
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_bootstrap_addr": BOOTSTRAP,
        "remote_engine_id": listed["0"]["engine_id"],
        "transfer_id": transfer_id,
    }


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "another"])
async def test_what_was_kept_is_what_the_answer_is_made_of(
    session: aiohttp.ClientSession, pair: Pair, is_own: bool
) -> None:
    """With another prompt's transfer id, the tokens differ."""
    first, second = (
        body(COMPLETIONS, "") | {"prompt": list(range(start, start + 200))} for start in (100, 500)
    )
    decode = pair.alone
    alone = await ask(session, decode.url, COMPLETIONS, first)
    names = [await _keep(session, pair.engines.prefill, each) for each in (first, second)]
    again = first | {"cache_salt": uuid.uuid4().hex}
    loaded = again | {"kv_transfer_params": await _load(session, names[not is_own])}
    before = await observe.load(session, decode)
    answer = await ask(session, decode.url, COMPLETIONS, loaded)
    after = await observe.load(session, decode)
    assert after.transferred - before.transferred == 200
    assert (answer.token_ids == alone.token_ids) is is_own
    await observe.settled(session, pair.engines.all, within=pair.connector.lease_seconds + 10)
