"""A real Envoy asks the router which engine each request shall go to: streams, errors, retries and
clients that leave, with both ways in which it can hand over a request's body."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from router.core.gateway.protocol import GATEWAY_HEADERS
from tests.e2e.envoy import Envoy, envoy
from tests.e2e.process import Process, serving
from tests.forked import SECONDS
from tests.net.client import Answer, request
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, token

LEAST = ("--load-balancing-strategy", "least_loaded", "--engine-stats-interval", "3600")
SERVED = b"x-gateway-destination-endpoint-served"
WHOLE = {"request_body_mode": "BUFFERED", "request_trailer_mode": "SKIP"}
DUPLEX = {"response_body_mode": "FULL_DUPLEX_STREAMED", "response_trailer_mode": "SEND"}


class Picked:
    """An Envoy and its picker."""

    def __init__(self, router: Process, proxy: Envoy) -> None:
        self.router = router
        self.proxy = proxy

    async def ask(self, body: object, *headers: tuple[bytes, bytes]) -> Answer:
        """One request."""
        client = await self.proxy.client()
        await client.send(request(COMPLETIONS, body, *headers))
        return await client.answer()

    async def in_flight(self) -> dict[str, int]:
        """The router's count for each engine."""
        answer = await (await self.router.client()).get("/endpoints")
        return {each["url"]: each["in_flight"] for each in json.loads(answer.body)}

    async def until_in_flight(self, total: int) -> None:
        """Wait for so many leases."""
        async with asyncio.timeout(SECONDS):
            while sum((await self.in_flight()).values()) != total:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def record(self, number: int = 0) -> dict[str, Any]:
        """A request's line in the log, by the order in which requests ended."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = [r for r in self.router.records if r["message"] == "request"]
                if len(found) > number:
                    return found[number]
                await asyncio.sleep(0.005)


@asynccontextmanager
async def picked(
    folder: Path,
    *engines: ScriptedEngine,
    flags: tuple[str, ...] = (),
    modes: dict[str, str] | None = None,
) -> AsyncIterator[Picked]:
    """Envoy and picker in front of engines that are up."""
    words = [word for engine in engines for word in ("--decode", engine.url)]
    async with serving(*words, *LEAST, "--epp-port", "0", *flags) as router:
        port = (await router.until("listening for Envoy"))["epp_port"]
        await router.ready()
        urls = [engine.url for engine in engines]
        async with envoy(folder, urls, port, **(modes or {})) as proxy:
            yield Picked(router, proxy)


def at(engine: ScriptedEngine) -> bytes:
    """Its address."""
    return engine.url.removeprefix("http://").encode()


MODES = pytest.mark.parametrize(
    "modes", [{}, WHOLE, DUPLEX], ids=["streamed", "buffered", "duplex"]
)


async def test_open_streams_are_spread_by_the_routers_count(
    harness: Harness, tmp_path: Path
) -> None:
    engines = [await harness.engine() for _ in range(3)]
    async with picked(tmp_path, *engines) as it:
        calls = []
        clients = []
        for _ in range(6):
            client = await it.proxy.client()
            await client.send(request(COMPLETIONS, STREAM))
            clients.append(client)
            call = await first_call(*engines)
            call.stream(token("a"))
            answer = await client.begin()
            assert answer.status == 200
            calls.append((call, answer))
            await it.until_in_flight(len(calls))
        assert set((await it.in_flight()).values()) == {2}
        for call, answer in calls:
            call.end(DONE)
            assert (await answer.rest()).body.endswith(DONE)
        await it.until_in_flight(0)


async def streaming(it: Picked, engine: ScriptedEngine) -> tuple[Call, Answer]:
    """A stream that has had its first token."""
    client = await it.proxy.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    return call, await (await client.begin()).until(token("a"))


@MODES
async def test_a_stream_outlives_the_picker_that_chose_its_engine(
    harness: Harness, tmp_path: Path, modes: dict[str, str]
) -> None:
    """A rolling update of the picker: Envoy continues alone after the grace period."""
    engine = await harness.engine()
    async with picked(tmp_path, engine, modes=modes, flags=("--shutdown-grace", "0.5")) as it:
        call, answer = await streaming(it, engine)
        it.router.signal(signal.SIGTERM)
        assert await it.router.status() == 0
        call.end(token("b"), DONE)
        assert (await answer.rest()).body == token("a") + token("b") + DONE
        assert (await it.record())["outcome"] == "aborted"


async def test_a_picker_in_shutdown_counts_a_stream_to_its_end(
    harness: Harness, tmp_path: Path
) -> None:
    engine = await harness.engine()
    async with picked(tmp_path, engine) as it:
        call, answer = await streaming(it, engine)
        it.router.signal(signal.SIGTERM)
        await it.router.until("shutting down; a second signal ends at once")
        call.end(token("b"), DONE)
        assert (await answer.rest()).body.endswith(DONE)
        assert await it.router.status() == 0
        assert (await it.record())["outcome"] == "ok"


async def first_call(*engines: ScriptedEngine) -> Call:
    """The request that reaches one of the engines."""
    waits = [asyncio.ensure_future(engine.call()) for engine in engines]
    done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    [call] = [each.result() for each in done]
    return call


@MODES
async def test_a_body_reaches_the_engine_unchanged_and_the_answer_names_the_engine(
    harness: Harness, tmp_path: Path, modes: dict[str, str]
) -> None:
    engine = await harness.engine()
    body = b'{ "model":"m", "prompt":"%b" }' % (b"long " * 40_000)
    async with picked(tmp_path, engine, modes=modes) as it:
        asking = asyncio.ensure_future(it.ask(body))
        call = await engine.call()
        assert await call.read() == body
        call.send(json_reply({"choices": [], "usage": {"completion_tokens": 40}}))
        answer = await asking
        assert (answer.status, answer.values(SERVED)) == (200, [at(engine)])
        record = await it.record()
        assert (record["status"], record["decode"]) == (200, engine.url)
        assert record["outcome"] == "ok"


@pytest.mark.parametrize("modes", [{}, WHOLE], ids=["streamed", "buffered"])
async def test_the_routers_errors_are_the_clients(
    harness: Harness, tmp_path: Path, modes: dict[str, str]
) -> None:
    engine = await harness.engine()
    async with picked(tmp_path, engine, modes=modes) as it:
        broken = await it.ask(b'{"prompt": ')
        assert (broken.status, broken.error["type"]) == (400, "BadRequestError")
        client = await it.proxy.client()
        await client.send(request("/v1/nonsense", completion()))
        assert (await client.answer()).error["code"] == 404
        models = await (await it.proxy.client()).get("/v1/models")
        assert models.status == 200
        await engine_goes_down(it, engine)
        down = await it.ask(completion())
        assert (down.status, down.error["type"]) == (503, "ServiceUnavailableError")
        assert engine.url not in down.body.decode()
        assert engine.waiting == 0


async def engine_goes_down(it: Picked, engine: ScriptedEngine) -> None:
    """Wait until the router knows."""
    engine.health = json_reply({}, 503)
    await it.router.ready(503)


async def test_engines_answer_passes_with_any_status(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({"error": {"message": "no"}}, 422)))
    async with picked(tmp_path, engine) as it:
        answer = await it.ask(completion())
        assert (answer.status, answer.json) == (422, {"error": {"message": "no"}})
        await it.until_in_flight(0)


@pytest.mark.parametrize("fault", ["refuses", "is full"])
async def test_when_envoy_retries_the_lease_goes_to_the_engine_that_serves(
    harness: Harness, tmp_path: Path, fault: str
) -> None:
    one, other = await harness.engine(), await harness.engine()
    flags = ("--health-check-interval", "3600")
    async with picked(tmp_path, one, other, flags=flags) as it:
        if fault == "refuses":
            one.refuse()
            one.drop()
        else:
            one.answer_all(lambda call: call.send(json_reply({}, 503)))
        client = await it.proxy.client()
        await client.send(request(COMPLETIONS, STREAM))
        call = await other.call()
        call.stream(token("a"))
        answer = await client.begin()
        assert (answer.status, answer.values(SERVED)) == (200, [at(other)])
        await it.until_in_flight(1)
        assert await it.in_flight() == {one.url: 0, other.url: 1}
        call.end(DONE)
        assert (await answer.rest()).body.endswith(DONE)
        assert (await it.record())["fallbacks"] == "decode:gateway_retry"


@MODES
async def test_nothing_is_held_for_clients_that_leave_whenever_that_is(
    harness: Harness, tmp_path: Path, modes: dict[str, str]
) -> None:
    engine = await harness.engine()
    async with picked(tmp_path, engine, modes=modes) as it:
        whole = request(COMPLETIONS, STREAM)
        client = await it.proxy.client()
        await client.send(whole)
        call = await engine.call()
        await it.until_in_flight(1)
        client.leave()  # before the engine answers
        await call.left()
        await it.until_in_flight(0)
        client = await it.proxy.client()
        await client.send(whole)
        call = await engine.call()
        call.stream(token("a"))
        await client.begin()
        await it.until_in_flight(1)
        client.leave()
        await call.left()
        await it.until_in_flight(0)
        records = [await it.record(number) for number in range(2)]
        assert {record["outcome"] for record in records} == {"client_left"}


async def test_killed_envoy_leaves_nothing_held(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    async with picked(tmp_path, engine) as it:
        for number in range(4):
            client = await it.proxy.client()
            await client.send(request(COMPLETIONS, STREAM))
            call = await engine.call()
            if number % 2:  # the others wait for their answer
                call.stream(token("a"))
                await client.begin()
        await it.until_in_flight(4)
        it.proxy.kill()
        await it.until_in_flight(0)
        records = [await it.record(number) for number in range(4)]
        assert {record["outcome"] for record in records} == {"client_left"}


async def test_answer_of_full_engines_passes(harness: Harness, tmp_path: Path) -> None:
    engines = [await harness.engine() for _ in range(3)]
    for engine in engines:
        engine.answer_all(lambda call: call.send(json_reply({"error": {"code": 503}}, 503)))
    async with picked(tmp_path, *engines) as it:
        answer = await it.ask(completion())
        assert (answer.status, answer.json) == (503, {"error": {"code": 503}})
        assert [engine.seen for engine in engines] == [1, 1, 1]
        await it.until_in_flight(0)
        record = await it.record()
        assert (record["status"], record["outcome"]) == (503, "error")


async def test_reset_before_the_answer_is_an_error(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    engine.answer_all(Call.reset)
    async with picked(tmp_path, engine) as it:
        assert (await it.ask(completion())).status == 503
        await it.until_in_flight(0)
        record = await it.record()
        assert (record["status"], record["outcome"]) == (503, "error")


async def test_without_bodies_leases_end_at_answers(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    async with picked(tmp_path, engine, modes={"response_body_mode": "NONE"}) as it:
        client = await it.proxy.client()
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        await it.until_in_flight(1)
        call.stream(token("a"))
        answer = await client.begin()
        assert (answer.status, answer.values(SERVED)) == (200, [at(engine)])
        await it.until_in_flight(0)
        assert (await it.record())["outcome"] == "ok"
        call.end(DONE)
        assert (await answer.rest()).body.endswith(DONE)


async def test_an_engine_that_breaks_off_is_recorded(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    async with picked(tmp_path, engine) as it:
        client = await it.proxy.client()
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        call.stream(token("a"))
        await client.begin()
        call.reset()
        await it.until_in_flight(0)
        assert (await it.record())["outcome"] != "ok"


async def test_long_prompt_names_the_prefill_engine(harness: Harness, tmp_path: Path) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    flags = ("--prefill", prefill.url, "--routing-threshold", "100")
    async with picked(tmp_path, decode, flags=flags) as it:
        for prompt, expected in (("x" * 4000, [at(prefill)]), ("short", [])):
            names = (b"x-prefiller-host-port", b"x-llm-d-prefiller-host-port")
            strangers = ((name, b"169.254.169.254:80") for name in names)
            asking = asyncio.ensure_future(it.ask({"prompt": prompt}, *strangers))
            call = await decode.call()
            assert [call.values(name) for name in names] == [expected, expected]
            counts = await it.in_flight()
            assert counts == {decode.url: 1, prefill.url: len(expected)}
            call.send(json_reply({}))
            assert (await asking).status == 200
            await it.until_in_flight(0)


@MODES
async def test_forbidden_fields_do_not_reach_the_engine(
    harness: Harness, tmp_path: Path, modes: dict[str, str]
) -> None:
    engine, stranger = await harness.engine(), await harness.engine()
    calls: list[Call] = []
    engine.on_call = calls.append
    engine.answer_all(lambda call: call.send(json_reply({})))
    async with picked(tmp_path, engine, modes=modes) as it:
        body = {"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}}
        named = [(name, at(stranger)) for name in sorted(GATEWAY_HEADERS)]
        assert (await it.ask(body, *named)).status == 200
        [call] = calls
        assert json.loads(call.body) == {"prompt": "x"}
        assert [name for name, value in call.headers if value == at(stranger)] == []
        await it.until_in_flight(0)


async def test_speed_is_measured_by_envoys_messages(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    engine.answer_all(partial(_long_answer))
    async with picked(tmp_path, engine) as it:
        answer = await it.ask(STREAM)
        assert answer.body.endswith(DONE)
        await it.record()  # the client has its end before Envoy notifies the picker
        text = (await (await it.router.client()).get("/metrics")).body.decode()
        count = next(
            line for line in text.splitlines()
            if line.startswith("pd_router_endpoint_time_to_first_token_seconds_count")
        )  # fmt: skip
        assert count.endswith(" 1.0")


def _long_answer(call: Call) -> None:
    call.stream_whole(*(token("a") for _ in range(40)), DONE)
