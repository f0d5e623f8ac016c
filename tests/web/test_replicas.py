"""Sibling replicas report their requests to each other, on the admin listener, with their own
key."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import dns.asyncresolver
import pytest

from router.core.events import PrefixesHeld
from router.core.prefix.keys import scheme
from router.core.replicas import MAX_LINE_BYTES, PeerReport, encode_history, encode_report
from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint, Role
from router.discovery import dns as discovery_dns
from router.net.replicas import stream
from router.net.replicas.stream import MAX_BEHIND, SiblingStream
from router.settings import SettingsError, load
from router.web import admin
from router.web.replicas import PeersCall
from tests.discovery import dns_server
from tests.net.client import Answer, Client, request
from tests.net.engine import ScriptedEngine
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, token
from tests.web.test_admin import admin_client, admin_url

KEY = "the-key-of-all-replicas"
PEERS = "/admin/peers"
FOR_EVER = 3600.0
NOBODY = "http://127.0.0.1:9"
PROMPTS = {"prompts": True, "dropped": 0}
NO_PROMPTS = {"prompts": False, "dropped": 0}

LONG = completion("A word. " * 400, stream=True)
"""Of 800 estimated tokens."""

PROMPT = PrefixKeys((1, 2), (128, 256))


async def tell(router: Running, body: bytes, key: str | None = None) -> Answer:
    """POST a report, or an invalid one."""
    headers = () if key is None else ((b"authorization", f"Bearer {key}".encode()),)
    client = await admin_client(router)
    await client.send(request(PEERS, body, *headers))
    return await client.answer()


async def shown(router: Running) -> Any:
    """What operators see."""
    return (await (await admin_client(router)).get(PEERS)).json


def known(router: Running, engine: ScriptedEngine) -> int:
    """The requests on an engine that a router knows of."""
    return router.router.fleet.ledger.known(router.endpoint(engine))


async def test_a_replica_counts_its_siblings_requests(harness: Harness) -> None:
    engine, one = await harness.single(admin_port=0, peers=[NOBODY], peer_key=KEY)
    other = await harness.router(engine, admin_port=0, peers=[admin_url(one)], peer_key=KEY)
    client = await other.send(COMPLETIONS, STREAM)
    call = await engine.call()
    await eventually(lambda: known(one, engine) == 1)
    assert one.router.fleet.ledger.in_flight(one.endpoint(engine)) == 0
    told = (await shown(other))["told"]
    name = (await shown(one))["replica"]
    assert told == [
        {
            "url": admin_url(one),
            "is_self": False,
            "error": None,
            **PROMPTS,
            "replicas": [name],
        }
    ]
    text = (await (await admin_client(one)).get("/metrics")).body.decode()
    assert f'pd_router_endpoint_peer_requests{{endpoint="{engine.url}",role="decode"}} 1.0' in text
    call.stream_whole(token("a"), DONE)
    await client.answer()
    await eventually(lambda: known(one, engine) == 0)


async def test_own_address_is_noticed_by_a_replica(harness: Harness, own_port: int) -> None:
    engine = await harness.engine()
    url = f"http://127.0.0.1:{own_port}"
    router = await harness.router(engine, admin_port=own_port, peers=[url])
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    siblings = router.router.replicas
    assert siblings is not None
    names = (siblings.siblings.replica,)
    told = [{"url": url, "is_self": True, "error": None, **NO_PROMPTS, "replicas": names}]
    await eventually(lambda: siblings.siblings.shown()["told"] == told)
    assert (await shown(router))["heard"] == []
    assert known(router, engine) == 1
    call.stream_whole(token("a"), DONE)
    await client.answer()


SERVICE = "pd-router-admin.default.svc.cluster.local"
"""A headless service: its name leads to the addresses of all replicas."""


async def test_replicas_are_found_by_the_name_of_a_headless_service_until_they_leave_it(
    harness: Harness, own_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_dns, "SHORTEST_SECONDS", 0.05)
    server = dns_server.Server()
    server.ttl = 0
    server.put(SERVICE, "A", ["127.0.0.1", "127.0.0.2"])
    engine = await harness.engine()
    async with dns_server.serving(server):
        system = server.resolver()
        monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: system)
        one, other = [
            await harness.router(
                engine,
                admin_host=address,
                admin_port=own_port,
                dns_peers=f"{SERVICE}:{own_port}",
                peer_key=KEY,
            )
            for address in ("127.0.0.1", "127.0.0.2")
        ]
        calls = []
        for router, number in ((one, 1), (other, 2)):
            for _ in range(number):
                await (await router.client()).send(request(COMPLETIONS, STREAM))
                calls.append(await engine.call())
        await eventually(lambda: known(one, engine) == known(other, engine) == 3)
        both = {f"http://127.0.0.{number}:{own_port}": number == 1 for number in (1, 2)}
        await eventually(lambda: told(one) == both)
        # The other one leaves: it is told no longer, and forgets what it has been told. Nobody asks
        # again: uvloop loses a UDP socket whose making is cancelled when a router stops.
        server.ttl = 3600
        server.put(SERVICE, "A", ["127.0.0.1"])
        await eventually(lambda: told(one) == {f"http://127.0.0.1:{own_port}": True})
        await eventually(lambda: known(other, engine) == 2)
        # Its own requests count until it has ended.
        await eventually(lambda: known(one, engine) == 3)
        for call in calls:
            call.stream_whole(token("a"), DONE)
        await other.stop()
        await eventually(lambda: not heard(one))
        assert known(one, engine) == 0


def told(router: Running) -> dict[str, bool]:
    """The URLs reported by a replica, and whether each is its own."""
    replicas = router.router.replicas
    assert replicas is not None
    lines: Any = replicas.siblings.shown()["told"]
    return {each["url"]: each["is_self"] for each in lines}


def heard(router: Running) -> Any:
    """The siblings of which a replica knows."""
    replicas = router.router.replicas
    assert replicas is not None
    return replicas.siblings.shown()["heard"]


@pytest.mark.parametrize("turns", range(6))
async def test_reporting_ends_when_cancelled_in_the_turn_of_a_change(
    harness: Harness, turns: int
) -> None:
    router = await harness.router(await harness.engine(), admin_port=0, peers=[NOBODY])
    replicas, board = router.router.replicas, router.router.fleet.ledger.peers
    assert replicas is not None
    assert board is not None
    telling = asyncio.create_task(replicas.siblings.send_forever(FOR_EVER))
    await asyncio.sleep(0)
    assert board.on_change is not None
    board.on_change()
    for _ in range(turns):
        await asyncio.sleep(0)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling


async def test_reports_need_the_key_of_the_replicas(harness: Harness, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("operator an-operators-own-key\n")
    router = await harness.router(
        await harness.engine(), admin_port=0, peers=[NOBODY], peer_key=KEY, admin_key_file=keys
    )
    report = encode_report(PeerReport("a", 1, {}))
    assert (await tell(router, report)).status == 401
    assert (await tell(router, report, "an-operators-own-key")).status == 401
    assert (await tell(router, report, KEY)).status == 200
    client = await admin_client(router)
    bearer = (b"authorization", f"Bearer {KEY}".encode())
    await client.send(request("/metrics", None, bearer, method="GET"))
    assert (await client.answer()).status == 401


async def test_invalid_reports_are_refused(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0, peers=[NOBODY])
    answer = await tell(router, b"{}")
    assert (answer.status, answer.error["type"]) == (400, "BadRequestError")


async def begin(router: Running, piece: bytes) -> Client:
    """A report request with an unfinished body."""
    client = await admin_client(router)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % PEERS.encode()
    await client.send(head + chunk(piece))
    return client


def chunk(piece: bytes) -> bytes:
    """A piece of a body, as it is sent."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def line(number: int, requests: int, engine: ScriptedEngine) -> bytes:
    """A report of a sibling's requests on an engine."""
    return encode_report(
        PeerReport("a", number, {Endpoint(engine.url, Role.DECODE): (requests, 0)})
    )


async def test_each_line_counts_when_it_has_come(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0, peers=[NOBODY])
    second = line(2, 5, engine)
    client = await begin(router, line(1, 3, engine) + b"\n" + second[:9])
    await eventually(lambda: known(router, engine) == 3)
    await client.send(chunk(second[9:]) + b"0\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, set(answer.json)) == (200, {"replica", "keys"})
    assert known(router, engine) == 5


async def test_a_stream_that_lasts_too_long_is_answered(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0, peers=[NOBODY], body_timeout=0.1)
    client = await begin(router, line(1, 3, engine) + b"\n")
    assert (await client.answer()).status == 200
    assert known(router, engine) == 3


async def test_a_line_without_an_end_is_refused(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0, peers=[NOBODY])
    client = await begin(router, b" " * (MAX_LINE_BYTES + 1))
    answer = await client.answer()
    assert (answer.status, answer.error["type"]) == (400, "BadRequestError")


async def test_a_stream_goes_on_in_the_next_request(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STREAM_SECONDS", 0.05)
    engine, one = await harness.single(admin_port=0, peers=[NOBODY])
    bodies = 0

    class Counted(PeersCall):
        def on_body_complete(self) -> None:
            nonlocal bodies
            bodies += 1
            super().on_body_complete()

    monkeypatch.setattr(admin, "PeersCall", Counted)
    other = await harness.router(engine, admin_port=0, peers=[admin_url(one)])
    await eventually(lambda: bodies > 3)
    assert (await shown(other))["told"][0]["error"] is None
    mine = one.router.replicas
    assert mine is not None
    await eventually(lambda: bool(mine.siblings.shown()["heard"]))


async def test_a_slow_sibling_gets_the_latest_report() -> None:
    async with aiohttp.ClientSession() as session:
        stream = SiblingStream(NOBODY, session, None, "me", None, Random())
        lines = stream._lines()
        stream.send(b"1")
        stream.send(b"2")
        assert await anext(lines) == b"2\n"
        stream.send(b"3")
        assert await anext(lines) == b"3\n"
        await lines.aclose()


def held(router: Running, engine: ScriptedEngine) -> int:
    """The tokens that an engine's prefix cache holds, as far as a router knows."""
    return router.router.fleet.member(router.endpoint(engine)).prompts.sent.tokens


async def test_a_replica_knows_the_prompts_computed_for_siblings(harness: Harness) -> None:
    engine, one = await harness.single(admin_port=0, peers=[NOBODY])
    other = await harness.router(engine, admin_port=0, peers=[admin_url(one)])
    siblings = other.router.replicas
    assert siblings is not None
    await eventually(lambda: _prompts(siblings.siblings.shown()))
    client = await other.send(COMPLETIONS, LONG)
    call = await engine.call()
    assert held(one, engine) == 0
    call.stream(token("a"))
    await eventually(lambda: held(one, engine) == held(other, engine) == 800)
    call.end(DONE)
    await client.answer()


def _prompts(shown: Any) -> bool:
    return bool(shown["told"][0]["prompts"])


async def test_without_a_history_of_its_own_it_wants_none(harness: Harness) -> None:
    engine, one = await harness.single(admin_port=0, peers=[NOBODY], prefix_cache="off")
    other = await harness.router(engine, admin_port=0, peers=[admin_url(one)])
    siblings = other.router.replicas
    assert siblings is not None
    await eventually(lambda: bool(one.router.replicas.siblings.shown()["heard"]))  # type: ignore[union-attr]
    assert not _prompts(siblings.siblings.shown())
    keys = scheme()
    line = encode_history("a", keys, [PrefixesHeld(one.endpoint(engine), (PROMPT,))])[0]
    assert (await tell(one, line)).json["keys"] is None
    assert held(one, engine) == 0


async def test_keys_of_another_seed_mean_nothing(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0, peers=[NOBODY])
    news = [PrefixesHeld(router.endpoint(engine), (PROMPT,))]
    keys = (await tell(router, b"")).json["keys"]
    await tell(router, encode_history("a", keys[::-1], news)[0])
    assert held(router, engine) == 0
    await tell(router, encode_history("a", keys, news)[0])
    assert held(router, engine) == 256


async def test_a_sibling_that_is_behind_misses_the_oldest_prompts() -> None:
    async with aiohttp.ClientSession() as session:
        stream = SiblingStream(NOBODY, session, None, "me", "s", Random())
        stream.send_prompts(b"before it is known to take them")
        stream.takes_prompts = True
        for number in range(MAX_BEHIND + 2):
            stream.send_prompts(b"%d" % number)
        lines = stream._lines()
        stream.send(b"report")
        told = [await anext(lines) for _ in range(MAX_BEHIND + 1)]
        await lines.aclose()
    assert told == [b"report\n", *(b"%d\n" % number for number in range(2, MAX_BEHIND + 2))]
    assert stream.dropped == 2


async def test_without_siblings_there_is_no_such_route(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    assert (await tell(router, b"{}")).status == 404


async def test_a_sibling_with_another_key_is_logged_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    engine, one = await harness.single(admin_port=0, peers=[NOBODY], peer_key=KEY)
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
