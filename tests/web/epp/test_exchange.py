"""What Envoy is answered, message by message, over a real gRPC connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest

from router.settings import SettingsError, load
from router.web.epp import envoy_api
from router.web.epp.messages import BUFFERED, FULL_DUPLEX, NO_BODY, PIECE_BYTES, STREAMED
from router.web.epp.server import SERVICE
from tests.net.harness import Harness, Running, eventually

pb = envoy_api.messages()

BODY = b'{"model":"m","prompt":"Hello"}'


class Call:
    """One request that an Envoy would ask about."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def head(
        self, request_mode: int = BUFFERED, response_mode: int = STREAMED, **given: Any
    ) -> None:
        """Send the headers. `end`: no body follows."""
        end = given.pop("end", False)
        fields = {":method": "POST", ":path": "/v1/completions"} | {
            name.replace("_", "-"): value for name, value in given.items()
        }
        if "path" in fields:
            fields[":path"] = fields.pop("path")
        if "method" in fields:
            fields[":method"] = fields.pop("method")
        message = pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(headers=headers(fields), end_of_stream=end)
        )
        message.protocol_config.request_body_mode = request_mode
        message.protocol_config.response_body_mode = response_mode
        await self._stream.write(message)

    async def body(self, data: bytes, *, end: bool = True) -> None:
        """Send a piece of the request's body."""
        body = pb.HttpBody(body=data, end_of_stream=end)
        await self._stream.write(pb.ProcessingRequest(request_body=body))

    async def answer(self, status: int = 200, *, end: bool = False) -> Any:
        """The engine's answer begins."""
        head = pb.HttpHeaders(headers=headers({":status": str(status)}), end_of_stream=end)
        await self._stream.write(pb.ProcessingRequest(response_headers=head))
        return await self.told()

    async def told(self) -> Any:
        """The next message of the picker."""
        async with asyncio.timeout(60):
            return await self._stream.read()

    def cancel(self) -> None:
        """Reset the call, as Envoy does when the client leaves."""
        self._stream.cancel()

    async def leave(self) -> None:
        """End the call, as Envoy does when the request is over."""
        await self._stream.done_writing()


def headers(fields: dict[str, str]) -> Any:
    """As Envoy sends them."""
    pairs = [pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in fields.items()]
    return pb.HeaderMap(headers=pairs)


def set_headers(mutation: Any) -> dict[str, bytes]:
    """The headers that a message sets."""
    return {each.header.key: each.header.raw_value for each in mutation.set_headers}


class Picker:
    """A router with an endpoint picker, and a gRPC connection to it."""

    def __init__(self, router: Running, channel: Any) -> None:
        self.router = router
        self._call = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )

    def call(self) -> Call:
        """A request."""
        return Call(self._call())


@pytest.fixture
async def picker(harness: Harness) -> AsyncIterator[Picker]:
    """In front of two engines."""
    async with picking(harness, max_body_bytes=200_000) as picker:
        yield picker


@asynccontextmanager
async def picking(harness: Harness, **settings: Any) -> AsyncIterator[Picker]:
    """A picker in front of two engines."""
    engines = await harness.engine(), await harness.engine()
    router = await harness.router(*engines, epp_port=0, **settings)
    assert router.router.clients.picker is not None
    place = f"127.0.0.1:{router.router.clients.picker.port}"
    async with grpc.aio.insecure_channel(place) as channel:
        yield Picker(router, channel)


class Link:
    """A connection to a port that can be cut without a word, as when a host loses its power."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pumps: list[asyncio.Task[None]] = []
        self.passed = 0
        """Pieces of data that have been passed on."""

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        for writer in self._writers:
            writer.close()

    def cut(self) -> None:
        """Pass nothing on any more, in either direction."""
        for pump in self._pumps:
            pump.cancel()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers = [writer, other_writer]
        self._pumps = [
            asyncio.ensure_future(self._pump(reader, other_writer)),
            asyncio.ensure_future(self._pump(other_reader, writer)),
        ]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            self.passed += 1


async def test_what_an_envoy_that_vanished_had_asked_is_over(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.web.epp.server.KEEPALIVE_MS", 100)
    # Long enough for an answer on a busy machine, and what the end of this test takes.
    monkeypatch.setattr("router.web.epp.server.KEEPALIVE_TIMEOUT_MS", 5_000)
    async with picking(harness) as picker:
        clients = picker.router.router.clients
        assert clients.picker is not None
        link = Link(clients.picker.port)
        async with link as place, grpc.aio.insecure_channel(place) as channel:
            call = Picker(picker.router, channel).call()
            await call.head()
            await call.told()
            await call.body(BODY)
            await call.told()
            assert any(member.view.in_flight for member in picker.router.router.fleet)
            silent_since = link.passed
            await eventually(lambda: link.passed >= silent_since + 10)  # it is asked, and answers
            assert clients.network.active
            link.cut()
            await eventually(lambda: not clients.network.active)
        assert not any(member.view.in_flight for member in picker.router.router.fleet)


async def refused(call: Call, status: int) -> str:
    """The error's message."""
    told = await call.told()
    assert told.WhichOneof("response") == "immediate_response"
    assert told.immediate_response.status.code == status
    error = orjson.loads(told.immediate_response.body)["error"]
    assert error["code"] == status
    assert set_headers(told.immediate_response.headers)["content-type"] == b"application/json"
    return str(error["message"])


async def test_a_buffered_body_is_answered_with_the_engine(picker: Picker) -> None:
    call = picker.call()
    await call.head()
    assert (await call.told()).WhichOneof("response") == "request_headers"
    await call.body(BODY)
    told = await call.told()
    common = told.request_body.response
    chosen = set_headers(common.header_mutation)["x-gateway-destination-endpoint"].decode()
    known = {m.endpoint.url.removeprefix("http://") for m in picker.router.router.fleet}
    assert set(chosen.split(",")) == known
    assert common.clear_route_cache
    assert not common.HasField("body_mutation")
    lb = told.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert lb["x-gateway-destination-endpoint"].string_value == chosen
    await call.leave()
    assert (await picker.router.record()).outcome == "client_left"


ROUTER_KEY, ENGINE_KEY = "a-key-of-the-router", "a-key-of-the-engines"


@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.parametrize("engine_key", [ENGINE_KEY, None])
async def test_engines_get_their_key_and_never_the_routers(
    harness: Harness, tmp_path: Path, mode: int, engine_key: str | None, *, has_keys: bool
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"team-a {ROUTER_KEY}\n")
    given = {"api_key_file": path} if has_keys else {}
    async with picking(harness, engine_api_key=engine_key, **given) as picker:
        call = picker.call()
        await call.head(mode, authorization=f"Bearer {ROUTER_KEY}", x_api_key=ROUTER_KEY)
        if mode == BUFFERED:
            await call.told()
        await call.body(BODY)
        told = await call.told()
        response = told.request_body if mode == BUFFERED else told.request_headers
        mutation = response.response.header_mutation
        await call.leave()
    expected = None if engine_key is None else b"Bearer %b" % ENGINE_KEY.encode()
    assert set_headers(mutation).get("authorization") == expected
    removed = {"authorization", "x-api-key"} & {*mutation.remove_headers}
    if not has_keys:  # they are the engine's
        assert removed == set()
    else:
        assert removed == ({"x-api-key"} if engine_key else {"authorization", "x-api-key"})


@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
async def test_nothing_is_held_of_a_body_whose_client_has_left(picker: Picker, mode: int) -> None:
    network = picker.router.router.handler.network
    call = picker.call()
    await call.head(mode)
    if mode == BUFFERED:
        await call.told()
    else:
        await call.body(BODY[:9], end=False)
        await eventually(lambda: network.byte_budget.held == 9)
    assert network.active
    call.cancel()
    await eventually(lambda: not network.active)
    assert network.byte_budget.held == 0
    record = await picker.router.record()
    assert (record.outcome, record.status, record.route) == ("client_left", 0, "/v1/completions")


async def test_a_body_that_is_changed_comes_with_its_length(picker: Picker) -> None:
    call = picker.call()
    await call.head(content_length="50")
    await call.told()
    await call.body(b'{"prompt":"x","kv_transfer_params":{"a":1}}')
    common = (await call.told()).request_body.response
    assert common.body_mutation.body == b'{"prompt":"x"}'
    assert set_headers(common.header_mutation)["content-length"] == b"14"
    await call.leave()


@pytest.mark.parametrize("size", [10, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_a_streamed_body_is_given_back_in_pieces(picker: Picker, size: int) -> None:
    body = b'{"prompt":"%b"}' % (b"x" * (size - 13))
    call = picker.call()
    await call.head(FULL_DUPLEX)
    half = len(body) // 2
    await call.body(body[:half], end=False)
    await call.body(body[half:])
    first = await call.told()
    assert "x-gateway-destination-endpoint" in set_headers(
        first.request_headers.response.header_mutation
    )
    back = b""
    while True:
        piece = (await call.told()).request_body.response.body_mutation.streamed_response
        back += piece.body
        assert len(piece.body) <= PIECE_BYTES
        if piece.end_of_stream:
            break
    assert back == body
    await call.leave()


async def test_trailers_behind_a_body_go_on(picker: Picker) -> None:
    call = picker.call()
    await call.head(FULL_DUPLEX)
    await call.body(BODY, end=False)
    await call._stream.write(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()))
    kinds = [(await call.told()).WhichOneof("response") for _ in range(3)]
    assert kinds == ["request_headers", "request_body", "request_trailers"]
    await call.leave()


@pytest.mark.parametrize(
    ("head", "status", "text"),
    [
        ({"path": "/v1/nothing"}, 404, "no such route"),
        ({"method": "GET"}, 405, "not allowed"),
        ({"request_mode": NO_BODY}, 500, "request_body_mode"),
        ({"content_length": "300000"}, 413, "larger than"),
        ({"content_length": "0", "end": True}, 400, "empty"),
        ({"end": True}, 411, "body is required"),
        ({"content_encoding": "gzip"}, 415, "Compressed"),
    ],
)
async def test_what_the_head_tells_is_refused_by_it(
    picker: Picker, complaints: list[str], head: dict[str, Any], status: int, text: str
) -> None:
    call = picker.call()
    await call.head(**head)
    assert text in await refused(call, status)
    await call.leave()


@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
async def test_a_body_that_is_too_large_is_refused_when_it_is(picker: Picker, mode: int) -> None:
    call = picker.call()
    await call.head(mode)
    if mode == BUFFERED:
        await call.told()
    await call.body(b"x" * 200_001, end=False)
    assert "larger than" in await refused(call, 413)
    await call.body(b"x")  # nothing more is answered
    await call.leave()
    assert (await picker.router.record()).status == 413


async def test_the_answer_tells_who_served_and_the_lease_ends_with_it(picker: Picker) -> None:
    ledger = picker.router.router.fleet.ledger
    call = picker.call()
    await call.head()
    await call.told()
    await call.body(BODY)
    await call.told()
    assert ledger.total() == 1
    told = await call.answer()
    named = set_headers(told.response_headers.response.header_mutation)
    assert named["x-gateway-destination-endpoint-served"]
    body = pb.HttpBody(body=b'{"choices":[]}', end_of_stream=True)
    await call._stream.write(pb.ProcessingRequest(response_body=body))
    assert (await call.told()).WhichOneof("response") == "response_body"
    await call.leave()
    await eventually(lambda: ledger.total() == 0)
    record = await picker.router.record()
    assert (record.outcome, record.status, record.model) == ("ok", 200, "m")


async def test_an_answer_without_a_body_is_whole_with_its_head(picker: Picker) -> None:
    call = picker.call()
    await call.head()
    await call.told()
    await call.body(BODY)
    await call.told()
    await call.answer(204, end=True)
    await call.leave()
    assert (await picker.router.record()).outcome == "ok"


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_refuses_the_routers_key_is_no_answer(
    harness: Harness, status: int
) -> None:
    async with picking(harness, engine_api_key=ENGINE_KEY) as picker:
        call = picker.call()
        await call.head()
        await call.told()
        await call.body(BODY)
        await call.told()
        told = await call.answer(status)
        assert told.immediate_response.status.code == 502
        assert b"API key" in told.immediate_response.body
        await call.leave()
        record = await picker.router.record()
        assert (record.outcome, record.status) == ("error", 502)
        assert record.decode is not None
        engine = picker.router.router.fleet.member(record.decode)
        assert "API key" in str(engine.last_error)


async def test_without_a_key_of_the_routers_that_is_between_client_and_engine(
    picker: Picker,
) -> None:
    call = picker.call()
    await call.head()
    await call.told()
    await call.body(BODY)
    await call.told()
    told = await call.answer(401, end=True)
    assert told.WhichOneof("response") == "response_headers"
    await call.leave()
    assert (await picker.router.record()).status == 401


async def test_keys_are_asked_for(harness: Harness, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("me a-key-with-16-characters\n")
    router = await harness.router(await harness.engine(), epp_port=0, api_key_file=keys)
    assert router.router.clients.picker is not None
    place = f"127.0.0.1:{router.router.clients.picker.port}"
    async with grpc.aio.insecure_channel(place) as channel:
        it = Picker(router, channel)
        call = it.call()
        await call.head()
        await refused(call, 401)
        await call.leave()
        call = it.call()
        await call.head(authorization="Bearer a-key-with-16-characters")
        assert (await call.told()).WhichOneof("response") == "request_headers"
        await call.leave()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"workers": "2"}, "--workers"),
        ({"max_in_flight": "5"}, "--epp-port: Envoy limits requests"),
        ({"port": "9002"}, "--epp-port: it is --port"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load({"decode": "http://d0", "epp_port": "9002", **flags})


async def test_a_port_that_is_taken_is_named(harness: Harness) -> None:
    engine = await harness.engine()
    taken = await harness.router(engine, epp_port=0)
    assert taken.router.clients.picker is not None
    other = taken.router.clients.picker.__class__(
        taken.router.clients.picker._network, "127.0.0.1", taken.router.clients.picker.port
    )
    with pytest.raises(SettingsError, match="--epp-port: cannot listen"):
        await other.start()
