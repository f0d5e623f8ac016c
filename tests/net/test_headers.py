"""Headers that cross the router, in both directions, and the router's own."""

from typing import Any

import pytest

from router.core.urls import origin
from tests.net.client import request
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness, Running
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    MESSAGES,
    STREAM,
    completion,
    prefilled,
    token,
)
from tests.net.streams import remote

OK = json_reply({})


async def _both_legs(
    harness: Harness, *headers: tuple[bytes, bytes], **settings: Any
) -> tuple[Call, Call, Running]:
    """The calls of a remote prefill and its decode, answered."""
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), **settings)
    client = await router.send(COMPLETIONS, completion(), *headers)
    first = await prefill.call()
    first.send(prefilled())
    second = await decode.call()
    second.send(OK)
    assert (await client.answer()).status == 200
    return first, second, router


PASS = [
    (b"authorization", b"Bearer secret"),
    (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    (b"tracestate", b"a=b"),
    (b"x-session-id", b"s"),
    (b"x-vllm-priority", b"3"),
    (b"x-data-parallel-rank", b"1"),
    (b"user-agent", b"test"),
    (b"accept", b"*/*"),
    (b"x-odd", b'a:b, c;d="e" \xe9\xff'),
    (b"x-empty", b""),
]


async def test_end_to_end_headers_reach_both_engines(harness: Harness) -> None:
    first, second, _ = await _both_legs(harness, *PASS)
    for call in (first, second):
        for name, value in PASS:
            assert call.values(name) == [value], name
        assert call.values(b"content-type") == [b"application/json"]


async def test_a_header_that_comes_twice_reaches_engines_twice(harness: Harness) -> None:
    twice = [(b"x-tag", b"a"), (b"x-other", b"-"), (b"x-tag", b"b")]
    for call in (await _both_legs(harness, *twice))[:2]:
        assert call.values(b"x-tag") == [b"a", b"b"]


DROP = [
    (b"connection", b"keep-alive, X-Named"),
    (b"x-named", b"1"),
    (b"keep-alive", b"timeout=5"),
    (b"proxy-authorization", b"Basic x"),
    (b"proxy-connection", b"keep-alive"),
    (b"te", b"trailers"),
    (b"trailer", b"x-t"),
    (b"expect", b"100-continue"),
]


# What llm-d's routing sidecar and endpoint pickers take for hosts to connect to.
HOSTS = [
    (name, b"169.254.169.254:80")
    for name in (
        b"X-Gateway-Destination-Endpoint",
        b"x-gateway-destination-endpoint-subset",
        b"x-gateway-destination-endpoint-served",
        b"X-Prefiller-Host-Port",
        b"x-llm-d-prefiller-host-port",
        b"x-prefiller-url",
        b"x-encoder-hosts-ports",
        b"x-llm-d-encoder-hosts-ports",
        b"x-kv-cache-source-host-port",
        b"x-llm-d-kv-cache-source-host-port",
        b"x-data-parallel-host-port",
    )
]
UNTRUSTED = {"direct_mode": "on", "trusted_gateways": ["10.0.0.0/8"]}


def _named(call: Call) -> list[bytes]:
    """The headers that name a host of the client's."""
    return [name for name, value in call.headers if value == HOSTS[0][1]]


@pytest.mark.parametrize("settings", [{}, UNTRUSTED], ids=["off", "untrusted"])
async def test_hosts_that_a_client_names_reach_no_engine(
    harness: Harness, settings: dict[str, Any]
) -> None:
    for call in (await _both_legs(harness, *HOSTS, **settings))[:2]:
        assert _named(call) == []


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
async def test_nor_do_they_reach_one_that_serves_alone(harness: Harness, path: str) -> None:
    engine, router = await harness.single(engine_api_key="k")
    client = await router.send(path, {"input": "x", "prompt": "x"}, *HOSTS)
    call = await engine.call()
    call.send(OK)
    assert (await client.answer()).status == 200
    assert _named(call) == []


async def test_hop_by_hop_headers_reach_no_engine(harness: Harness) -> None:
    for call in (await _both_legs(harness, *DROP))[:2]:
        names = {name for name, _ in call.headers}
        assert not names & {name for name, _ in DROP}
        assert call.values(b"host") == [b"127.0.0.1:%d" % call.connection._engine.port]
        assert call.values(b"content-length") == [b"%d" % len(call.body)]
        assert len(names) == len(call.headers)


async def test_an_offer_to_upgrade_is_declined_by_answering(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    client = await router.client()
    offers = [
        ((b"connection", b"Upgrade, HTTP2-Settings"), (b"upgrade", b"h2c")),
        ((b"connection", b"Upgrade"), (b"upgrade", b"websocket")),
    ]
    for offer in offers:
        await client.send(request(COMPLETIONS, completion(), *offer, (b"http2-settings", b"AAM")))
        assert (await client.answer()).status == 200
    for _ in range(2):
        assert (await client.ask(COMPLETIONS, completion())).status == 200
    assert engine.seen == 4


async def test_a_get_that_offers_a_websocket_is_answered(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    offer = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))
    client = await router.send("/health", None, *offer, method="GET")
    assert (await client.answer("GET")).status == 200


async def test_offers_to_upgrade_are_not_taken_behind_one_another(harness: Harness) -> None:
    """Each costs a parser: a connection that sends thousands in one go is closed instead."""
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    client = await router.client()
    offer = ((b"connection", b"Upgrade"), (b"upgrade", b"h2c"))
    client.writer.write(request(COMPLETIONS, completion(), *offer) * 1000)
    assert (await client.answer()).status == 200
    assert await client.ended() == b""
    assert engine.seen == 1


async def test_clients_cannot_set_headers_that_the_router_writes(harness: Harness) -> None:
    names = b"host, content-length, content-type, x-request-id, authorization"
    key = {"engine_api_key": "key"}
    first, second, _ = await _both_legs(harness, (b"connection", names), **key)
    for call in (first, second):
        assert call.values(b"host") != []
        assert call.values(b"content-length") == [b"%d" % len(call.body)]
        assert len(call.values(b"x-request-id")) == 1
        assert call.values(b"authorization") == [b"Bearer key"]


async def test_trailers_of_a_request_are_not_headers(harness: Harness) -> None:
    """RFC 9110 6.5.1: they would slip in behind whoever checked the headers."""
    engine, router = await harness.single()
    client = await router.client()
    head = request(COMPLETIONS, b"", (b"transfer-encoding", b"chunked"), (b"x-user", b"a"))
    trailers = b"0\r\nx-user: admin\r\nauthorization: Bearer x\r\nx-request-id: forged\r\n\r\n"
    body = b'{"model":"m"}'
    await client.send(head)
    await client.send(b"%x\r\n%b\r\n%b" % (len(body), body, trailers))
    call = await engine.call()
    assert call.values(b"x-user") == [b"a"]
    assert call.values(b"authorization") == []
    call.send(OK)
    answer = await client.answer()
    assert answer.values(b"x-request-id") != [b"forged"]


async def test_the_engines_key_replaces_the_clients(harness: Harness) -> None:
    client_key = (b"authorization", b"Bearer client")
    for call in (await _both_legs(harness, client_key, engine_api_key="engine"))[:2]:
        assert call.values(b"authorization") == [b"Bearer engine"]


async def test_without_a_key_of_ours_the_clients_passes(harness: Harness) -> None:
    client_key = (b"authorization", b"Bearer client")
    for call in (await _both_legs(harness, client_key))[:2]:
        assert call.values(b"authorization") == [b"Bearer client"]


async def test_without_any_key_none_is_invented(harness: Harness) -> None:
    for call in (await _both_legs(harness))[:2]:
        assert call.values(b"authorization") == []


async def test_probes_carry_the_engines_key(harness: Harness) -> None:
    engine = await harness.engine()
    keys: list[list[bytes]] = []
    probed = engine.probed

    def note(call: Call) -> bool:
        keys.append(call.values(b"authorization"))
        return probed(call)

    engine.probed = note  # type: ignore[method-assign]
    await harness.router(engine, engine_api_key="engine")
    assert keys
    assert all(key == [b"Bearer engine"] for key in keys)


# Request ids.


async def test_the_clients_id_comes_back_and_engines_get_ids_made_from_it(harness: Harness) -> None:
    first, second, router = await _both_legs(harness, (b"x-request-id", b"mine-1"))
    assert first.values(b"x-request-id") == second.values(b"x-request-id")
    [made] = first.values(b"x-request-id")
    assert made.startswith(b"mine-1-")
    assert made != b"mine-1"
    assert (await router.record()).request_id == "mine-1"


async def test_each_prefill_has_an_id_of_its_own_and_its_decode_has_the_same(
    harness: Harness,
) -> None:
    """NixlPushConnector finds the decode engine's blocks by it."""
    router, prefill, decode = await remote(harness)
    prefill.answer_all(None)
    client = await router.send(COMPLETIONS, completion())
    ids = []
    for answer in (json_reply({"error": {"message": "KV load failed", "code": 500}}, 500), OK):
        (first := await prefill.call()).send(prefilled())
        (second := await decode.call()).send(answer)
        assert first.values(b"x-request-id") == second.values(b"x-request-id")
        ids += first.values(b"x-request-id")
    assert (await client.answer()).status == 200
    assert len(set(ids)) == 2


async def test_two_requests_with_one_id_have_distinct_ids_at_the_engine(harness: Harness) -> None:
    engine, router = await harness.single()
    ids = set()
    calls = []
    for _ in range(5):
        await router.send(COMPLETIONS, STREAM, (b"x-request-id", b"same"))
        call = await engine.call()
        calls.append(call)
        ids.add(call.values(b"x-request-id")[0])
    assert len(ids) == 5
    for call in calls:
        call.send(OK)


BAD_IDS = [b"", b"x" * 129, b"a b", b'a"b', b"a\tb", b"\xc3\xa9", b"a,b", b"<script>", b"%0d%0a"]


@pytest.mark.parametrize("given", BAD_IDS)
async def test_an_id_that_is_long_or_odd_is_replaced(harness: Harness, given: bytes) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, completion(), (b"x-request-id", given))
    call = await engine.call()
    call.send(OK)
    (made,) = (await client.answer()).values(b"x-request-id")
    assert len(made) == 32
    assert call.values(b"x-request-id")[0].startswith(made)


async def test_an_id_of_128_characters_is_kept(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    given = b"aZ09._:@+/=-" * 10 + b"12345678"
    answer = await router.ask(COMPLETIONS, completion(), (b"x-request-id", given))
    assert answer.values(b"x-request-id") == [given]


async def test_anthropics_sdks_find_the_id_where_they_look_for_it(harness: Harness) -> None:
    """In `request-id`, of answers and of errors, whatever an engine calls it."""
    engine, router = await harness.single()
    own = OK.replace(b"\r\n", b"\r\nrequest-id: engine\r\n", 1)
    engine.answer_all(lambda call: call.send(own))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    for asked, status in ((body, 200), (b"{", 400)):
        answer = await router.ask(MESSAGES, asked, (b"x-request-id", b"mine"))
        assert answer.status == status
        assert answer.values(b"request-id") == [b"mine"]
        assert answer.values(b"x-request-id") == [b"mine"]
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.values(b"request-id") == []


async def test_ids_that_are_made_differ(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    answers = [await router.ask(COMPLETIONS, completion()) for _ in range(5)]
    assert len({answer.values(b"x-request-id")[0] for answer in answers}) == 5


# Answers.

ANSWER_LINES = [
    b"Set-Cookie: a=1; Path=/",
    b"X-Between: x",
    b"Set-Cookie: b=2",
    b"Server: uvicorn",
    b"Date: Mon, 01 Jan 2026 00:00:00 GMT",
    b"Retry-After: 7",
    b"X-Latin: \xe9",
]
HOP_LINES = [
    b"Connection: keep-alive, X-Named",
    b"X-Named: 1",
    b"Keep-Alive: timeout=5",
    b"Proxy-Authenticate: Basic",
    b"Upgrade: h2c",
    b"X-Request-Id: of the engine",
]


@pytest.mark.parametrize("path", [COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize("status", [200, 404, 503])
async def test_an_answers_end_to_end_headers_reach_the_client(
    harness: Harness, path: str, status: int
) -> None:
    engine, router = await harness.single()
    engine.answer_all(
        lambda call: call.send(json_reply({"a": 1}, status, *ANSWER_LINES, *HOP_LINES))
    )
    answer = await router.ask(path, completion(), (b"x-request-id", b"mine"))
    assert answer.status == status
    assert answer.values(b"set-cookie") == [b"a=1; Path=/", b"b=2"]
    for line in ANSWER_LINES:
        name, _, value = line.partition(b": ")
        assert value in answer.values(name.lower())
    for line in HOP_LINES[1:-1]:
        assert answer.values(line.partition(b":")[0].lower()) == []
    assert answer.values(b"x-request-id") == [b"mine"]
    assert answer.values(b"content-length") == [b"%d" % len(answer.body)]


async def test_a_streams_headers_are_those_of_its_engine(harness: Harness) -> None:
    engine, router = await harness.single()

    def script(call: Call) -> None:
        lines = b"".join(line + b"\r\n" for line in [*ANSWER_LINES, *HOP_LINES])
        call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n", lines)
        call.send(b"transfer-encoding: chunked\r\n\r\n")
        call.end(token("a"), DONE)

    engine.answer_all(script)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.values(b"set-cookie") == [b"a=1; Path=/", b"b=2"]
    assert answer.values(b"x-named") == answer.values(b"keep-alive") == []
    assert answer.values(b"transfer-encoding") == [b"chunked"]
    assert len(answer.values(b"x-request-id")) == 1


async def test_the_router_adds_only_the_id(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    answer = await router.ask(COMPLETIONS, completion())
    assert {name for name, _ in answer.headers} == {
        b"content-type",
        b"content-length",
        b"x-request-id",
    }


async def test_a_query_reaches_both_engines_as_it_was_sent(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    client = await router.send(COMPLETIONS + "?a=%0d%0ax:y&b=%20", completion())
    first = await prefill.call()
    first.send(prefilled())
    second = await decode.call()
    second.send(OK)
    assert (await client.answer()).status == 200
    assert first.target == second.target == b"/v1/completions?a=%0d%0ax:y&b=%20"


async def test_an_engines_path_prefix_precedes_the_route(harness: Harness) -> None:
    engine, router = await harness.single()
    router.pool(engine).prefix = origin(f"{engine.url}/base").prefix.encode()
    client = await router.send(COMPLETIONS + "?a=b", completion())
    call = await engine.call()
    assert call.target == b"/base/v1/completions?a=b"
    call.send(OK)
    await client.answer()


@pytest.mark.parametrize("body", [completion(), STREAM], ids=["unary", "stream"])
@pytest.mark.parametrize("word", ["on", "off"])
async def test_an_answer_names_its_engine_where_that_is_wanted(
    harness: Harness, word: str, body: object
) -> None:
    engine, router = await harness.single(engine_header=word)
    client = await router.send(COMPLETIONS, body)
    call = await engine.call()
    if body is STREAM:
        call.stream_whole(token("a"), DONE)
    else:
        call.send(OK)
    named = (await client.answer()).values(b"x-pd-router-endpoint")
    assert named == ([engine.url.encode()] if word == "on" else [])
