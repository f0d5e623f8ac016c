"""Sibling replicas tell each other their requests, on the admin listener, with their own key."""

from pathlib import Path
from typing import Any

import pytest

from router.core.peer_loads import PeerReport, encode
from router.settings import SettingsError, load
from tests.net.client import Answer, request
from tests.net.engine import ScriptedEngine
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, STREAM, token
from tests.web.test_admin import admin_client

KEY = "the-key-of-all-replicas"
PEERS = "/admin/peers"
NOBODY = "http://127.0.0.1:9"


async def tell(router: Running, body: bytes, key: str | None = None) -> Answer:
    """POST a report, or what is none."""
    headers = () if key is None else ((b"authorization", f"Bearer {key}".encode()),)
    client = await admin_client(router)
    await client.send(request(PEERS, body, *headers))
    return await client.answer()


def admin_url(router: Running) -> str:
    """Where siblings tell."""
    assert router.server.admin is not None
    return f"http://127.0.0.1:{router.server.admin.socket.getsockname()[1]}"


async def shown(router: Running) -> Any:
    """What operators see."""
    return (await (await admin_client(router)).get(PEERS)).json


def known(router: Running, engine: ScriptedEngine) -> int:
    """The requests on an engine that a router knows of."""
    return router.router.fleet.ledger.known(router.endpoint(engine))


async def test_a_replica_counts_its_siblings_requests(harness: Harness) -> None:
    engine = await harness.engine()
    one = await harness.router(engine, admin_port=0, peers=[NOBODY], peer_key=KEY)
    other = await harness.router(engine, admin_port=0, peers=[admin_url(one)], peer_key=KEY)
    client = await other.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    await eventually(lambda: known(one, engine) == 1)
    assert one.router.fleet.ledger.in_flight(one.endpoint(engine)) == 0
    told = (await shown(other))["told"]
    assert told == [{"url": admin_url(one), "error": None}]
    text = (await (await admin_client(one)).get("/metrics")).body.decode()
    assert f'pd_router_endpoint_peer_requests{{endpoint="{engine.url}",role="decode"}} 1.0' in text
    call.stream(token("a"))
    call.end()
    await client.answer()
    await eventually(lambda: known(one, engine) == 0)


async def test_a_replica_that_is_given_its_own_address_notices(
    harness: Harness, own_port: int
) -> None:
    engine = await harness.engine()
    url = f"http://127.0.0.1:{own_port}"
    router = await harness.router(engine, admin_port=own_port, peers=[url])
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    siblings = router.router.replicas
    assert siblings is not None
    await eventually(lambda: siblings.siblings.shown()["told"] == [{"url": url, "error": None}])
    assert (await shown(router))["heard"] == []
    assert known(router, engine) == 1
    call.stream(token("a"))
    call.end()
    await client.answer()


async def test_reports_need_the_key_of_the_replicas(harness: Harness, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("operator an-operators-own-key\n")
    router = await harness.router(
        await harness.engine(), admin_port=0, peers=[NOBODY], peer_key=KEY, admin_key_file=keys
    )
    report = encode(PeerReport("a", 1, {}))
    assert (await tell(router, report)).status == 401
    assert (await tell(router, report, "an-operators-own-key")).status == 401
    assert (await tell(router, report, KEY)).status == 200
    client = await admin_client(router)
    bearer = (b"authorization", f"Bearer {KEY}".encode())
    await client.send(request("/metrics", None, bearer, method="GET"))
    assert (await client.answer()).status == 401


async def test_what_is_no_report_is_refused(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0, peers=[NOBODY])
    answer = await tell(router, b"{}")
    assert (answer.status, answer.error["type"]) == (400, "BadRequestError")


async def test_without_siblings_there_is_no_such_route(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    assert (await tell(router, b"{}")).status == 404


async def test_a_sibling_with_another_key_is_logged_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.engine()
    one = await harness.router(engine, admin_port=0, peers=[NOBODY], peer_key=KEY)
    with caplog.at_level("WARNING"):
        other = await harness.router(
            engine, admin_port=0, peers=[admin_url(one)], peer_key="another-key"
        )
        mine = other.router.replicas
        assert mine is not None
        await eventually(lambda: _error(mine.siblings.shown()) is not None)
    said = [r.getMessage() for r in caplog.records if admin_url(one) in r.getMessage()]
    assert said == [
        f"sibling replica {admin_url(one)}: it does not accept the key: give all replicas the "
        "same --peer-key"
    ]


def _error(shown: Any) -> object:
    return shown["told"][0]["error"] if shown["told"] else None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"peers": NOBODY}, "--peers: needs --admin-port"),
        ({"dns_peers": "r:9000"}, "--dns-peers: needs --admin-port"),
        ({"peer_key": "k", "admin_port": "9"}, "--peer-key: needs --peers or --dns-peers"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load({"decode": "http://d0", **flags})


def test_with_admin_keys_replicas_need_theirs(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("operator an-operators-own-key\n")
    flags = {"decode": "http://d0", "admin_port": "9", "peers": NOBODY}
    with pytest.raises(SettingsError, match="--peer-key: is needed with --admin-key-file"):
        load({**flags, "admin_key_file": str(keys)})
