"""Every refusal has its true status and OpenAI's shape, and costs no engine anything."""

import orjson
import pytest

from router.core.events import RequestEnded
from tests.net.client import Truncated, request
from tests.net.engine import chunk, json_reply
from tests.net.harness import Harness
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    STREAM,
    completion,
)
from tests.web.raw import raw

# Bodies.

BAD_BODIES = {
    "empty": b"",
    "no JSON": b"{",
    "more than JSON": b"{} {}",
    "bad UTF-8": b'{"a":"\xff"}',
    "NaN": b'{"a":NaN}',
    "an array": b"[]",
    "a string": b'"a"',
    "null": b"null",
    "too deep": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "a model that is a number": b'{"model":1}',
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS])
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_unreadable_body_is_400(harness: Harness, path: str, body: bytes) -> None:
    engine, router = await harness.single()
    answer = await router.ask(path, body)
    assert answer.status == 400
    assert answer.error["type"] == "BadRequestError"
    assert answer.error["param"] in ("body", "model")
    assert engine.seen == 0


async def test_a_refusal_leaves_the_connection_usable(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    client = await router.client()
    for _ in range(3):
        assert (await client.ask(COMPLETIONS, b"{")).status == 400
        assert (await client.ask(COMPLETIONS, completion())).status == 200


async def test_a_model_that_no_engine_serves_is_404(harness: Harness) -> None:
    engine, router = await harness.single()
    answer = await router.ask(COMPLETIONS, {"model": "gpt-5", "prompt": "x"})
    assert answer.status == 404
    assert answer.error["param"] == "model"
    assert answer.error["message"] == "The model `gpt-5` does not exist."
    assert engine.seen == 0


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens", f"{MESSAGES}/batches"])
async def test_messages_routes_have_anthropics_errors(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine())
    answer = await router.ask(path, {"model": "gpt-5"}, (b"x-request-id", b"mine"))
    assert answer.status == 404
    assert answer.anthropic_error["type"] == "not_found_error"


async def test_a_refusal_names_the_request_and_is_recorded(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await router.ask(COMPLETIONS, b"{", (b"x-request-id", b"mine"))
    assert answer.values(b"x-request-id") == [b"mine"]
    record = await router.record()
    assert (record.request_id, record.status, record.outcome) == ("mine", 400, "error")
    assert record.error == answer.error["message"]


@pytest.mark.parametrize("coding", [b"br", b"gzip, gzip", b"identity, compress", b"\xff"])
async def test_an_unknown_content_coding_is_415(harness: Harness, coding: bytes) -> None:
    _, router = await harness.single()
    answer = await router.ask(COMPLETIONS, b"\x1f\x8b", (b"content-encoding", coding))
    assert answer.status == 415
    assert answer.error["type"] == "UnsupportedMediaTypeError"
    assert answer.values(b"accept-encoding") == [b"gzip, deflate, zstd"]


async def test_codings_of_several_lines_are_one_list(harness: Harness) -> None:
    _, router = await harness.single()
    lines = ((b"content-encoding", b"gzip"), (b"content-encoding", b"zstd"))
    answer = await router.ask(COMPLETIONS, b"\x1f\x8b", *lines)
    assert answer.status == 415


async def test_identity_is_no_compression(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    answer = await router.ask(COMPLETIONS, completion(), (b"content-encoding", b"Identity"))
    assert answer.status == 200


async def test_a_post_that_declares_no_body_is_411(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await raw(router, request(COMPLETIONS))
    assert answer.status == 411
    assert answer.error["type"] == "LengthRequiredError"


# Sizes.

LIMIT = 1024


def padded(size: int) -> bytes:
    """A good body of `size` bytes."""
    empty = orjson.dumps(completion(""))
    return orjson.dumps(completion("x" * (size - len(empty))))


async def test_a_body_of_the_largest_size_passes(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, max_body_bytes=LIMIT)
    body = padded(LIMIT)
    assert len(body) == LIMIT
    assert (await router.ask(COMPLETIONS, body)).status == 200
    chunked = (b"transfer-encoding", b"chunked")
    answer = await router.ask(
        COMPLETIONS, chunk(body[:500]) + chunk(body[500:]) + chunk(b""), chunked
    )
    assert answer.status == 200


async def test_a_declared_body_of_one_byte_more_is_413_before_it_is_sent(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), max_body_bytes=LIMIT)
    head = request(COMPLETIONS, b"", (b"content-length", b"%d" % (LIMIT + 1)))
    answer = await raw(router, head)
    assert answer.status == 413
    assert answer.error["type"] == "RequestTooLargeError"
    assert answer.values(b"connection") == [b"close"]


async def test_a_chunked_body_of_one_byte_more_is_413(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), max_body_bytes=LIMIT)
    body = padded(LIMIT + 1)
    data = request(COMPLETIONS, chunk(body[:1000]), (b"transfer-encoding", b"chunked"))
    client = await router.client()
    await client.send(data)
    await client.send(chunk(body[1000:]))
    assert (await client.answer()).status == 413


async def test_a_length_of_many_digits_is_413_or_400(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %b\r\n\r\n"
    assert (await raw(router, head % (b"9" * 18))).status == 413
    assert (await raw(router, head % (b"9" * 5000))).status == 400


async def test_a_client_that_continues_sending_can_read_its_413(harness: Harness) -> None:
    """Closing with bytes unread would make the kernel take the answer back."""
    router = await harness.router(await harness.engine(), max_body_bytes=LIMIT)
    client = await router.send(COMPLETIONS, b"x" * 5_000_000)
    assert (await client.answer()).status == 413
    assert await client.ended() == b""


async def test_behind_an_answer_that_closes_nothing_is_served(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, max_body_bytes=LIMIT)
    client = await router.client()
    body = b"x" * (LIMIT + 1)
    await client.send(request(COMPLETIONS, body[:1]).replace(b": 1\r", b": %d\r" % len(body)))
    assert (await client.answer()).status == 413
    await client.send(body[1:] + request(COMPLETIONS, completion()))
    assert await client.ended() == b""
    assert engine.seen == 0


async def test_a_body_that_does_not_arrive_in_time_is_408(harness: Harness) -> None:
    engine, router = await harness.single(body_timeout=0.05)
    answer = await raw(router, request(COMPLETIONS, STREAM)[:-1])
    assert answer.status == 408
    assert answer.error["type"] == "RequestTimeoutError"
    assert answer.values(b"connection") == [b"close"]
    assert engine.seen == 0


# Engines.


async def test_an_engine_that_refuses_is_502(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.refuse()
    answer = await router.ask(COMPLETIONS, STREAM, (b"x-request-id", b"mine"))
    assert answer.status == 502
    assert answer.error["type"] == "EngineError"
    assert answer.values(b"content-type") == [b"application/json"]
    assert answer.values(b"x-request-id") == [b"mine"]
    assert router.router.fleet.ledger.total() == 0


async def test_no_engine_is_503_with_retry_after(harness: Harness) -> None:
    engine = await harness.engine(listening=False)
    router = await harness.router(engine, ready=False)
    answer = await router.ask(COMPLETIONS, STREAM)
    assert answer.status == 503
    assert answer.error["type"] == "ServiceUnavailableError"
    assert answer.values(b"retry-after") == [b"1"]


async def test_a_fault_of_our_own_is_500_and_logged(
    harness: Harness, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    router = await harness.router(await harness.engine())
    monkeypatch.setattr(router.router.handler.network, "plans", broken)
    client = await router.client()
    answer = await client.ask(COMPLETIONS, STREAM)
    assert answer.status == 500
    assert "secret" not in answer.error["message"]
    assert answer.error["type"] == "InternalServerError"
    assert "ZeroDivisionError: secret" in complaints[0]
    complaints.clear()
    assert (await client.get("/health")).status == 200
    assert [r.outcome for r in router.all(RequestEnded)] == ["error"]


async def test_a_refused_connection_is_the_whole_evidence(harness: Harness) -> None:
    """The strict client itself notices an answer that is cut off."""
    router = await harness.router(await harness.engine())
    client = await router.client()
    client.writer.write_eof()
    with pytest.raises(Truncated):
        await client.answer()
