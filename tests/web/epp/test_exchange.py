"""What Envoy is answered, message by message, over a real gRPC connection."""

from pathlib import Path
from typing import Any

import pytest

from router.core.events import MessageIgnored
from router.web.epp.messages import BUFFERED, FULL_DUPLEX, NO_BODY, PIECE_BYTES, STREAMED
from tests.net.harness import Harness, eventually
from tests.web.epp.envoy import BODY, Picker, pb, picking, refused, set_headers


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


async def test_a_rank_is_named_by_its_place_behind_the_address(picker: Picker) -> None:
    router = picker.router.router
    for url in {m.endpoint.url for m in router.fleet}:
        router.sync.on_ranks(url, (2, 3))
    call = picker.call()
    await call.head()
    await call.told()
    await call.body(BODY)
    headers = set_headers((await call.told()).request_body.response.header_mutation)
    assert headers["x-data-parallel-rank"] in (b"0", b"1")
    await call.leave()


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
async def test_a_body_is_released_after_a_disconnect(picker: Picker, mode: int) -> None:
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


async def test_trailers_behind_a_buffered_body_go_on(picker: Picker) -> None:
    call = picker.call()
    await call.head()
    await call.told()
    await call.body(BODY, end=False)
    assert (await call.told()).WhichOneof("response") == "request_body"
    await call._stream.write(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()))
    assert (await call.told()).WhichOneof("response") == "request_trailers"
    await call.leave()


@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
async def test_repeated_request_messages_of_envoy_are_ignored_and_counted(
    picker: Picker, mode: int
) -> None:
    """Pieces of a streamed body are sent without waiting for a response (envoy#46237)."""
    call = await picker.asked(mode)
    await call.body(BODY[-5:])
    await call.body(BODY, end=False)
    await call.head(mode)
    await call.answer_head()
    kinds = [
        (await call.told()).WhichOneof("response") for _ in range(4 if mode == BUFFERED else 2)
    ]
    bodies = ["request_body"] * 2 if mode == BUFFERED else []
    assert kinds == [*bodies, "request_headers", "response_headers"]
    assert len(picker.router.all(MessageIgnored)) == 3
    await call.leave()
    assert (await picker.router.record()).status == 200
    network = picker.router.router.handler.network
    assert network.byte_budget.held == picker.router.router.fleet.ledger.total() == 0


async def test_a_second_head_before_the_body_is_refused(picker: Picker) -> None:
    call = picker.call()
    await call.head(FULL_DUPLEX)
    await call.head(FULL_DUPLEX)
    assert "more than one head" in await refused(call, 400)
    await call.leave()


@pytest.mark.parametrize("message", [pb.ProcessingRequest(), pb.ProcessingRequest(request_body={})])
async def test_bytes_before_the_head_are_refused(picker: Picker, message: Any) -> None:
    call = picker.call()
    await call._stream.write(message)
    assert "before the request's headers" in await refused(call, 400)
    await call.leave()


@pytest.mark.parametrize(
    ("head", "status", "text"),
    [
        ({"content_length": "9" * 5000}, 400, "not a number"),
        ({"path": "/v1/nothing"}, 404, "no such route"),
        ({"method": "GET"}, 405, "not allowed"),
        ({"request_mode": NO_BODY}, 500, "request_body_mode"),
        ({"content_length": "300000"}, 413, "larger than"),
        ({"content_length": "0", "end": True}, 400, "empty"),
        ({"end": True}, 411, "body is required"),
        ({"content_encoding": "gzip"}, 415, "Compressed"),
    ],
)
async def test_invalid_heads_are_refused_before_the_body(
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


async def test_the_answer_names_the_engine_and_ends_the_lease(picker: Picker) -> None:
    ledger = picker.router.router.fleet.ledger
    call = await picker.asked()
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


@pytest.mark.parametrize("mode", [STREAMED, FULL_DUPLEX])
async def test_repeated_answer_messages_of_envoy_are_ignored_and_counted(
    picker: Picker, mode: int
) -> None:
    call = await picker.asked(response_mode=mode)
    await call.answer()
    await call.answer_head(500)
    assert (await call.told()).WhichOneof("response") == "response_headers"
    body = pb.HttpBody(body=b'{"choices":[]}', end_of_stream=True)
    for _ in range(2):
        await call._stream.write(pb.ProcessingRequest(response_body=body))
    assert (await call.told()).WhichOneof("response") == "response_body"
    await call._stream.write(pb.ProcessingRequest(response_trailers=pb.HttpTrailers()))
    rest = ["response_body"] * (mode == STREAMED) + ["response_trailers"]
    assert [(await call.told()).WhichOneof("response") for _ in rest] == rest
    assert len(picker.router.all(MessageIgnored)) == 2
    await call.leave()
    record = await picker.router.record()
    assert (record.outcome, record.status, record.bytes_out) == ("ok", 200, len(body.body))


async def test_an_answer_without_a_body_is_whole_with_its_head(picker: Picker) -> None:
    call = await picker.asked()
    await call.answer(204, end=True)
    await call.leave()
    assert (await picker.router.record()).outcome == "ok"


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_router_key_is_no_answer(harness: Harness, status: int) -> None:
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


async def test_without_router_key_a_401_is_the_clients(picker: Picker) -> None:
    call = await picker.asked()
    told = await call.answer(401, end=True)
    assert told.WhichOneof("response") == "response_headers"
    await call.leave()
    assert (await picker.router.record()).status == 401
