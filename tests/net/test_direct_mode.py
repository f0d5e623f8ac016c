"""Direct mode: only a trusted gateway chooses the engines."""

import socket
from ipaddress import ip_network
from typing import Any

import orjson
import pytest

from router.core.gateway.protocol import Gateway
from router.core.routing.large_body import LARGE_BYTES
from tests.net.client import request
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, prefilled, token

OK = json_reply({})
DIRECT: dict[str, Any] = {"direct_mode": "on"}
OTHERS: dict[str, Any] = {"direct_mode": "on", "trusted_gateways": ["10.0.0.0/8"]}


def to(*engines: ScriptedEngine) -> tuple[bytes, bytes]:
    """The header by which a gateway names decode engines."""
    addresses = (engine.url.removeprefix("http://") for engine in engines)
    return (b"x-gateway-destination-endpoint", ",".join(addresses).encode())


OLD_NAME, NEW_NAME = b"x-prefiller-host-port", b"x-llm-d-prefiller-host-port"


def by(engine: ScriptedEngine, name: bytes = OLD_NAME) -> tuple[bytes, bytes]:
    """The header that names a prefill engine."""
    return (name, engine.url.removeprefix("http://").encode())


async def test_the_gateway_chooses_the_engine_and_learns_which_one_served(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    for engine in (one, other):
        engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(one, other, **DIRECT)
    for engine in (other, other, one):
        answer = await router.ask(COMPLETIONS, completion(), to(engine))
        served = answer.values(b"x-gateway-destination-endpoint-served")
        assert (answer.status, served) == (200, [to(engine)[1]])


@pytest.mark.parametrize("names", [(OLD_NAME,), (NEW_NAME,), (NEW_NAME, OLD_NAME)])
async def test_it_chooses_the_prefill_engine_too(
    harness: Harness, names: tuple[bytes, ...]
) -> None:
    prefills = await harness.engine(), await harness.engine()
    decode = await harness.engine()
    router = await harness.router(decode, prefill=prefills, routing_threshold=100_000, **DIRECT)
    client = await router.client()
    # Where both are there, the older one counts: clients may have sent the other.
    chosen = [by(prefills[name == OLD_NAME or len(names) == 1], name) for name in names]
    await client.send(request(COMPLETIONS, completion(), to(decode), *chosen))
    first = await prefills[1].call()
    first.send(prefilled())
    second = await decode.call()
    second.send(OK)
    assert (await client.answer()).status == 200
    sent = {name for call in (first, second) for name, _ in call.headers}
    assert not sent & {b"x-gateway-destination-endpoint", *names}
    assert (await router.record()).reason == "gateway"


async def test_a_large_body_is_prefilled_on_the_named_engine_too(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=10**6, **DIRECT)
    client = await router.client()
    prompt = "x" * (LARGE_BYTES + 1)
    await client.send(request(COMPLETIONS, completion(prompt), to(decode), by(prefill)))
    first = await prefill.call()
    assert orjson.loads(await first.read())["prompt"] == prompt
    first.send(prefilled())
    (await decode.call()).send(OK)
    assert (await client.answer()).status == 200


async def test_the_next_engine_is_tried_after_a_refusal(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    other.answer_all(lambda call: call.send(OK))
    router = await harness.router(one, other, **DIRECT)
    one.refuse()
    one.drop()
    answer = await router.ask(COMPLETIONS, completion(), to(one, other))
    served = answer.values(b"x-gateway-destination-endpoint-served")
    assert (answer.status, served) == (200, [to(other)[1]])


async def test_the_next_engine_is_tried_while_the_first_has_no_free_place(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(3)]
    one, other, third = engines
    router = await harness.router(*engines, max_in_flight_per_engine=1, **DIRECT)
    calls = []
    for engine in engines:
        await router.send(COMPLETIONS, completion(), to(one, other, third))
        calls.append(await engine.call())
    assert [engine.seen for engine in engines] == [1, 1, 1]
    for call in calls:
        call.send(OK)


async def test_an_address_that_is_no_engine_is_refused(harness: Harness) -> None:
    engine, stranger = await harness.engine(), await harness.engine()
    router = await harness.router(engine, **DIRECT)
    answer = await router.ask(COMPLETIONS, completion(), to(stranger))
    assert answer.status == 503
    assert "that the gateway chose" in answer.error["message"]


@pytest.mark.parametrize("settings", [OTHERS, {}], ids=["untrusted", "off"])
async def test_headers_of_others_choose_nothing(harness: Harness, settings: dict[str, Any]) -> None:
    engine, stranger = await harness.engine(), await harness.engine()
    router = await harness.router(engine, **settings)
    client = await router.client()
    load = (b"endpoint-load-metrics-format", b"TEXT")
    await client.send(request(COMPLETIONS, completion(), to(stranger), by(stranger), load))
    call = await engine.call()
    call.send(OK)
    answer = await client.answer()
    assert answer.status == 200
    names = {name for name, _ in answer.headers}
    assert not names & {b"x-gateway-destination-endpoint-served", b"endpoint-load-metrics"}
    for name, _ in (to(stranger), by(stranger), load):
        assert call.values(name) == [], name


async def test_without_a_choice_the_router_chooses(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine, **DIRECT)
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.status == 200
    assert answer.values(b"x-gateway-destination-endpoint-served") == [to(engine)[1]]


async def test_a_stream_reports_the_load_of_its_engine(harness: Harness) -> None:
    engine, router = await harness.single(**DIRECT)
    client = await router.client()
    load = (b"endpoint-load-metrics-format", b"TEXT")
    await client.send(request(COMPLETIONS, STREAM, to(engine), load))
    call = await engine.call()
    assert call.values(b"endpoint-load-metrics-format") == []
    call.stream_whole(token("a"), DONE)
    answer = await client.answer()
    assert answer.values(b"endpoint-load-metrics") == [b"TEXT named_metrics.num_requests_running=1"]


class Transport:
    """A connection from somewhere."""

    def __init__(self, peer: object) -> None:
        self._peer = peer

    def get_extra_info(self, _name: str) -> object:
        return self._peer


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        (("10.1.2.3", 5), True),
        (("11.1.2.3", 5), False),
        (("::ffff:10.1.2.3", 5, 0, 0), True),
        (("fd00::1", 5, 0, 0), True),
        (("fe80::1%eth0", 5, 0, 1), False),
        ("/run/socket", False),
        (None, False),
    ],
)
def test_a_gateway_is_known_by_its_network(peer: object, is_trusted: bool) -> None:
    gateway = Gateway()
    gateway.configure([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])
    for _ in range(2):
        assert gateway.trusts(Transport(peer)) is is_trusted


def test_memory_per_client_is_bounded() -> None:
    gateway = Gateway()
    gateway.configure([ip_network("10.0.0.0/8")])
    for number in range(5000):
        host = socket.inet_ntoa(number.to_bytes(4, "big"))
        gateway.trusts(Transport((host, 1)))
    assert len(gateway._known) <= 1024
    assert gateway.trusts(Transport(("10.0.0.1", 1)))
